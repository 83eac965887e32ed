"""NVFlare at a site: carries parcels between the node and its neighbours, and knows no model.

The site's own configuration is read from ``local/fedmixtures.toml`` of its NVFlare workspace, never
from the job. Boxes from other sites lie in a mailbox by claimed source and round until the node has
opened them; whoever sent them, only the node says whether they are what they claim.
"""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedmixtures.federation.nvflare.kits import SITE_FILE
from fedmixtures.federation.nvflare.transport import BODY, BOX_TOPIC, AuxOutbox, Heartbeat
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.federation.site_part import SitePart
from fedmixtures.federation.wire.frames import Frame, FrameError, request


class NodeExecutor(Executor):
    """Tasks ``hello`` and ``run`` of the controller, carried out by this site's `Node`."""

    def __init__(self):
        super().__init__()
        self.part: SitePart | None = None
        self.heartbeat: Heartbeat | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext):
        """Listen to the other sites, and be heard by the hub, from the start of the run on."""
        if event_type == EventType.START_RUN:
            engine, name = fl_ctx.get_engine(), fl_ctx.get_identity_name()
            local = Path(engine.get_workspace().get_site_config_dir())
            self.part = SitePart(name, lambda: _loaded(local, name))
            self.heartbeat = Heartbeat(engine, self.part.signs)
            engine.register_aux_message_handler(BOX_TOPIC, self._receive)
        elif event_type == EventType.END_RUN and self.heartbeat is not None:
            self.heartbeat.close()

    def _receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A box from somewhere: kept if it could be for us."""
        del topic, fl_ctx
        kept = self.part is not None and self.part.came(request.get(BODY))
        return make_reply(ReturnCode.OK if kept else ReturnCode.SERVICE_UNAVAILABLE)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """One task of the controller."""
        try:
            frame = Frame.decode(shareable.get(BODY))
        except FrameError:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        if self.part is None or self.heartbeat is None or task_name not in ("hello", "run"):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            if task_name == "hello":
                reply = self._hello(self.part, frame, fl_ctx)
            else:
                reply = self._run(self.part, self.heartbeat, frame, fl_ctx, abort_signal)
        except NodeRefused as refusal:
            reply = refusal.reply
        result = make_reply(ReturnCode.OK)
        result[BODY] = reply.encode()
        return result

    def _hello(self, part: SitePart, frame: Frame, fl_ctx: FLContext) -> Frame:
        try:
            return part.hello(frame)
        except NodeRefused:
            raise
        except Exception:  # said in full in the site's own log, and to nobody else
            self.log_exception(fl_ctx, f"{SITE_FILE} or what it names cannot be used")
            name = part.signs.site
            reason = f"site {name!r} is not set up: its own log says why"
            return request("refused", site=name, reason=reason)

    def _run(
        self, part: SitePart, heartbeat: Heartbeat, frame: Frame, fl_ctx: FLContext, abort: Signal
    ) -> Frame:
        engine, name = fl_ctx.get_engine(), part.signs.site
        post = lambda job, present: AuxOutbox(engine, name, job.key, present)
        try:
            return part.run(frame, post, lambda: bool(abort.triggered))
        finally:
            heartbeat.say()


def _loaded(local: Path, name: str) -> Any:
    """The node that the site's own file describes."""
    from fedmixtures.federation.node.node import Node

    # NVFlare's simulator gives all sites the same folder, so they have files by name there.
    own = local / f"{name}.{SITE_FILE}"
    node = Node.load(own if own.is_file() else local / SITE_FILE)
    if node.name != name:
        raise ValueError(f"{SITE_FILE} is of {node.name!r}, the certificate of {name!r}")
    return node
