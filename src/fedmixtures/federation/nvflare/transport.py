"""How a site's parcels and its signs of life travel through NVFlare."""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from fedmixtures.federation.rounds import Parcel
from fedmixtures.federation.site_part import Signs
from fedmixtures.federation.wire.frames import Frame

BOX_TOPIC, PROGRESS_TOPIC = "fedmixtures.box", "fedmixtures.progress"
BODY = "frame"
SEND_TIMEOUT, HEARTBEAT = 5.0, 1.0


class Heartbeat:
    """Tells the hub every second that this site lives, what it is at, who is silent or refused.

    And how many jobs and models its budget has left; nothing about its rows.

    A thread of its own: a site that compiles, or waits for a neighbour that has died, is not dead.
    """

    def __init__(self, engine: Any, signs: Signs):
        self.engine, self.signs = engine, signs
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
        message = Shareable()
        message[BODY] = self.signs.encode()
        # Around start and end of a run the way to the hub may be missing.
        with contextlib.suppress(Exception), self.engine.new_context() as context:
            self.engine.send_aux_request(
                [], PROGRESS_TOPIC, message, SEND_TIMEOUT, context, optional=True
            )


class AuxOutbox:
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
