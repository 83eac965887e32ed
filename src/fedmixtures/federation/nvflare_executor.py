"""NVFlare at a site: carries boxes between the node and its neighbours, and knows no model.

The site's own configuration is read from ``local/fedmixtures.toml`` of its NVFlare workspace, never
from the job. Boxes from other sites lie in an inbox by claimed source and round until the node has
opened them; whoever sent them, only the node says whether they are what they claim.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedmixtures.federation.frames import Frame, FrameError, is_count
from fedmixtures.federation.job import Job
from fedmixtures.federation.protocol import request

SITE_FILE = "fedmixtures.toml"
BOX_TOPIC, PROGRESS_TOPIC = "fedmixtures.box", "fedmixtures.progress"
BODY = "frame"
MOST_WAITING = 4096
CANDIDATES = 4
"""Boxes kept per claimed source and round: anyone may write in anyone's name."""
SEND_TIMEOUT, HEARTBEAT = 5.0, 1.0


class Inbox:
    """Boxes that wait, by claimed source and round; bounded."""

    def __init__(self):
        self.arrived = threading.Condition()
        self._boxes: dict[tuple[str, int], list[bytes]] = {}

    def put(self, source: str, round: int, box: bytes) -> bool:
        """Keep a box; False if there are too many already."""
        with self.arrived:
            waiting = self._boxes.setdefault((source, round), [])
            if box in waiting:
                return True
            if len(waiting) >= CANDIDATES or len(self._boxes) > MOST_WAITING:
                return False
            waiting.append(box)
            self.arrived.notify_all()
            return True

    def up_to(self, round: int) -> list[tuple[str, int, bytes]]:
        """Take out all boxes of this round and earlier ones."""
        with self.arrived:
            keys = sorted(key for key in self._boxes if key[1] <= round)
            return [(*key, box) for key in keys for box in self._boxes.pop(key)]

    def wait(self, seconds: float) -> None:
        """Until something arrives, or for so long."""
        with self.arrived:
            self.arrived.wait(seconds)


class NodeExecutor(Executor):
    """Tasks ``hello`` and ``run`` of the controller, carried out by this site's `Node`."""

    def __init__(self):
        super().__init__()
        self.inbox = Inbox()
        self.node: Any = None
        self.job: Job | None = None
        self.round = -1
        self.ahead = 2

    def handle_event(self, event_type: str, fl_ctx: FLContext):
        """Listen to the other sites from the start of the run on."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(BOX_TOPIC, self._receive)

    def _receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A box from somewhere: kept if it could be for us."""
        del topic, fl_ctx
        try:
            frame = Frame.decode(request.get(BODY))
        except FrameError:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        head, box = frame.head, frame.boxes.get("box")
        source, t = head.get("source"), head.get("round")
        if not isinstance(source, str) or not is_count(t) or box is None:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        job = self.job
        if job is not None and (
            source not in job.n_components or t > max(self.round, 0) + self.ahead + job.reach
        ):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        kept = self.inbox.put(source, t, box)
        return make_reply(ReturnCode.OK if kept else ReturnCode.SERVICE_UNAVAILABLE)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """One task of the controller."""
        try:
            frame = Frame.decode(shareable.get(BODY))
        except FrameError:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        if task_name == "hello":
            reply = self._hello(frame, fl_ctx)
        elif task_name == "run":
            reply = self._run(frame, fl_ctx, abort_signal)
        else:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        result = make_reply(ReturnCode.OK)
        result[BODY] = reply.encode()
        return result

    def _hello(self, frame: Frame, fl_ctx: FLContext) -> Frame:
        """Load the site and show it the job; the compiler is warm afterwards."""
        from fedmixtures.federation.node import Node

        if self.node is None:
            workspace = fl_ctx.get_engine().get_workspace()
            self.node = Node.load(Path(workspace.get_site_config_dir()) / SITE_FILE)
        reply = self._ask(frame)
        if reply.head["kind"] == "hello":
            self.job = Job.from_plain(frame.head["job"])
        return reply

    def _ask(self, frame: Frame) -> Frame:
        return Frame.decode(self.node.handle(frame.encode()))

    def _run(self, frame: Frame, fl_ctx: FLContext, abort_signal: Signal) -> Frame:
        """All rounds from the common one on."""
        job, head = self.job, frame.head
        neighbours = set(job.neighbours(self.node.name)) & set(head["present"])
        carrier = _Carrier(self, fl_ctx, neighbours)
        try:
            reply = self._ask(request("share", job=job.key, round=head["round"]))
            while reply.head["kind"] != "refused" and not abort_signal.triggered:
                self.round = reply.head["round"]
                carrier.send(reply)
                if self.round >= job.n_rounds:
                    return self._ask(request("result", job=job.key))
                reply = self._one_round(carrier, neighbours, head["deadline"], abort_signal)
            return reply
        finally:
            carrier.close()

    def _one_round(self, carrier: _Carrier, neighbours: set[str], deadline: float, abort: Signal):
        """Wait for the neighbours that are there, then step; hold while nobody is heard."""
        t, key = self.round, self.job.key
        end, fresh = time.monotonic() + deadline, set()
        while not abort.triggered:
            boxes = self.inbox.up_to(t)
            if boxes:
                reply = self._ask(_with_boxes(request("take", job=key, round=t), boxes))
                if reply.head["kind"] == "refused":
                    return reply
                fresh = set(reply.head["fresh"])
                carrier.tell(rejected=[entry["source"] for entry in reply.head["rejected"]])
            late = time.monotonic() > end
            if neighbours <= fresh or (late and fresh):
                reply = self._ask(request("step", job=key, round=t, messages=[]))
                if reply.head["kind"] == "refused" or not reply.head["held"]:
                    return reply
            carrier.heartbeat(t, sorted(neighbours - fresh))
            self.inbox.wait(0.2)
        return request("refused", reason="the run was ended")


