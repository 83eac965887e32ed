"""NVFlare at the hub: carries one segment of a fit (`federation/segment.py`) to the sites and back.

What happened is left in ``outcome.json`` of the run's folder, and the driver decides how to go on.
This module imports no JAX.
"""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.widgets.info_collector import InfoCollector

from fedmixtures.federation.job import SignedJob
from fedmixtures.federation.nvflare.transport import BODY, PROGRESS_TOPIC
from fedmixtures.federation.segment import Segment
from fedmixtures.federation.wire.frames import Frame

OUTCOME, RESULTS = "outcome.json", "sealed_results"


class RoundsController(Controller):
    """One segment of a fit.

    Parameters
    ----------
    signed
        The signed job as plain JSON.
    how
        Times, and who is left out, as `Segment` has them.
    """

    def __init__(self, signed: dict[str, Any], **how: Any):
        super().__init__(task_check_period=0.1)
        self.segment = Segment(SignedJob.from_plain(signed), self._tell, **how)
        self.fl_ctx: FLContext | None = None

    def start_controller(self, fl_ctx: FLContext):
        """Listen to the sites' progress."""
        engine = fl_ctx.get_engine()
        engine.register_aux_message_handler(PROGRESS_TOPIC, self._on_progress)
        self.folder = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id()))

    def stop_controller(self, fl_ctx: FLContext):
        """Do nothing: a controller holds nothing that outlives its job."""

    def handle_event(self, event_type: str, fl_ctx: FLContext):
        """Show the progress to whoever asks for statistics."""
        super().handle_event(event_type, fl_ctx)
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, None)
            if collector:
                collector.add_info("fedmixtures", self.segment.progress)

    def _on_progress(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        del topic, fl_ctx
        known = self.segment.told(request.get(BODY))
        return make_reply(ReturnCode.OK if known else ReturnCode.BAD_REQUEST_DATA)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext):
        """One segment."""
        self.fl_ctx, here = fl_ctx, [client.name for client in self._clients(fl_ctx)]
        outcome = self.segment.run(here, lambda: bool(abort_signal.triggered))
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        if outcome["outcome"] == "completed":
            self._keep_results()
        (self.folder / OUTCOME).write_text(json.dumps(outcome))
        self.log_info(fl_ctx, f"segment ended: {outcome['outcome']}")

    def _clients(self, fl_ctx: FLContext) -> list[Client]:
        return fl_ctx.get_engine().get_clients()

    def _tell(self, name: str, frame: Frame, sites: Sequence[str]) -> None:
        assert self.fl_ctx is not None
        data = Shareable()
        data[BODY] = frame.encode()
        targets = [client for client in self._clients(self.fl_ctx) if client.name in sites]
        # The segment itself knows how long a site may take.
        task = Task(name, data=data, timeout=0, result_received_cb=self._on_result)
        self.broadcast(task, self.fl_ctx, targets=targets, min_responses=len(targets))

    def _on_result(self, client_task: ClientTask, fl_ctx: FLContext):
        result, name = client_task.result, client_task.client.name
        good = result.get_return_code() == ReturnCode.OK
        self.segment.replied(name, result.get(BODY) if good else None)
        client_task.result = None

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable,
        fl_ctx: FLContext,
    ):  # fmt: skip
        """A site that answers after its segment has ended."""
        self.log_info(fl_ctx, f"late result of {task_name} from {client.name}")

    def _keep_results(self) -> None:
        """Boxes for the collector, as they came: the driver downloads them with the run."""
        folder = self.folder / RESULTS
        folder.mkdir(exist_ok=True)
        for site, content in self.segment.results().items():
            (folder / f"{site}.fmx").write_bytes(content)
