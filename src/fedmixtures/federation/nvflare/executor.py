"""NVFlare at a site: carries parcels between the node and its neighbours, and knows no model.

The site's own configuration is read from ``local/fedmixtures.toml`` of its NVFlare workspace, never
from the job. Boxes from other sites lie in a mailbox by claimed source and round until the node has
opened them; whoever sent them, only the node says whether they are what they claim.
"""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedmixtures.federation.job import Job
from fedmixtures.federation.nvflare.kits import SITE_FILE
from fedmixtures.federation.nvflare.transport import (
    BODY,
    BOX_TOPIC,
    NOBODY,
    Heartbeat,
    Mailbox,
    Outbox,
)
from fedmixtures.federation.rounds import NodeRefused, Parcel, SiteRounds, asked
from fedmixtures.federation.wire.frames import Frame, FrameError, is_count, request

AHEAD = 2
LAST_WORDS = 30.0
"""Seconds the last boxes may take to arrive when the node itself is done."""
LOGGED_REFUSALS, SILENT_AFTER = 100, 3.0
MOST_WORDS = 120
"""Letters of a reason that the hub is told."""


class NodeExecutor(Executor):
    """Tasks ``hello`` and ``run`` of the controller, carried out by this site's `Node`."""

    def __init__(self):
        super().__init__()
        self.mailbox = Mailbox()
        self.heartbeat: Heartbeat | None = None
        self.node: Any = None
        self.job: Job | None = None
        self.round = -1
        self.in_node = 0.0

    def handle_event(self, event_type: str, fl_ctx: FLContext):
        """Listen to the other sites, and be heard by the hub, from the start of the run on."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            self.heartbeat = Heartbeat(engine, fl_ctx.get_identity_name())
            engine.register_aux_message_handler(BOX_TOPIC, self._receive)
        elif event_type == EventType.END_RUN and self.heartbeat is not None:
            self.heartbeat.close()

    def _receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A box from somewhere: kept if it could be for us."""
        del topic, fl_ctx
        data = request.get(BODY)
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
        kept = self.mailbox.put(source, t, box, proven)
        return make_reply(ReturnCode.OK if kept else ReturnCode.SERVICE_UNAVAILABLE)

    def _turned_away(self, source: str, data: Any, reason: str) -> Shareable:
        """Count it for the hub's eyes; note the first ones in the local log."""
        if self.heartbeat is not None:
            self.heartbeat.rejected[source] += 1
            self.heartbeat.reasons[source] = reason[:MOST_WORDS]
            if self.node is not None and self.heartbeat.rejected.total() <= LOGGED_REFUSALS:
                size = len(data) if isinstance(data, (bytes, bytearray)) else None
                self.node.log.write("turned away", claims=source, bytes=size, reason=reason)
        return make_reply(ReturnCode.BAD_REQUEST_DATA)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """One task of the controller."""
        try:
            frame = Frame.decode(shareable.get(BODY))
        except FrameError:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        try:
            if task_name == "hello":
                reply = self._hello(frame, fl_ctx)
            elif task_name == "run" and self.job is not None and self.heartbeat is not None:
                reply = self._run(self.job, self.heartbeat, frame, fl_ctx, abort_signal)
            else:
                return make_reply(ReturnCode.TASK_UNKNOWN)
        except NodeRefused as refusal:
            reply = refusal.reply
        result = make_reply(ReturnCode.OK)
        result[BODY] = reply.encode()
        return result

    def _hello(self, frame: Frame, fl_ctx: FLContext) -> Frame:
        """Load the site and show it the job; the compiler is warm afterwards."""
        name = fl_ctx.get_identity_name()
        if self.node is None:
            try:
                self.node = self._loaded(fl_ctx, name)
            except Exception:  # said in full in the site's own log, and to nobody else
                self.log_exception(fl_ctx, f"{SITE_FILE} or what it names cannot be used")
                reason = f"site {name!r} is not set up: its own log says why"
                return request("refused", site=name, reason=reason)
        reply = asked(self._ask, frame)
        self.job = Job.from_plain(frame.head["job"])
        if self.heartbeat is not None:
            self.heartbeat.left = reply.head["left"]
        return reply

    def _loaded(self, fl_ctx: FLContext, name: str) -> Any:
        from fedmixtures.federation.node.node import Node

        local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
        # NVFlare's simulator gives all sites the same folder, so they have files by name there.
        own = local / f"{name}.{SITE_FILE}"
        node = Node.load(own if own.is_file() else local / SITE_FILE)
        if node.name != name:
            raise ValueError(f"{SITE_FILE} is of {node.name!r}, the certificate of {name!r}")
        return node

    def _ask(self, frame: Frame) -> Frame:
        began = time.perf_counter()
        try:
            return self.node.answer(frame)
        finally:
            self.in_node += time.perf_counter() - began

    def _run(
        self, job: Job, heartbeat: Heartbeat, frame: Frame, fl_ctx: FLContext, abort: Signal
    ) -> Frame:
        """All rounds from the common one on."""
        head, name = frame.head, self.node.name
        site = SiteRounds(self._ask, job, name, head["present"])
        outbox = Outbox(fl_ctx.get_engine(), name, job.key, site.present - {name})
        began, self.in_node, patience = time.perf_counter(), 0.0, 0.0
        try:
            parcels = site.begin(head["round"])
            while not abort.triggered:
                self.round = heartbeat.round = site.round
                heartbeat.at = site.at
                outbox.send(parcels)
                if site.is_over:  # where nobody will speak to it, it holds and the others end
                    patience = LAST_WORDS
                    return site.result()
                parcels = self._one_round(site, heartbeat, head["deadline"], abort)
            return request("refused", reason="the run was ended")
        finally:
            self.node.log.write(
                "ran", job=job.key, rounds=self.round - head["round"],
                seconds=round(time.perf_counter() - began, 4), in_node=round(self.in_node, 4),
            )  # fmt: skip
            outbox.close(patience)
            heartbeat.say()

    def _one_round(
        self, site: SiteRounds, heartbeat: Heartbeat, deadline: float, abort: Signal
    ) -> list[Parcel]:
        """Wait for the neighbours that are there, then step; hold while nobody is heard."""
        t, end = site.round, time.monotonic() + deadline
        while not abort.triggered:
            if arrived := self.mailbox.up_to(t, site.site):
                for entry in site.take(arrived):
                    known = entry["source"] in site.job.n_components
                    source = entry["source"] if known else NOBODY
                    heartbeat.rejected[source] += 1
                    heartbeat.reasons[source] = entry["reason"][:MOST_WORDS]
            late = time.monotonic() > end
            if not site.missing or (late and site.fresh):
                parcels = site.step()
                if site.round > t:
                    heartbeat.waiting_for = []
                    return parcels
            self.mailbox.wait(0.2)
            if time.monotonic() > end - deadline + SILENT_AFTER:
                heartbeat.waiting_for = sorted(site.missing)
        return []
