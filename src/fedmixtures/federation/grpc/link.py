"""Messages between hub and site, in order and each once, over streams that may break.

Each message carries its number and the last one that has come from the other end; what is not
acknowledged is sent again over the next stream. A process that is new begins a new link.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

HEAD = struct.Struct("<QQ")
"""Number of the message (0: an acknowledgement alone) and of the last one that came."""
MOST_BYTES = 2**27
"""That wait for one receiver, of each sender."""
QUIET = 1.0
"""Seconds after which an acknowledgement goes alone."""


class Link:
    """One end."""

    def __init__(self):
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, str, bytes]] = deque()
        self._bytes: Counter[str] = Counter()
        self._next, self._came, self._stream = 1, 0, 0
        self.closed = False

    def put(self, content: bytes, sender: str = "") -> bool:
        """Send this; False if too much of this sender waits already."""
        with self._changed:
            if self._bytes[sender] + len(content) > MOST_BYTES:
                return False
            self._waiting.append((self._next, sender, content))
            self._bytes[sender] += len(content)
            self._next += 1
            self._changed.notify_all()
        return True

    def stream(self, alive: Callable[[], bool] = lambda: True) -> Iterator[bytes]:
        """What to write to a new stream, until there is a newer one or it is not alive."""
        with self._changed:
            self._stream += 1
            mine, last = self._stream, 0
            self._changed.notify_all()
        while not self.closed and alive():
            with self._changed:
                if self._stream != mine:
                    return
                new = self._after(last)
                if new is None:
                    self._changed.wait(QUIET)
                    new = self._after(last)
                if self._stream != mine:
                    return
                number, content = (0, b"") if new is None else (new[0], new[2])
                came, last = self._came, max(last, number)
            yield HEAD.pack(number, came) + content

    def _after(self, number: int) -> tuple[int, str, bytes] | None:
        """The first message that waits after this one; they are numbered one after another."""
        if not self._waiting or self._waiting[-1][0] <= number:
            return None
        return self._waiting[max(0, number + 1 - self._waiting[0][0])]

    def came(self, data: bytes) -> bytes | None:
        """The content of a message; None if it has come before, or is no more than a receipt."""
        if len(data) < HEAD.size:
            return None
        number, received = HEAD.unpack_from(data)
        with self._changed:
            while self._waiting and self._waiting[0][0] <= received:
                _, sender, content = self._waiting.popleft()
                self._bytes[sender] -= len(content)
            self._changed.notify_all()
            if number != self._came + 1:
                return None
            self._came = number
        return data[HEAD.size :]

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def flushed(self, patience: float) -> bool:
        """Whether all that was put has been received, after so many seconds at most."""
        end = time.monotonic() + patience
        with self._changed:
            while self._waiting and not self.closed and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, QUIET))
            return not self._waiting
