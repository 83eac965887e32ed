"""Run a method without rounds: by turns, as a protocol, or all at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.layout.blocks import protocol_block
from fedmixtures.engine.options import Options
from fedmixtures.engine.run.in_process import BYTES, InProcess
from fedmixtures.engine.run.stages import Stages
from fedmixtures.engine.run.watch import Checkpoint, Progress, fingerprint
from fedmixtures.engine.solution import FitWarning, History, Shards, Solution, Status, Traffic
from fedmixtures.graph.network import Network
from fedmixtures.kernels.arrays import numpy_rules
from fedmixtures.methods.base import Diagnostics, OneShot, Outcome
from fedmixtures.methods.protocol import Block, Protocol, Request, StageResults, requests_of
from fedmixtures.mixture.mixture import Mixture


def run_protocol(
    protocol: Protocol,
    block: Block,
    reply: Callable[[Request], Any],
    results: StageResults | None = None,
) -> Outcome:
    """Run a protocol to its end; `reply` answers its requests, `results` keeps its stages."""
    requests, answer = requests_of(protocol.run(block), results), None
    while True:
        try:
            request = requests.send(answer)
        except StopIteration as end:
            return end.value
        answer = reply(request)
        del request  # its arrays


class ProtocolRun:
    """A protocol on these nodes, in one block; messages are counted as if they were sent."""

    def __init__(
        self,
        protocol: Protocol,
        data: NodeData,
        network: Network,
        n_components: Sequence[int],
        theta: Mixture | None,
        options: Options,
    ):
        self.protocol, self.data, self.network, self.options = protocol, data, network, options
        self.n_components, self.theta = n_components, theta
        self.unseen: list[dict[str, Any]] = []  # records of exchanges that are not shown yet
        self.shards: Shards | None = None

    def solution(self) -> Solution:
        """Exchange after exchange; on Ctrl-C the last stage, if that is to be kept."""
        begun = self._begun()
        with numpy_rules(self.options.dtype):
            rest = self.options.seed, self.options.dtype, self.theta
            self.block = protocol_block(self.data, self.network, self.n_components, *rest)
            self._begin(begun)
            try:
                outcome = self._outcome()
            except KeyboardInterrupt:
                last = self._last()
                if not self.options.keep_interrupted or last is None:
                    raise
                return self._interrupted(*last)
        self._show(self.unseen)
        outcome = replace(outcome, theta=outcome.theta.to_numpy())
        diagnostics = diagnostics_of_block(outcome, self.block, self.network)
        traffic = self.answers.traffic()
        solution = _solution(outcome, self.data, traffic, diagnostics, self.options.watch)
        return replace(solution, shards=self.shards)

    def _begin(self, begun: dict[str, tuple[Any, list[np.ndarray]]]) -> None:
        """Make ready to run, from stages that have been finished before."""
        self.answers = InProcess(self.block)
        self.stages = self._stages(self.answers, begun, self._stage_ended)

    def _stages(self, counter: Any, begun: dict[str, Any], ended: Callable[[], Any]) -> Stages:
        kept = self.options.checkpoint is not None or self.options.keep_interrupted
        return Stages(self.protocol.keeps, counter, kept=kept, begun=begun, ended=ended)

    def _outcome(self) -> Outcome:
        return run_protocol(self.protocol, self.block, self._reply, self.stages)

    def _answered(self, request: Any) -> Any:
        return self.answers(request)

    def _reply(self, request: Any) -> Any:
        before, answer = self.answers.rounds, self._answered(request)
        if self.answers.rounds == before:  # nothing was sent
            return answer
        if self.options.announce is not None:
            self.options.announce(f"exchange {self.answers.rounds}")
        if self.options.watch is not None:
            self.unseen.append({"round": self.answers.rounds, "step": self.answers.step})
            if len(self.unseen) >= (self.options.report_every or 1):
                self._show(self.unseen)
        return answer

    def _show(self, records: list[dict[str, Any]]) -> None:
        if self.options.watch is not None and records:
            self.unseen = []
            self.options.watch(Progress(self.answers.rounds, records, False, _no_mixtures))

    @cached_property
    def fingerprint(self) -> str:
        """Worked out on demand: it reads all rows."""
        start = () if self.theta is None else self.theta.parts
        given = self.protocol, self.data, self.network
        return fingerprint(*given, *self._settings(), arrays=start)

    def _settings(self) -> tuple[Any, ...]:
        return self.options.seed, self.options.dtype, list(self.n_components)

    def _stage_ended(self) -> None:
        """Hand over what has been reached, to go on from."""
        if self.options.checkpoint is None:
            return
        done = self._done()
        arrays = [array for _, arrays in done.values() for array in arrays]
        forms = ((name, form, len(arrays)) for name, (form, arrays) in done.items())
        reached = self.answers.rounds, self.fingerprint
        self.options.checkpoint(Checkpoint(*reached, tuple(arrays), {}, tuple(forms)))

    def _begun(self) -> dict[str, tuple[Any, list[np.ndarray]]]:
        """The stages that the run which is gone on with has finished."""
        checkpoint, found = self.options.resume, {}
        if checkpoint is None:
            return found
        checkpoint.check(self.fingerprint)
        arrays = iter(checkpoint.states)
        for name, form, n in checkpoint.stages:
            found[name] = form, [next(arrays) for _ in range(n)]
        return found

    def _done(self) -> dict[str, tuple[Any, list[np.ndarray]]]:
        """The stages that are finished."""
        return self.stages.done

    def _last(self) -> tuple[str, Callable[[], Mixture]] | None:
        """The last stage that mixtures can be read from, and what reads them."""
        return next(reversed(self.stages.readers.items()), None)

    def _interrupted(self, step: str, mixtures: Callable[[], Mixture]) -> Solution:
        message = f"interrupted; returning the mixtures of the step {step!r}."
        outcome = Outcome(mixtures().to_numpy(), message)
        solution = _solution(outcome, self.data, self.answers.traffic(), None, None)
        return replace(solution, status=Status.INTERRUPTED)


def diagnostics_of_block(outcome: Outcome, block: Block, network: Network) -> Diagnostics | None:
    """What the outcome tells, by node and by edge (source's view, then target's); None: nothing."""
    if not (outcome.nodes or outcome.edges):
        return None
    values = {name: np.asarray(of) for name, of in outcome.edges.items()}
    nodes = {name: np.asarray(of) for name, of in outcome.nodes.items()}
    # Networks store the smaller position as the source, and edges in order.
    at_source = np.flatnonzero(block.receiver < block.sender)
    key = block.receiver[at_source] * network.n_nodes + block.sender[at_source]
    at_source = at_source[np.argsort(key)]
    both = np.stack([at_source, block.reverse[at_source]], axis=1)
    return Diagnostics(nodes, {name: of[both] for name, of in values.items()})


def fit_once(
    method: OneShot,
    data: NodeData,
    n_components: Sequence[int],
    theta: Mixture | None,
    options: Options,
) -> Solution:
    """Fit all nodes; the history has one entry, the fit of the result, which `watch` is shown."""
    outcome = method.fit(data, n_components, theta, options.seed)
    bytes_of = lambda numbers: dict(
        zip(data.labels, (BYTES * np.broadcast_to(numbers, data.n_nodes)).tolist(), strict=True)
    )
    sent, received = bytes_of(outcome.sent), bytes_of(outcome.received)
    traffic = Traffic(0, sent, recipients=method.recipients, setup=sent, received=received)
    return _solution(outcome, data, traffic, None, options.watch)


def _no_mixtures() -> Mixture:
    raise ValueError("a protocol has mixtures at its end. Read them where `final` is true.")


def _solution(
    outcome: Outcome,
    data: NodeData,
    traffic: Traffic,
    diagnostics: Diagnostics | None,
    watch: Callable[[Progress], Any] | None,
) -> Solution:
    if outcome.message:
        warnings.warn(outcome.message, FitWarning, stacklevel=5)
    open_end = np.full(1, np.nan)
    losses = Evaluator(data).node_losses(outcome.theta)
    total, nothing = np.array([losses.sum()]), np.zeros(1)
    nodes = losses[None], np.zeros_like(losses)[None]
    history = History(total, nothing, open_end, open_end, *nodes)
    if watch is not None:
        record = history.record(0) | {"round": traffic.n_rounds}
        watch(Progress(traffic.n_rounds, [record], True, lambda: outcome.theta))
    return Solution(
        data.labels,
        outcome.theta,
        history,
        Status.COMPLETED,
        traffic.n_rounds,
        outcome.message,
        None,
        traffic,
        diagnostics,
        converged=not outcome.message,
        levels=outcome.levels,
        joined=outcome.joined,
    )
