"""Boxes that wait at a site until its node can open them, whoever carried them."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter

from fedmixtures.federation.rounds import Parcel

NOBODY = "?"
"""Stands for the sender of a frame that names none of the job's sites."""
MOST_WAITING, MOST_BYTES = 4096, 2**27
"""Boxes that wait, of each site that has proved to be their sender, and of all others together."""
CANDIDATES = 4
"""Boxes kept per source and round, and per claimed one: anyone may write in anyone's name."""
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


def _room(source: str, proven: bool) -> str:
    return source if proven else NOBODY  # which is no site's name


def _digest(box: bytes) -> bytes:
    return hashlib.sha256(box).digest()
