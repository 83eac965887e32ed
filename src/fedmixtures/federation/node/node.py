"""A site: `Node.handle(frame) -> frame`. It owns rows, model, checks, release and checkpoints.

Requests are ``hello`` (here is a job: which rounds can you go back to?), ``share`` (stand after
round t and tell your neighbours), ``take`` (here is what neighbours sent), ``step`` (one round with
what was taken) and ``result`` (seal the final model for the collector). Whoever carries frames sees
boxes only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.federation.explain import what_left
from fedmixtures.federation.job import Job, JobError, SignedJob
from fedmixtures.federation.masked_sums import SumRefused
from fedmixtures.federation.node.budgets import BudgetSpent, Releases, Runs, Sums
from fedmixtures.federation.node.gate import GateRefusal, Support
from fedmixtures.federation.node.job_program import (
    gaps_refused,
    method_of,
    name_in,
    partners_of,
    program_of,
)
from fedmixtures.federation.node.kept import keep
from fedmixtures.federation.node.ledger import Ledger
from fedmixtures.federation.node.own_rows import blurred
from fedmixtures.federation.node.protocol_session import ProtocolSession
from fedmixtures.federation.node.release import ApprovedMessage, ReleasePoint
from fedmixtures.federation.node.session import Refused, Session
from fedmixtures.federation.node.site import JobRefused, SiteConfig
from fedmixtures.federation.node.store import LocalLog
from fedmixtures.federation.wire.frames import NODE_SCHEMA, Frame, FrameError, is_count
from fedmixtures.federation.wire.message import (
    IntegerMessage,
    MaskedShare,
    ModelMessage,
    ModelRefused,
    PrivateModelMessage,
    Silence,
)
from fedmixtures.federation.wire.roster import NotOnRoster, Roster
from fedmixtures.federation.wire.sealing import Address, BoxError, SiteKey, is_signed
from fedmixtures.kernels.compiling import compilation_cache
from fedmixtures.methods.protocol import Protocol
from fedmixtures.mixture.arithmetic import double

MAX_SESSIONS = 2
STEPS = {
    ModelMessage: "models",
    PrivateModelMessage: "models",
    Silence: "models",  # nobody is told which of the two it is
    IntegerMessage: "network",
    MaskedShare: "sums",
}
"""What a site is at, for whoever watches: what its last messages are of."""
AnySession = Session | ProtocolSession
EXPECTED = (
    FrameError, JobError, JobRefused, Refused, GateRefusal, BudgetSpent, NotOnRoster, SumRefused
)  # fmt: skip


class Node:
    """One site of a federation, whoever carries its frames."""

    def __init__(self, config: SiteConfig, key: SiteKey, roster: Roster, support: Support):
        self.config, self.key, self.roster, self.support = config, key, roster, support
        self.log = LocalLog(config.state / "log.jsonl")
        self.ledger = Ledger(config.account("ledger"), config.privacy)
        self.releases = Releases(config.account("releases"), config.releases, config.data_set)
        secret = key.secret(f"rounding {config.data_set}")
        sums = Sums(config.account("sums"), config.releases.max_sums, config.data_set)
        self.runs = Runs(config.account("runs"))
        self.versions = config.versions(support, key.secret("versions of rows"))
        self.point = ReleasePoint(
            config.name, key, roster, config.gate, self.releases, sums, self.runs, self.ledger,
            secret,
        )  # fmt: skip
        self.point.used = self.versions.enter
        self.sessions: OrderedDict[str, AnySession] = OrderedDict()

    @classmethod
    def load(cls, path: str | Path) -> Node:
        """The site that a configuration file describes."""
        config = SiteConfig.load(path)
        key, roster = SiteKey.load(config.key), Roster.load(config.roster)
        if roster.sites.get(config.name, key.public) != key.public:
            raise ValueError(
                f"the roster's key of {config.name!r} is not the one of {str(config.key)!r}."
            )
        return cls(config, key, roster, config.read_rows())

    @property
    def name(self) -> str:
        """The site's name."""
        return self.config.name

    def handle(self, frame: bytes) -> bytes:
        """Answer a request in bytes, from wherever it came."""
        try:
            request = Frame.decode(frame, self.config.limits.max_frame_bytes)
        except FrameError as error:
            return self._refusal(None, error).encode()
        return self.answer(request).encode()

    def answer(self, request: Frame) -> Frame:
        """Answer a request; what is malformed or not allowed is refused in the reply."""
        kind = request.head.get("kind")
        answers: dict[Any, Callable[[Frame], Frame]] = {
            "hello": self._hello,
            "share": self._share,
            "take": self._take,
            "step": self._step,
            "result": self._result,
        }
        try:
            if request.head.get("schema") != NODE_SCHEMA:
                raise Refused(f"the request is not of the schema {NODE_SCHEMA}")
            if not isinstance(kind, str) or kind not in answers:
                raise Refused("no such request")
            with double():
                return answers[kind](request)
        except EXPECTED as error:
            return self._refusal(kind, error)

    def _refusal(self, kind: Any, error: Exception) -> Frame:
        reason = str(error)
        if isinstance(error, NotOnRoster):
            reason = f"site {self.name!r} refuses the job: {reason}"
        at_home = getattr(error, "at_home", {})
        self.log.write("refused", request=str(kind)[:20], reason=reason, **at_home)
        return Frame(
            {"schema": NODE_SCHEMA, "kind": "refused", "site": self.name, "reason": reason}
        )

    def _hello(self, request: Frame) -> Frame:
        """Look at a job; if it is allowed, get ready for it."""
        signed = SignedJob.from_plain(request.head)
        job = signed.job
        self._verify(signed)
        if job.is_expired:
            raise JobRefused(
                f"site {self.name!r} refuses the job: it has expired on {job.expires}. Sign it anew"
            )
        program = program_of(job)
        self.config.permit(job, name_in(job))
        for site in partners_of(program, job, self.name):
            self.roster.sealing_key(site, "site")
        if job.privacy is not None and find_spec("dp_accounting") is None:
            raise JobRefused(f"site {self.name!r} has no accountant: install fedmixtures[dp] there")
        if job.collector is not None and self.config.limits.share_result:
            self.roster.sealing_key(job.collector, "researcher")
        if job.key not in self.sessions:
            self.sessions[job.key] = self._ready(job)
            while len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
        session = self.sessions[job.key]
        self.log.write("hello", job=job.key, name=job.name, signer=signed.signer,
                       rounds=session.available()[-1])  # fmt: skip
        gone = session.gone if isinstance(session, ProtocolSession) else []
        left = list(self.releases.left())
        return self._reply("hello", session, rounds=session.available(), gone=gone, left=left)

    def _verify(self, signed: SignedJob) -> None:
        """Only a researcher whom this site has pinned can have it work."""
        identity = self.roster.researchers.get(signed.signer)
        if identity is None or not is_signed(signed.content, signed.signature, identity):
            raise JobRefused(
                f"site {self.name!r} refuses the job: it is not signed by a researcher on its "
                "roster. Pin the researcher's key: fedmixtures federate trust NAME KEY --researcher"
            )

    def _ready(self, job: Job) -> AnySession:
        """A session with everything compiled, so that no deadline meets the compiler."""
        ledger = None if job.privacy is None else self.ledger
        folder = self.config.state / f"{job.name}-{job.key[:12]}"
        try:
            with compilation_cache():
                session = self._session_of(job, folder, ledger)
                if job.needs_all:
                    self.runs.expect(job.key, session.fingerprint, bool(session.released))
                self.releases.expect(session.fingerprint, job.releases)
                if ledger is None:
                    self.versions.expect()
                session.warm_up()
        except EXPECTED:
            raise
        except Exception as error:  # a job's settings may be any nonsense: said in full here only
            self.log.write("failed", job=job.key, error=f"{type(error).__name__}: {error}"[:500])
            raise JobRefused(f"site {self.name!r} cannot get ready for the job") from error
        return session

    def _session_of(self, job: Job, folder: Path, ledger: Ledger | None) -> AnySession:
        program = program_of(job)
        why = gaps_refused(program, job)
        if why and np.isnan(self.support.rows).any():
            raise JobRefused(f"site {self.name!r} has {why}")
        if isinstance(program, Protocol):
            gate = self.config.gate
            self._check_columns(job, gate.own_count(len(job.features)))
            session = ProtocolSession(job, self.name, self.support, folder, program, gate)
            session.passed, session.opened = self.point.let_through, self.point.opened
            session.noted = self.point.heard
            if job.privacy is None and gate.rounding > 0:  # noise has its own rule
                secret = self.key.secret(f"blur {self.config.data_set}")
                session.shows(blurred(self.support.rows, gate.rounding, secret))
            return session
        return Session(job, self.name, self.support, folder, ledger)

    def _check_columns(self, job: Job, least: float) -> None:
        """Refuse sums in which a number would rest on a few of our rows; which, only our log says.

        A column that a site lacks altogether it borrows from the others.
        """
        rare = self.support.rare_together(least)
        if not rare:
            return
        named = [" and ".join(sorted({self.config.columns[c] for c in pair})) for pair in rare]
        self.log.write("few rows together", job=job.key, columns=named, fewer_than=least)
        raise JobRefused(
            f"site {self.name!r} has columns of which too few rows have values: its own log says "
            "which. Leave them empty there (they are borrowed from the others), or fill them"
        )

    def _share(self, request: Frame) -> Frame:
        """Stand after the round asked for and seal the model for every neighbour."""
        session, t = self._session(request), self._round(request)
        if isinstance(session, ProtocolSession):
            session.leave(t, self._absent(session, request))
        session.go_to(t)
        return self._released(session, "share")

    def _absent(self, session: AnySession, request: Frame) -> set[str]:
        """Sites of the job that a request says do not take part any more."""
        present = request.head.get("present", list(session.job.sites))
        if not isinstance(present, list) or not all(isinstance(name, str) for name in present):
            raise Refused("`present` is no list of sites")
        return set(session.job.sites) - set(present)

    def _take(self, request: Frame) -> Frame:
        """Open and check messages of this round or earlier ones, without a step."""
        session, t = self._session(request), self._round(request)
        if session.round != t:
            raise Refused(f"round {t} is asked for, but this node stands after {session.round}")
        rejected = self._open_all(session, request)
        return self._reply("take", session, rejected=rejected, **session.freshness())

    def _step(self, request: Frame) -> Frame:
        """One round; what was answered before is answered in the same way, not computed again."""
        session, t = self._session(request), self._round(request)
        if session.round == t + 1:
            return self._released(session, "step", held=False, rejected=[])
        if session.round != t:
            raise Refused(f"round {t} is asked for, but this node stands after {session.round}")
        if session.is_over or t >= session.job.last_round:
            raise Refused(f"the job has {session.reached} rounds")
        rejected = self._open_all(session, request)
        freshness = session.freshness()
        if not session.replay():
            if session.must_wait(freshness):
                return self._reply("step", session, held=True, rejected=rejected, **freshness)
            session.step(freshness)
            for how in ("stale", "dropped"):
                if freshness[how]:
                    self.log.write(how, job=session.job.key, round=t, neighbours=freshness[how])
        return self._released(session, "step", held=False, rejected=rejected, **freshness)

    def _result(self, request: Frame) -> Frame:
        """The final model, sealed for the collector, if the site allows it."""
        session = self._session(request)
        if not session.is_over:  # where all neighbours are away, as far as it came
            self._keep(session)
        collector = session.job.collector
        if collector is None or not self.config.limits.share_result:
            return self._reply("result", session, boxes=[])
        box, release = self.point.result(session, collector)
        return self._with_boxes(session, "result", {collector: box}, {collector: release})

    def _open_all(self, session: AnySession, request: Frame) -> list[dict[str, str]]:
        """Open and check what came; the bad ones are named and change nothing."""
        listed = request.head.get("messages")
        if not isinstance(listed, list):
            raise Refused("`messages` is missing")
        rejected = []
        for entry in listed:
            source = entry.get("source") if isinstance(entry, dict) else None
            try:
                self._open(session, entry, request)
            except (ModelRefused, BoxError) as error:
                rejected.append({"source": str(source)[:80], "reason": str(error)})
                self.log.write("rejected", job=session.job.key, round=session.round, **rejected[-1])
        return rejected

    def _open(self, session: AnySession, entry: Any, request: Frame) -> None:
        if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
            raise ModelRefused("a message names no source")
        source, source_round, box = entry["source"], entry.get("round"), entry.get("box")
        if source not in session.neighbours:
            raise ModelRefused("the source is no neighbour of this node")
        if not is_count(source_round) or source_round > session.reached:
            raise ModelRefused("the message is not of this round or an earlier one")
        if source_round <= session.heard.get(source, (-1, None))[0]:
            raise ModelRefused("a message of that round or a later one was already taken")
        if not isinstance(box, str) or box not in request.boxes:
            raise ModelRefused("there is no box with the message")
        address = Address(session.key, source_round, source, self.name)
        sender = self.roster.sealing_key(source, "site")
        session.accept(source, source_round, self.key.open(request.boxes[box], sender, address))

    def is_from(self, source: str, job: str, round: int, box: bytes) -> bool:
        """Whether a box opens as one that `source` made for this node and round; changes nothing.

        The carrier may ask at any time, from a thread of its own: where a job is just being made
        ready, nothing opens.
        """
        session = self.sessions.get(job)
        if session is None or session.round is None:
            return False
        try:
            sender = self.roster.sealing_key(source, "site")
            self.key.open(box, sender, Address(session.key, round, source, self.name))
        except (NotOnRoster, BoxError):
            return False
        return True

    def _released(self, session: AnySession, kind: str, **entries: Any) -> Frame:
        """The reply with the boxes for every neighbour."""
        boxes, new = self.point.boxes(session)
        reply = self._with_boxes(session, kind, boxes, new, **entries)
        if session.is_over:
            self._keep(session)
        return reply

    def _keep(self, session: AnySession) -> None:
        """Write the site's whole model of a job to its own disk, where it stays."""
        if session.outcome is None:  # it has left before there was anything
            return
        told = what_left(self.config, session.job)
        try:
            folder = keep(self.config, session, method_of(session.job), told)
        except OSError as error:  # a full disk is no reason to let the others wait
            self.log.write("not kept", job=session.job.key, reason=str(error))
        else:
            self.log.write("kept", job=session.job.key, folder=str(folder))

    def _with_boxes(
        self,
        session: AnySession,
        kind: str,
        boxes: dict[str, bytes],
        new: dict[str, ApprovedMessage],
        **entries,
    ) -> Frame:
        listed = []
        for destination, box in boxes.items():
            listed.append({"destination": destination, "round": session.round, "box": destination})
            event = new[destination].in_words() if new else {"again": True}
            about = {"job": session.job.key, "round": session.round, "to": destination}
            self.log.write("sent", **about, bytes=len(box), **event)
        kinds = [type(release.message) for release in new.values()]
        step = STEPS.get(kinds[0], "others") if kinds else ""
        return self._reply(kind, session, boxes=listed, segments=boxes, step=step, **entries)

    def _reply(
        self,
        kind: str,
        session: AnySession,
        segments: Any = None,
        **entries: Any,
    ) -> Frame:
        head = {
            "schema": NODE_SCHEMA,
            "kind": kind,
            "site": self.name,
            "job": session.job.key,
            "round": session.round,
            "state_from": session.state_from,
            "over": session.round is not None and session.is_over,
            "partners": list(session.slots) if session.round is not None else [],
            **entries,
        }
        return Frame(head, boxes=segments or {})

    def _session(self, request: Frame) -> AnySession:
        key = request.head.get("job")
        if not isinstance(key, str) or key not in self.sessions:
            raise Refused("this node does not know that job: say hello first")
        return self.sessions[key]

    def _round(self, request: Frame) -> int:
        t = request.head.get("round")
        if not is_count(t):
            raise Refused("`round` is missing or no whole number")
        return t
