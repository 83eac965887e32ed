"""A site's part in a job, without a carrier: boxes wait, the node is asked, rounds go on.

A carrier hands over what comes (`SitePart.came`), sends what it is given (`Outbox`), and shows the
hub the site's `Signs`. It knows no model, and neither does anything here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedmixtures.federation.job import Job
from fedmixtures.federation.mailbox import NOBODY, Mailbox
from fedmixtures.federation.rounds import Parcel, SiteRounds, asked
from fedmixtures.federation.wire.frames import Frame, FrameError, is_count, request

AHEAD = 2
LAST_WORDS = 30.0
"""Seconds the last boxes may take to arrive when the node itself is done."""
LOGGED_REFUSALS, SILENT_AFTER = 100, 3.0
MOST_WORDS = 120
"""Letters of a reason that the hub is told."""


class Outbox(Protocol):
    """What carries a site's boxes."""

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Send these; nobody waits for it."""
        ...

    def close(self, patience: float) -> None:
        """Let what is under way arrive for so long."""
        ...


@dataclass
class Signs:
    """What a site tells the hub each second: where it stands; nothing about its rows."""

    site: str
    round: int = 0
    at: str = ""
    waiting_for: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Jobs and models that its budget has left."""
    reasons: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)

    def refuse(self, source: str, reason: str) -> None:
        """Count a message that was refused."""
        self.rejected[source] += 1
        self.reasons[source] = reason[:MOST_WORDS]

    def encode(self) -> bytes:
        """Encode as the bytes of a frame."""
        head = {"site": self.site, "round": self.round, "waiting_for": list(self.waiting_for)}
        head |= {"at": self.at, "left": self.left, "reasons": dict(self.reasons)}
        return Frame({**head, "rejected": dict(self.rejected)}).encode()


class SitePart:
    """One site in one segment of a job; `load` makes its node."""

    def __init__(self, site: str, load: Callable[[], Any]):
        self.load, self.signs = load, Signs(site)
        self.mailbox = Mailbox()
        self.node: Any = None
        self.job: Job | None = None
        self.round = -1
        self.in_node = 0.0

    def came(self, data: Any) -> bool:
        """A box from somewhere; False if it is not kept, and would have to come again."""
        try:
            frame = Frame.decode(data)
        except FrameError as error:
            return self._turned_away(NOBODY, data, str(error))
        head, box = frame.head, frame.boxes.get("box")
        source, t, job = head.get("source"), head.get("round"), self.job
        if not isinstance(source, str) or not is_count(t) or box is None:
            return self._turned_away(NOBODY, data, "the frame names no source, round or box")
        if job is not None:
            if source not in job.n_components:
                return self._turned_away(NOBODY, data, "the source is no site of the job")
            # Others may have begun the segment at a round this site does not know yet, or pool
            # with nobody while this one waits for its group.
            anywhere = self.round < 0 or job.needs_all
            if t > (job.last_round if anywhere else self.round + AHEAD + job.reach):
                return self._turned_away(source, data, "no site can be that many rounds ahead")
        # A true box that comes too early to be known as one is sent again if it finds no room.
        proven = (
            job is not None and self.node is not None and self.node.is_from(source, job.key, t, box)
        )
        return self.mailbox.put(source, t, box, proven)

    def _turned_away(self, source: str, data: Any, reason: str) -> bool:
        """Count it for the hub's eyes; note the first ones in the local log."""
        self.signs.refuse(source, reason)
        if self.node is not None and self.signs.rejected.total() <= LOGGED_REFUSALS:
            size = len(data) if isinstance(data, (bytes, bytearray)) else None
            self.node.log.write("turned away", claims=source, bytes=size, reason=reason)
        return False

    def hello(self, frame: Frame) -> Frame:
        """Load the node and show it the job; the compiler is warm afterwards."""
        if self.node is None:
            self.node = self.load()
        reply = asked(self._ask, frame)
        self.job = Job.from_plain(frame.head["job"])
        self.signs.left = reply.head["left"]
        return reply

    def _ask(self, frame: Frame) -> Frame:
        began = time.perf_counter()
        try:
            return self.node.answer(frame)
        finally:
            self.in_node += time.perf_counter() - began

    def run(
        self, frame: Frame, post: Callable[[Job, set[str]], Outbox], stopped: Callable[[], bool]
    ) -> Frame:
        """All rounds from the common one on; `post` carries boxes of a job to sites."""
        if self.job is None:
            return request("refused", reason="no job was shown to this site: say hello first")
        head, name, job = frame.head, self.node.name, self.job
        site = SiteRounds(self._ask, job, name, head["present"])
        outbox = post(job, site.present - {name})
        began, self.in_node, patience = time.perf_counter(), 0.0, 0.0
        try:
            parcels = site.begin(head["round"])
            while not stopped():
                self.round = self.signs.round = site.round
                self.signs.at = site.at
                outbox.send(parcels)
                if site.is_over:  # where nobody will speak to it, it holds and the others end
                    patience = LAST_WORDS
                    return site.result()
                parcels = self._one_round(site, head["deadline"], stopped)
            return request("refused", reason="the run was ended")
        finally:
            self.node.log.write(
                "ran", job=job.key, rounds=self.round - head["round"],
                seconds=round(time.perf_counter() - began, 4), in_node=round(self.in_node, 4),
            )  # fmt: skip
            outbox.close(patience)

    def _one_round(
        self, site: SiteRounds, deadline: float, stopped: Callable[[], bool]
    ) -> list[Parcel]:
        """Wait for the neighbours that are there, then step; hold while nobody is heard."""
        t, end = site.round, time.monotonic() + deadline
        while not stopped():
            if arrived := self.mailbox.up_to(t, site.site):
                for entry in site.take(arrived):
                    known = entry["source"] in site.job.n_components
                    self.signs.refuse(entry["source"] if known else NOBODY, entry["reason"])
            late = time.monotonic() > end
            if not site.missing or (late and site.fresh):
                parcels = site.step()
                if site.round > t:
                    self.signs.waiting_for = []
                    return parcels
            self.mailbox.wait(0.2)
            if time.monotonic() > end - deadline + SILENT_AFTER:
                self.signs.waiting_for = sorted(site.missing)
        return []
