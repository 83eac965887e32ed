"""One segment of a fit at the hub, without a carrier: who is there, from which round, who is lost.

Hello, the largest round common to all, run; the end when a site is lost or refuses. What became of
it is plain JSON, by which the researcher's side decides how to go on. The hub sees no model, and
nothing here imports JAX.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fedmixtures.federation.job import SignedJob
from fedmixtures.federation.mailbox import NOBODY
from fedmixtures.federation.rounds import common_round, hello
from fedmixtures.federation.wire.frames import Frame, FrameError, is_count, request

KNOWN_STEPS = ("models", "network", "sums", "others")
LOOK = 0.1
"""Seconds between two looks at who has answered."""
Tell = Callable[[str, Frame, Sequence[str]], None]
"""Gives sites a request by name: ``hello`` or ``run``."""


class Segment:
    """What the hub knows of one segment.

    Parameters
    ----------
    signed
        The signed job.
    tell
        Carries requests to sites; their replies and signs of life come back by `replied`, `told`.
    hello_timeout
        Seconds a site may take to get ready: it compiles then, and gives signs of life.
    deadline
        Seconds a node waits for a neighbour's model before it uses the last one again.
    lost_after
        Seconds without a sign of life after which a site counts as lost; less than `deadline`, so
        that nobody has gone on with old models when a segment ends.
    start_timeout
        Seconds a site's process may take to give its first sign of life.
    stall_after
        Seconds without any progress after which the site that the others wait for is left out, for
        all the signs of life that it gives.
    without
        Sites that are left out from the beginning, since they were silent before.
    """

    def __init__(
        self,
        signed: SignedJob,
        tell: Tell,
        hello_timeout: float = 1800,
        deadline: float = 60.0,
        lost_after: float = 20.0,
        start_timeout: float = 90.0,
        stall_after: float = 900.0,
        without: Sequence[str] = (),
    ):
        self.signed, self.job, self.tell = signed, signed.job, tell
        self.hello_timeout, self.deadline = hello_timeout, deadline
        self.lost_after, self.start_timeout = lost_after, start_timeout
        self.stall_after, self.without = stall_after, tuple(without)
        self.replies: dict[str, Frame] = {}
        self.silent: list[str] = []
        """Sites that gave signs of life and nothing else."""
        self._moved, self._reached = 0.0, -1
        self._seen: dict[str, float] = {}
        self._gone: set[str] = set()
        self._progress: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    @property
    def progress(self) -> dict[str, Any]:
        """What sites have told last, by name."""
        with self._lock:
            return json.loads(json.dumps(self._progress))

    def told(self, data: Any, source: str | None = None) -> bool:
        """A site's sign of life, of `source` where the carrier knows; False if it is none."""
        try:
            head = Frame.decode(data, 2**16).head
        except FrameError:
            return False
        site, t = head.get("site"), head.get("round")
        if site not in self.job.n_components or not is_count(t) or source not in (None, site):
            return False
        known, refused = (*self.job.n_components, NOBODY), head.get("rejected")
        left, reasons = head.get("left"), head.get("reasons")
        reasons = reasons if isinstance(reasons, dict) else {}
        waiting, refused = head.get("waiting_for"), refused if isinstance(refused, dict) else {}
        how = {
            "round": t,
            "waiting_for": [s for s in waiting if s in known] if isinstance(waiting, list) else [],
            "rejected": {s: n for s, n in refused.items() if s in known and is_count(n)},
            "at": head["at"] if head.get("at") in KNOWN_STEPS else "",
            "left": left if isinstance(left, list) and all(map(is_count, left)) else [],
            "reasons": {s: str(r)[:200] for s, r in reasons.items() if s in known},
        }
        with self._lock:
            now = self._seen[site] = time.monotonic()
            self._progress[site] = how
            rounds = sorted(one["round"] for one in self._progress.values())
            if rounds[len(rounds) // 2] > self._reached:  # nobody alone makes it look like progress
                self._moved, self._reached = now, rounds[len(rounds) // 2]
        return True

    def replied(self, site: str, data: Any) -> None:
        """A site's reply to what it was told; None if it failed."""
        try:
            if data is None:
                raise FrameError("the site failed")
            reply = Frame.decode(data)
            _check_reply(reply)
        except FrameError as error:
            reply = request("refused", reason=str(error))
        self.replies[site] = reply

    def lose(self, site: str) -> None:
        """The carrier knows that a site's process has ended."""
        with self._lock:
            self._gone.add(site)

    def run(self, here: Sequence[str], stopped: Callable[[], bool]) -> dict[str, Any]:
        """From hello to the end, with the sites that are here; what became of it."""
        members = self.job.n_components.keys() - {*self.without}
        outcome = self._run([name for name in here if name in members], stopped)
        return outcome | {"progress": self.progress}

    def _run(self, here: list[str], stopped: Callable[[], bool]) -> dict[str, Any]:
        begun = time.time()
        lost = self._ask_all("hello", hello(self.signed), here, stopped, self.hello_timeout)
        if refused := self._refused():
            return {"outcome": "refused", "reasons": refused}
        if lost or stopped():
            return {"outcome": "lost", "sites": lost, "silent": self.silent}
        gone = {name for reply in self.replies.values() for name in reply.head.get("gone", ())}
        present = [name for name in here if name not in gone]
        common = common_round({name: self.replies[name] for name in present})
        ready = time.time()
        run = request("run", round=common, present=present, deadline=self.deadline)
        lost = self._ask_all("run", run, present, stopped, 0)
        timing = {"first_round": common, "ready_s": ready - begun, "rounds_s": time.time() - ready}
        if refused := self._refused():
            return {"outcome": "refused", "reasons": refused, **timing}
        if lost or stopped():
            return {"outcome": "lost", "sites": lost, "silent": self.silent, **timing}
        replies = self.replies.items()
        held = {site: reply.head["round"] for site, reply in replies if not reply.head.get("over")}
        return {"outcome": "completed", "present": present, "held": held, **timing}

    def results(self) -> dict[str, bytes]:
        """Replies with boxes for the collector, by site, once all are done."""
        return {site: reply.encode() for site, reply in self.replies.items()}

    def _refused(self) -> dict[str, str]:
        return {
            site: str(reply.head.get("reason"))
            for site, reply in list(self.replies.items())
            if reply.head.get("kind") == "refused"
        }

    def _ask_all(
        self, name: str, frame: Frame, here: list[str], stopped: Callable[[], bool], timeout: float
    ) -> list[str]:
        """Give a request to all sites and wait for all; returns the sites that were lost."""
        self.replies, now = {}, time.monotonic()
        self.tell(name, frame, here)
        while not stopped() and set(self.replies) != set(here) and not self._refused():
            missing = set(here) - set(self.replies)
            if lost := sorted(site for site in missing if self._is_lost(site, now)):
                return lost
            if timeout and time.monotonic() - now > timeout:
                self.silent = sorted(missing)
                return self.silent
            if not timeout and time.monotonic() - max(self._moved, now) > self.stall_after:
                witnesses = self._witnesses()
                most = max(map(len, witnesses.values()), default=0)
                named = sorted(site for site, by in witnesses.items() if len(by) == most)
                if most > 1 and len(named) == 1:
                    self.silent = named
                    return named
                open_ = set(named).union(*(witnesses[site] for site in named)) or set(here)
                words = f"nothing has moved for {self.stall_after:g} s: it is silent, or says so"
                self.replies |= {site: request("refused", reason=words) for site in open_}
            time.sleep(LOOK)
        return []

    def _witnesses(self) -> dict[str, set[str]]:
        """Who says of whom that it owes a message.

        A site that stands before the witness and waits for others itself may be unable to go on:
        that is no witness against it. So no two honest sites are witnesses against a third.
        """
        told, found = self.progress, defaultdict(set)
        for witness, how in told.items():
            for site in {*how["waiting_for"]} & told.keys():
                if told[site]["round"] >= how["round"] or not told[site]["waiting_for"]:
                    found[site].add(witness)
        return found

    def _is_lost(self, site: str, asked: float) -> bool:
        """Silent for too long, or never heard at all since its process should have started."""
        with self._lock:
            seen, gone = self._seen.get(site), site in self._gone
        silent = time.monotonic() - (asked if seen is None else max(seen, asked))
        return gone or silent > (self.start_timeout if seen is None else self.lost_after)


def _check_reply(reply: Frame) -> None:
    """What the hub reads of a site's reply."""
    kind, rounds = reply.head.get("kind"), reply.head.get("rounds")
    if kind == "hello" and not (
        isinstance(rounds, list) and 0 in rounds and all(is_count(t) for t in rounds)
    ):
        raise FrameError("the site names no rounds that it can go back to")
    if kind == "result" and not is_count(reply.head.get("round")):
        raise FrameError("the site does not say after which round it stands")
    if kind not in ("hello", "result", "refused"):
        raise FrameError(f"the site answers {str(kind)[:20]!r}")
