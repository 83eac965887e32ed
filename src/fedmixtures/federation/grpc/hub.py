"""The hub: lets members in by their certificates, runs segments, hands boxes on. It keeps nothing.

Sites and researchers call it, and it calls nobody. A researcher's call is a segment: it ends with
the call, and if the hub is lost the researcher calls again. One segment runs at a time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from fedmixtures.federation.grpc.kit import HUB, OPTIONS, RESEARCHER, SERVICE, SITE, Kit, caller
from fedmixtures.federation.grpc.link import Link
from fedmixtures.federation.job import JobError, SignedJob
from fedmixtures.federation.segment import Segment
from fedmixtures.federation.wire.frames import Frame, FrameError

MOST_CALLS = 2048
"""Threads, of which each connected site takes two."""
REMEMBERED = 5
"""Segments that are shown to whoever looks."""
NEWS = 0.5
"""Seconds between two reports to the researcher."""
TIMES = ("hello_timeout", "deadline", "lost_after", "start_timeout", "stall_after")


@dataclass
class Member:
    """A site that is, or was, connected."""

    process: str
    """What its process has drawn: another one begins anew."""
    link: Link = field(default_factory=Link)
    streams: int = 0


@dataclass
class SegmentRun:
    """A segment under way, or over."""

    number: str
    segment: Segment
    begun: float
    outcome: dict[str, Any] | None = None

    def in_words(self) -> dict[str, Any]:
        """Name, number, state, begin and progress of the job, for `federate watch`."""
        status = "RUNNING" if self.outcome is None else "FINISHED"
        return {"job_name": self.segment.job.name, "job_id": self.number, "status": status,
                "submit_time": f"{self.begun:020.3f}", "progress": self.segment.progress,
                "ended": self.outcome or {}}  # fmt: skip


class Hub:
    """What the server's calls are answered with."""

    def __init__(self):
        self.process = os.urandom(8).hex()
        self.members: dict[str, Member] = {}
        self.runs: OrderedDict[str, SegmentRun] = OrderedDict()
        self.lock, self.turn = threading.Lock(), threading.Lock()
        self.running: SegmentRun | None = None

    # Calls of sites.

    def connect(self, came: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """A site's connection: what it sends, and what is for it."""
        name, role = caller(context)
        if role != SITE:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"a {role} does not connect as a site")
        process = dict(context.invocation_metadata()).get("process", "")
        member = self._member(name, process)
        context.send_initial_metadata((("process", self.process),))
        reader = threading.Thread(target=self._read, args=(name, member, came), daemon=True)
        reader.start()
        try:
            yield from member.link.stream(context.is_active)
        finally:
            with self.lock:
                member.streams -= 1

    def _member(self, name: str, process: str) -> Member:
        with self.lock:
            known = self.members.get(name)
            if known is None or known.process != process:
                if known is not None:
                    known.link.close()
                    if self.running is not None:  # what it had in memory is gone
                        self.running.segment.lose(name)
                known = self.members[name] = Member(process)
            known.streams += 1
            return known

    def _read(self, name: str, member: Member, came: Iterator[bytes]) -> None:
        try:
            for data in came:
                if content := member.link.came(data):
                    self._heard(name, content)
        except grpc.RpcError:  # the connection broke: the site makes a new one
            return

    def _heard(self, name: str, content: bytes) -> None:
        """One message of a site: a sign of life, a reply, or a box for another."""
        try:
            frame = Frame.decode(content)
        except FrameError:
            return
        kind, run = frame.head.get("kind"), self.running
        if run is None or frame.head.get("segment") != run.number:
            return
        if kind == "told":
            run.segment.told(frame.boxes.get("told"), name)
        elif kind == "replied":
            run.segment.replied(name, frame.boxes.get("reply"))
        elif kind == "box":
            self._hand_on(name, frame, run)

    def _hand_on(self, name: str, frame: Frame, run: SegmentRun) -> None:
        """A box, to a site of the job; the source is who has sent it."""
        to, member = frame.head.get("destination"), None
        if to in run.segment.job.n_components and isinstance(to, str):
            member = self.members.get(to)
        if member is not None:
            told = {**frame.head, "source": name}
            member.link.put(Frame(told, boxes=frame.boxes).encode(), name)

    def connected(self) -> list[str]:
        """Sites with a connection just now."""
        with self.lock:
            return sorted(name for name, one in self.members.items() if one.streams > 0)

    # Calls of researchers.

    def look(self, asked: bytes, context: Any) -> bytes:
        """Who is there, and how the last segments stand."""
        del asked
        if (role := caller(context)[1]) != RESEARCHER:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"a {role} does not look")
        with self.lock:
            runs = list(self.runs.values())
        plain = {"connected": self.connected(), "runs": [run.in_words() for run in runs]}
        return json.dumps(plain).encode()

    def submit(self, asked: bytes, context: Any) -> Iterator[bytes]:
        """One segment, as long as the researcher stays: news, then its end with sealed results."""
        if (role := caller(context)[1]) != RESEARCHER:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"a {role} submits no jobs")
        try:
            head = Frame.decode(asked).head
            signed = SignedJob.from_plain(head.get("signed", {}))
            given = head.get("how", {})
            how: dict[str, Any] = {t: float(v) for t, v in given.items() if t in TIMES}
            how["without"] = [str(site) for site in given.get("without", ())]
        except (FrameError, JobError, ValueError, AttributeError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:500])
            return
        while not self.turn.acquire(timeout=NEWS):
            if not context.is_active():
                return
            yield _news("waiting", {})
        try:
            yield from self._segment(signed, how, context.is_active)
        finally:
            self.turn.release()

    def _segment(
        self, signed: SignedJob, how: dict[str, Any], alive: Callable[[], bool]
    ) -> Iterator[bytes]:
        number = os.urandom(8).hex()
        tell = lambda kind, frame, sites: self._tell(number, kind, frame, sites)
        run = SegmentRun(number, Segment(signed, tell, **how), time.time())
        with self.lock:
            self.running = self.runs[number] = run
            while len(self.runs) > REMEMBERED:
                self.runs.popitem(last=False)
        members = signed.job.n_components.keys() - {*run.segment.without}
        here = [site for site in self.connected() if site in members]
        over, found = threading.Event(), {}

        def carried() -> None:
            try:
                found.update(run.segment.run(here, over.is_set))
            finally:
                over.set()

        threading.Thread(target=carried, daemon=True).start()
        try:
            yield _news("segment", {"job_id": number, "sites": here})
            while not over.wait(NEWS) and alive():
                yield _news("progress", run.segment.progress)
        finally:
            over.set()
            run.outcome = found or {"outcome": "lost", "sites": []}
            self._tell(number, "stop", Frame({}), here)
            self.running = None
        done = found.get("outcome") == "completed"
        yield _news("ended", run.outcome, run.segment.results() if done else {})

    def _tell(self, number: str, kind: str, frame: Frame, sites: Sequence[str]) -> None:
        content = Frame({"kind": kind, "segment": number}, boxes={"frame": frame.encode()}).encode()
        for site in sites:
            if (member := self.members.get(site)) is not None:
                member.link.put(content)


def _news(event: str, what: dict[str, Any], boxes: dict[str, bytes] | None = None) -> bytes:
    return Frame({"event": event, "what": what}, boxes=boxes or {}).encode()


def served(kit: Kit, listen: str = "0.0.0.0") -> tuple[grpc.Server, Hub]:
    """The hub of a kit, started; its port is that of the kit."""
    name, role = kit.name
    if role != HUB:
        raise ValueError(f"{str(kit.folder)!r} is the kit of the {role} {name!r}, not of a hub.")
    hub = Hub()
    server = grpc.server(ThreadPoolExecutor(MOST_CALLS), options=OPTIONS)
    handlers = {
        "Connect": grpc.stream_stream_rpc_method_handler(hub.connect),
        "Submit": grpc.unary_stream_rpc_method_handler(hub.submit),
        "Look": grpc.unary_unary_rpc_method_handler(hub.look),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = kit.hub.rpartition(":")[2]
    try:
        bound = server.add_secure_port(f"{listen}:{port}", kit.server_credentials())
    except RuntimeError:
        bound = 0
    if not bound:
        raise ValueError(f"the port {port} of {listen} is taken: is another hub running here?")
    server.start()
    return server, hub
