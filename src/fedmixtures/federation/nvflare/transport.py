"""How a site's parcels and its signs of life travel through NVFlare."""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from fedmixtures.federation.rounds import Parcel
from fedmixtures.federation.wire.frames import Frame

BOX_TOPIC, PROGRESS_TOPIC = "fedmixtures.box", "fedmixtures.progress"
BODY = "frame"
NOBODY = "?"
"""Stands for the sender of a frame that names none of the job's sites."""
MOST_WAITING, MOST_BYTES = 4096, 2**27
"""Boxes that wait, of each site that has proved to be their sender, and of all others together."""
CANDIDATES = 4
"""Boxes kept per source and round, and per claimed one: anyone may write in anyone's name."""
SEND_TIMEOUT, HEARTBEAT = 5.0, 1.0
LATE_ROUNDS = 2
"""For so long a box that comes twice is taken for a lost receipt; later it is a replay."""


class Mailbox:
    """Boxes that wait, by claimed source and round; bounded.

    Every site has room of its own for boxes that prove to be its own. All others share one room:
    who fills that, or its own, keeps no true box of anybody else out.
    """

    def __init__(self):
        self.arrived = threading.Condition()
        self._boxes: dict[tuple[str, int, bool], list[bytes]] = {}
        self._waiting: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._taken: set[tuple[str, int, bytes]] = set()

    def put(self, source: str, round: int, box: bytes, proven: bool = False) -> bool:
        """Keep a box, `proven` if it is the source's beyond doubt; False if there are too many.

        A box that comes again because its receipt was lost is acknowledged again, and that is all.
        """
        with self.arrived:
            both = [self._boxes.get((source, round, how), []) for how in (False, True)]
            if box in both[0] + both[1] or (source, round, _digest(box)) in self._taken:
                return True
            waiting, room = both[proven], _room(source, proven)
            full = self._waiting[room] >= MOST_WAITING
            full = full or self._bytes[room] + len(box) > MOST_BYTES
            if full or len(waiting) >= CANDIDATES:
                return False
            self._boxes[source, round, proven] = [*waiting, box]
            self._waiting[room] += 1
            self._bytes[room] += len(box)
            self.arrived.notify_all()
            return True

    def up_to(self, round: int, site: str = "") -> list[Parcel]:
        """Take out all boxes of this round and earlier ones, as parcels for `site`."""
        with self.arrived:
            keys = sorted(key for key in self._boxes if key[1] <= round)
            taken = []
            for source, t, proven in keys:
                for box in self._boxes.pop((source, t, proven)):
                    self._waiting[_room(source, proven)] -= 1
                    self._bytes[_room(source, proven)] -= len(box)
                    taken.append((source, t, box))
            self._taken = {entry for entry in self._taken if entry[1] >= round - LATE_ROUNDS}
            self._taken |= {(source, t, _digest(box)) for source, t, box in taken}
            return [Parcel(source, site, t, box) for source, t, box in taken]

    def wait(self, seconds: float) -> None:
        """Until something arrives, or for so long."""
        with self.arrived:
            self.arrived.wait(seconds)


class Heartbeat:
    """Tells the hub every second that this site lives, what it is at, who is silent or refused.

    And how many jobs and models its budget has left; nothing about its rows.

    A thread of its own: a site that compiles, or waits for a neighbour that has died, is not dead.
    """

    def __init__(self, engine: Any, site: str):
        self.engine, self.site = engine, site
        self.round, self.at, self.waiting_for = 0, "", []
        self.left: list[int] = []
        self.reasons: dict[str, str] = {}
        self.rejected: Counter[str] = Counter()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._speak, daemon=True, name="heartbeat")
        self.thread.start()

    def close(self) -> None:
        """Fall silent."""
        self.closed.set()

    def _speak(self) -> None:
        while not self.closed.wait(HEARTBEAT):
            self.say()

    def say(self) -> None:
        """Tell it now."""
        head = {"site": self.site, "round": self.round, "waiting_for": list(self.waiting_for)}
        head |= {"at": self.at, "left": self.left, "reasons": dict(self.reasons)}
        message = Shareable()
        message[BODY] = Frame({**head, "rejected": dict(self.rejected)}).encode()
        # Around start and end of a run the way to the hub may be missing.
        with contextlib.suppress(Exception), self.engine.new_context() as context:
            self.engine.send_aux_request(
                [], PROGRESS_TOPIC, message, SEND_TIMEOUT, context, optional=True
            )


class Outbox:
    """Sends boxes to the sites that are there, until they are acknowledged."""

    def __init__(self, engine: Any, site: str, job_key: str, present: set[str]):
        self.engine, self.site, self.job_key, self.present = engine, site, job_key, present
        self.pool = ThreadPoolExecutor(max_workers=2 * max(1, len(present)))
        self.closed = threading.Event()
        self.under_way: list[Any] = []

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Send these; nobody waits for it."""
        self.under_way = [sending for sending in self.under_way if not sending.done()]
        for parcel in parcels:
            if parcel.destination in self.present:
                head = {"source": self.site, "round": parcel.round, "job": self.job_key}
                frame = Frame(head, boxes={"box": parcel.box}).encode()
                sending = self.pool.submit(self._until_acknowledged, parcel.destination, frame)
                self.under_way.append(sending)

    def _until_acknowledged(self, destination: str, frame: bytes) -> None:
        while not self.closed.is_set():
            message = Shareable()
            message[BODY] = frame
            with contextlib.suppress(Exception), self.engine.new_context() as context:
                replies = self.engine.send_aux_request(
                    [destination], BOX_TOPIC, message, SEND_TIMEOUT, context, optional=True
                )
                reply = replies.get(destination)
                if reply is not None and reply.get_return_code() == ReturnCode.OK:
                    return
            self.closed.wait(0.3)

    def close(self, patience: float) -> None:
        """Let what is under way arrive for so long; a neighbour that is gone holds nobody up."""
        end = time.monotonic() + patience
        while time.monotonic() < end and not all(sending.done() for sending in self.under_way):
            time.sleep(0.05)
        self.closed.set()
        self.pool.shutdown(wait=False, cancel_futures=True)


def _room(source: str, proven: bool) -> str:
    return source if proven else NOBODY  # which is no site's name


def _digest(box: bytes) -> bytes:
    return hashlib.sha256(box).digest()
