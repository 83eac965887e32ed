"""A site: one process that calls the hub, stays, and takes part in segments as they come."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from fedmixtures.federation.grpc.kit import CONNECT, SITE, Kit
from fedmixtures.federation.grpc.link import Link
from fedmixtures.federation.job import Job
from fedmixtures.federation.rounds import NodeRefused, Parcel
from fedmixtures.federation.site_part import SitePart
from fedmixtures.federation.wire.frames import Frame, FrameError, request

HEARTBEAT = 1.0
FIRST_WAIT, LONGEST_WAIT = 0.5, 15.0
"""Seconds before a connection that broke is made again, at first and at most."""


class GrpcOutbox:
    """Boxes on their way to the hub."""

    def __init__(self, link: Link, segment: str, job: Job, present: set[str]):
        self.link, self.segment, self.job, self.present = link, segment, job, present

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Put them into the link, which brings them."""
        for parcel in parcels:
            if parcel.destination in self.present:
                head = {"kind": "box", "segment": self.segment, "round": parcel.round}
                head |= {"destination": parcel.destination, "job": self.job.key}
                self.link.put(Frame(head, boxes={"box": parcel.box}).encode())

    def close(self, patience: float) -> None:
        """Let the last ones reach the hub."""
        self.link.flushed(patience)


@dataclass(frozen=True)
class Asked:
    """A request of the hub, with what it is about."""

    kind: str
    segment: str
    part: SitePart
    stopped: threading.Event
    frame: Frame


class Site:
    """Takes part; `load` makes the node that the site's own file describes, anew for each job."""

    def __init__(self, kit: Kit, load: Callable[[], Any], say: Callable[[str], None] = print):
        name, role = kit.name
        if role != SITE:
            raise ValueError(f"{str(kit.folder)!r} is the kit of the {role} {name!r}, not a site's")
        self.kit, self.name, self.load, self.say = kit, name, load, say
        self.process, self.hub = os.urandom(8).hex(), ""
        self.link = Link()
        self.segment, self.part = "", SitePart(name, load)
        self.stopped, self.over = threading.Event(), threading.Event()
        self.asked: queue.Queue[Asked] = queue.Queue()

    def run(self) -> None:
        """Until `close`; goes on after any loss of the hub."""
        for work in (self._work, self._speak):
            threading.Thread(target=work, daemon=True).start()
        wait = FIRST_WAIT
        while not self.over.is_set():
            began = time.monotonic()
            try:
                self._connection()
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                self.say(f"no connection to the hub ({getattr(code, 'name', 'broken')})")
            wait = FIRST_WAIT if time.monotonic() - began > 60 else min(2 * wait, LONGEST_WAIT)
            self.over.wait(wait)

    def close(self) -> None:
        """Leave."""
        self.over.set()
        self.stopped.set()
        self.link.close()

    def _connection(self) -> None:
        with self.kit.channel() as channel, contextlib.ExitStack() as closing:
            call = channel.stream_stream(CONNECT)
            alive = threading.Event()
            closing.callback(alive.set)
            link = self.link
            came = call(self._stream(link, alive), metadata=(("process", self.process),))
            closing.callback(came.cancel)
            hub = dict(came.initial_metadata()).get("process", "")
            if not hub:  # there is none: the call says why
                next(came, None)
                return
            if hub != self.hub and self.hub:  # a new process, which has no link with this one
                self._renew()
                self.hub = ""
                return
            self.hub = hub
            self.say("connected to the hub")
            for data in came:
                if content := link.came(data):
                    self._heard(content)

    def _stream(self, link: Link, ended: threading.Event) -> Iterator[bytes]:
        return link.stream(lambda: not ended.is_set() and not self.over.is_set())

    def _renew(self) -> None:
        """Forget what was between this process and a hub that is gone."""
        self.stopped.set()
        self.link.close()
        self.link, self.process = Link(), os.urandom(8).hex()

    def _heard(self, content: bytes) -> None:
        """One message of the hub: a request, the end of a segment, or a box from another site."""
        try:
            frame = Frame.decode(content)
            kind, segment = frame.head.get("kind"), str(frame.head.get("segment"))
            if kind == "hello":
                self.stopped.set()
                self.part, self.stopped = SitePart(self.name, self.load), threading.Event()
                self.segment = segment
            if kind in ("hello", "run") and segment == self.segment:
                inner = Frame.decode(frame.boxes["frame"])
                self.asked.put(Asked(kind, segment, self.part, self.stopped, inner))
            elif kind == "stop" and segment == self.segment:
                self.stopped.set()
            elif kind == "box" and segment == self.segment:
                self.part.came(content)
        except (FrameError, KeyError) as error:
            self.say(f"the hub sent what is no message: {error}")

    def _work(self) -> None:
        """Answer requests, one after another."""
        while not self.over.is_set():
            asked, link = self.asked.get(), self.link
            if asked.stopped.is_set():
                continue
            try:
                reply = self._answered(asked, link)
            except NodeRefused as refusal:
                reply = refusal.reply
            except Exception:  # said in full here, and to nobody else
                traceback.print_exc(file=sys.stderr)
                reason = f"site {self.name!r} is not set up: its own log says why"
                reply = request("refused", site=self.name, reason=reason)
            self._tell()
            head = {"kind": "replied", "segment": asked.segment}
            link.put(Frame(head, boxes={"reply": reply.encode()}).encode())

    def _answered(self, asked: Asked, link: Link) -> Frame:
        if asked.kind == "hello":
            return asked.part.hello(asked.frame)
        post = lambda job, present: GrpcOutbox(link, asked.segment, job, present)
        return asked.part.run(asked.frame, post, asked.stopped.is_set)

    def _speak(self) -> None:
        while not self.over.wait(HEARTBEAT):
            self._tell()

    def _tell(self) -> None:
        """A sign of life."""
        if self.segment and not self.stopped.is_set():
            head = {"kind": "told", "segment": self.segment}
            self.link.put(Frame(head, boxes={"told": self.part.signs.encode()}).encode())


def joined(kit: Kit, say: Callable[[str], None] = print) -> Site:
    """The site of a kit."""
    from fedmixtures.federation.node.node import Node
    from fedmixtures.federation.nvflare.kits import SITE_FILE

    path = kit.folder / "local" / SITE_FILE

    def load() -> Node:
        node = Node.load(path)
        if node.name != kit.name[0]:
            raise ValueError(f"{SITE_FILE} is of {node.name!r}, the certificate of {kit.name[0]!r}")
        return node

    load()  # say now what is wrong with it
    return Site(kit, load, say)
