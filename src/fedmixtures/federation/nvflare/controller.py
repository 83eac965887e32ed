"""NVFlare at the hub: who takes part, from which round, who has fallen silent. It sees no model.

One run of this controller is one segment of a fit. It ends when all sites are done, when one
refuses, or when one is lost; what happened is left in ``outcome.json`` of the run's folder, and the
driver decides how to go on. This module imports no JAX.
"""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import threading
import time
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
from fedmixtures.federation.nvflare.transport import BODY, NOBODY, PROGRESS_TOPIC
from fedmixtures.federation.rounds import common_round, hello
from fedmixtures.federation.wire.frames import Frame, FrameError, is_count, request

OUTCOME, RESULTS = "outcome.json", "sealed_results"
KNOWN_STEPS = ("models", "network", "sums", "others")


class RoundsController(Controller):
    """Hello, the largest round common to all, run; the end when a site is lost.

    Parameters
    ----------
    signed
        The signed job as plain JSON.
    hello_timeout
        Seconds a site may take to get ready: it compiles then, and gives signs of life.
    deadline
        Seconds a node waits for a neighbour's model before it uses the last one again.
    lost_after
        Seconds without a sign of life after which a site counts as lost; less than `deadline`, so
        that nobody has gone on with old models when a segment ends.
    start_timeout
        Seconds a site's process may take to give its first sign of life.
    """

    def __init__(
        self,
        signed: dict[str, Any],
        hello_timeout: int = 1800,
        deadline: float = 60.0,
        lost_after: float = 20.0,
        start_timeout: float = 90.0,
    ):
        super().__init__(task_check_period=0.1)
        self.signed = SignedJob.from_plain(signed)
        self.job = self.signed.job
        self.hello_timeout, self.deadline = hello_timeout, deadline
        self.lost_after, self.start_timeout = lost_after, start_timeout
        self.replies: dict[str, Frame] = {}
        self.seen: dict[str, float] = {}
        self.progress: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def start_controller(self, fl_ctx: FLContext):
        """Listen to the sites' progress."""
        engine = fl_ctx.get_engine()
        engine.register_aux_message_handler(PROGRESS_TOPIC, self._on_progress)
        self.folder = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id()))

    def stop_controller(self, fl_ctx: FLContext):
        """Nothing to clean up."""

    def handle_event(self, event_type: str, fl_ctx: FLContext):
        """Show the progress to whoever asks for statistics."""
        super().handle_event(event_type, fl_ctx)
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, None)
            if collector:
                with self.lock:
                    collector.add_info("fedmixtures", json.loads(json.dumps(self.progress)))

    def _on_progress(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        del topic, fl_ctx
        try:
            head = Frame.decode(request.get(BODY), 2**16).head
        except FrameError:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        site, t = head.get("site"), head.get("round")
        if site not in self.job.n_components or not is_count(t):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        known, refused = (*self.job.n_components, NOBODY), head.get("rejected")
        left, reasons = head.get("left"), head.get("reasons")
        reasons = reasons if isinstance(reasons, dict) else {}
        waiting, refused = head.get("waiting_for"), refused if isinstance(refused, dict) else {}
        how = {
            "round": t,
            "waiting_for": [s for s in waiting if s in known] if isinstance(waiting, list) else [],
            "rejected": {s: n for s, n in refused.items() if s in known and is_count(n)},
            "at": head["at"] if head.get("at") in KNOWN_STEPS else "",
            "left": left if isinstance(left, list) and all(map(is_count, left)) else [],
            "reasons": {s: str(r)[:200] for s, r in reasons.items() if s in known},
        }
        with self.lock:
            self.seen[site], self.progress[site] = time.monotonic(), how
        return make_reply(ReturnCode.OK)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext):
        """One segment."""
        outcome = self._segment(abort_signal, fl_ctx)
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        with self.lock:
            outcome["progress"] = self.progress
        (self.folder / OUTCOME).write_text(json.dumps(outcome))
        self.log_info(fl_ctx, f"segment ended: {outcome['outcome']}")

    def _segment(self, abort: Signal, fl_ctx: FLContext) -> dict[str, Any]:
        here = [c for c in fl_ctx.get_engine().get_clients() if c.name in self.job.n_components]
        begun = time.time()
        lost = self._ask_all("hello", hello(self.signed), here, abort, fl_ctx, self.hello_timeout)
        if refused := self._refused():
            return {"outcome": "refused", "reasons": refused}
        if lost or abort.triggered:
            return {"outcome": "lost", "sites": lost}
        gone = {name for reply in self.replies.values() for name in reply.head.get("gone", ())}
        here = [client for client in here if client.name not in gone]
        present = [client.name for client in here]
        common = common_round({name: self.replies[name] for name in present})
        ready = time.time()
        run = request("run", round=common, present=present, deadline=self.deadline)
        lost = self._ask_all("run", run, here, abort, fl_ctx, 0)
        timing = {"first_round": common, "ready_s": ready - begun, "rounds_s": time.time() - ready}
        if refused := self._refused():
            return {"outcome": "refused", "reasons": refused, **timing}
        if lost or abort.triggered:
            return {"outcome": "lost", "sites": lost, **timing}
        self._keep_results()
        replies = self.replies.items()
        held = {site: reply.head["round"] for site, reply in replies if not reply.head.get("over")}
        return {"outcome": "completed", "present": present, "held": held, **timing}

    def _refused(self) -> dict[str, str]:
        return {
            site: str(reply.head.get("reason"))
            for site, reply in self.replies.items()
            if reply.head.get("kind") == "refused"
        }

    def _ask_all(
        self, name: str, frame: Frame, here: list[Client], abort: Signal, fl_ctx: FLContext,
        timeout: int,
    ) -> list[str]:  # fmt: skip
        """Give a task to all sites and wait for all; returns the sites that were lost."""
        data = Shareable()
        data[BODY] = frame.encode()
        self.replies = {}
        now = time.monotonic()
        task = Task(name, data=data, timeout=timeout, result_received_cb=self._on_result)
        self.broadcast(task, fl_ctx, targets=here, min_responses=len(here))
        names = {client.name for client in here}
        while not abort.triggered and set(self.replies) != names and not self._refused():
            missing = names - set(self.replies)
            if lost := sorted(site for site in missing if self._is_lost(site, now)):
                return lost
            if timeout and time.monotonic() - now > timeout:
                return sorted(missing)
            time.sleep(0.1)
        return []

    def _is_lost(self, site: str, asked: float) -> bool:
        """Silent for too long, or never heard at all since its process should have started."""
        with self.lock:
            seen = self.seen.get(site)
        silent = time.monotonic() - (asked if seen is None else max(seen, asked))
        return silent > (self.start_timeout if seen is None else self.lost_after)

    def _on_result(self, client_task: ClientTask, fl_ctx: FLContext):
        result, name = client_task.result, client_task.client.name
        try:
            if result.get_return_code() != ReturnCode.OK:
                raise FrameError(f"the site failed: {result.get_return_code()}")
            reply = Frame.decode(result.get(BODY))
            _check_reply(reply)
        except FrameError as error:
            reply = request("refused", reason=str(error))
        self.replies[name] = reply
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
        for site, reply in self.replies.items():
            (folder / f"{site}.fmx").write_bytes(reply.encode())


def _check_reply(reply: Frame) -> None:
    """What this controller reads of a site's reply."""
    kind, rounds = reply.head.get("kind"), reply.head.get("rounds")
    if kind == "hello" and not (
        isinstance(rounds, list) and 0 in rounds and all(is_count(t) for t in rounds)
    ):
        raise FrameError("the site names no rounds that it can go back to")
    if kind == "result" and not is_count(reply.head.get("round")):
        raise FrameError("the site does not say after which round it stands")
    if kind not in ("hello", "result", "refused"):
        raise FrameError(f"the site answers {str(kind)[:20]!r}")