class _Carrier:
    """Sends boxes to neighbours until they are acknowledged, and the round reached to the hub."""

    def __init__(self, executor: NodeExecutor, fl_ctx: FLContext, present: set[str]):
        self.executor, self.fl_ctx, self.present = executor, fl_ctx, present
        self.engine = fl_ctx.get_engine()
        self.pool = ThreadPoolExecutor(max_workers=max(1, len(present)))
        self.closed = threading.Event()
        self.last = 0.0
        self.rejected: list[str] = []

    def send(self, reply: Frame) -> None:
        """The boxes of a reply to the neighbours that are there; nobody waits for it."""
        name, job = self.executor.node.name, self.executor.job
        for entry in reply.head.get("boxes", ()):
            if entry["destination"] in self.present:
                head = {"source": name, "round": entry["round"], "job": job.key}
                frame = Frame(head, boxes={"box": reply.boxes[entry["box"]]}).encode()
                self.pool.submit(self._until_acknowledged, entry["destination"], frame)
        self.last = 0.0
        self.heartbeat(self.executor.round, [])

    def _until_acknowledged(self, destination: str, frame: bytes) -> None:
        while not self.closed.is_set():
            message = Shareable()
            message[BODY] = frame
            replies = self.engine.send_aux_request(
                [destination], BOX_TOPIC, message, SEND_TIMEOUT, self.fl_ctx, optional=True
            )
            reply = replies.get(destination)
            if reply is not None and reply.get_return_code() == ReturnCode.OK:
                return
            self.closed.wait(0.3)

    def tell(self, rejected: list[str]) -> None:
        """Remember whose messages were refused, for the next word to the hub."""
        self.rejected += rejected

    def heartbeat(self, t: int, waiting_for: list[str]) -> None:
        """Tell the hub the round and who is silent; nothing else."""
        now = time.monotonic()
        if now - self.last < HEARTBEAT:
            return
        self.last = now
        message = Shareable()
        head = {"round": t, "waiting_for": waiting_for, "rejected": self.rejected}
        self.rejected = []
        message[BODY] = Frame({"site": self.executor.node.name, **head}).encode()
        self.pool.submit(
            self.engine.send_aux_request, [], PROGRESS_TOPIC, message, SEND_TIMEOUT, self.fl_ctx,
            optional=True,
        )  # fmt: skip

    def close(self) -> None:
        """Let what is under way finish, for as long as a message may take."""
        self.pool.shutdown(wait=True) if not self.closed.is_set() else None
        self.closed.set()


def _with_boxes(frame: Frame, boxes: list[tuple[str, int, bytes]]) -> Frame:
    listed = [{"source": s, "round": r, "box": f"b{i}"} for i, (s, r, _) in enumerate(boxes)]
    return Frame(
        {**frame.head, "messages": listed}, boxes={f"b{i}": b for i, (*_, b) in enumerate(boxes)}
    )
