"""Run a node program to its end: chunks of rounds, with a watch on the objective between them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import Layout, build_layout, on_host
from fedmixtures.engine.layout.shards import build_sharded_layout
from fedmixtures.engine.options import Options
from fedmixtures.engine.run import rounds
from fedmixtures.engine.run.cache import compilation_cache
from fedmixtures.engine.run.carriers import carrier_of
from fedmixtures.engine.run.checkpoint import Checkpoint, fingerprint
from fedmixtures.engine.run.one_shot import fit_by_conversation, fit_once
from fedmixtures.engine.run.watch import Trace, Trouble
from fedmixtures.engine.solution import Certificate, FitWarning, Solution, Status
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import (
    Conversation,
    HubProgram,
    Info,
    Meeting,
    Method,
    OneShot,
    Prepared,
)
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import precision

CHUNK_CELLS = 200_000
"""Rounds times nodes in one device call, at most: what its record may hold."""
LOOK_EVERY = 10
"""Rounds between two looks at whether the run has converged."""
FIRST_RATE, SMALLEST_RATE = 1.0, 1e-10
"""Where the search for a step size begins and gives up."""


def solve(
    method: Method,
    data: NodeData,
    network: Network,
    theta: Mixture | None = None,
    options: Options | None = None,
    n_components: int | Sequence[int] | None = None,
) -> Solution:
    """Run `method` on these nodes from the starting mixtures `theta` (stacked, NumPy).

    A method without rounds may do without a start, but must be told `n_components` of each node.
    """
    program, options = method.program(), options or Options()
    if isinstance(n_components, int):
        n_components = [n_components] * data.n_nodes
    if isinstance(program, OneShot | Conversation):
        if n_components is None:
            raise ValueError(
                f"`n_components` is missing: {type(method).__name__} makes its own starts. "
                "Give the number of components of each node."
            )
        with compilation_cache():
            if isinstance(program, OneShot):
                return fit_once(program, data, n_components, theta, options.seed)
            given = network, n_components, theta
            return fit_by_conversation(program, data, *given, options.seed, options.dtype)
    if isinstance(program, HubProgram):  # who neighbours whom plays no part
        nobody = np.zeros(0, dtype=np.int64)
        network = Network(data.labels, nobody, nobody, np.zeros(0))
    with precision(options.dtype), compilation_cache():
        run = _Run(program, data, network, theta, options)
        return run.descend() if program.adaptive else run.solve()


class _Run:
    """What stays the same during a run."""

    def __init__(self, program, data, network, theta, options: Options):
        self.given, self.data, self.network, self.options = program, data, network, options
        self.layout = self._layout()
        self.program = self._compiled(program.with_rate(1.0) if program.adaptive else program)
        self.carrier = carrier_of(program, self.layout, options.dtype)
        self.prepared = self._prepare(theta)
        self.initial = self.carrier.start(self.program, self.prepared)
        longest = max(1, CHUNK_CELLS // self.layout.n_places)
        often = LOOK_EVERY if options.tol > 0 else longest
        self.chunk = max(1, min(options.n_rounds, longest, options.report_every or often))
        self.converged = False
        self.capacity = 1 << (self.chunk - 1).bit_length()
        self.trace = Trace(program.pull_share, options.keep_nodes, program.descends)

    def _layout(self) -> Layout:
        o = self.options
        if len(o.devices) > 1 and not isinstance(self.given, HubProgram):
            return build_sharded_layout(self.data, self.network, o.devices, o.dtype, o.seed)
        return build_layout(self.data, self.network, o.dtype, o.block_size, o.seed)

    @cached_property
    def fingerprint(self) -> str:
        """Worked out on demand: it reads all rows."""
        o = self.options
        settings = o.seed, o.dtype, o.block_size, *([len(o.devices)] if o.devices else [])
        return fingerprint(self.given, self.data, self.network, *settings)

    def _prepare(self, theta: Mixture) -> Prepared:
        rows, degree = self.data.total_weights(), self.network.degree
        meeting = Meeting(self.data.labels, rows, degree, self.options.seed)
        return self.given.prepare(theta, meeting)

    def begin(self) -> tuple[Any, int]:
        """States and round to begin with: the start, or where a checkpoint left off."""
        checkpoint = self.options.resume
        if checkpoint is None:
            if self.options.on_chunk is not None:
                self.options.on_chunk(0, self.theta(self.initial))
            return self.initial, 0
        if checkpoint.fingerprint != self.fingerprint:
            raise ValueError(
                "`resume` comes from another run: rows, graph, method, settings or seed differ. "
                "Resume with what that run began with, or start anew."
            )
        self.trace = Trace.restored(
            checkpoint.trace,
            self.given.pull_share,
            self.options.keep_nodes,
            self.given.descends,
        )
        return checkpoint.restored(self.initial), checkpoint.round

    def _compiled(self, program: Method) -> Any:
        return rounds.dynamic(program, self.options.dtype)

    def solve(self) -> Solution:
        """Fixed step: chunk after chunk, back to the last good round if one goes wrong."""
        states, done = self.begin()
        try:
            while done < self.options.n_rounds:
                n = min(self.chunk, self.options.n_rounds - done)
                after, infos = self.run(self.program, states, done, n)
                trouble = self.trace.extend(infos, self.given.rate)
                if trouble is not None:
                    return self.diverged(trouble)
                states, done = after, done + n
                self.report(states, done, n)
                if self.settled(infos, states, done):
                    break
        except KeyboardInterrupt:
            if not self.options.keep_interrupted:
                raise
            return self.ended(states, done, Status.INTERRUPTED)
        return self.ended(states, done, Status.COMPLETED)

    def descend(self) -> Solution:
        r"""Backtracking: accept a round only if it lowers the objective enough.

        With step $\eta$ and $T_{loc}$ local steps, enough is $\|\Theta_t - \Theta_{t+1}\|^2 /
        (2 \eta T_{loc})$; for one local step that is the decrease Proposition 1 rests on. The step
        is halved until it is, and tried a little longer in the next round.
        """
        states, done = self.begin()
        rate = self.trace.next_rate(FIRST_RATE)
        try:
            while done < self.options.n_rounds and rate > SMALLEST_RATE:
                program = self._compiled(self.given.with_rate(rate))
                after, infos = self.run(program, states, done, 1)
                decrease = self.objective(infos) - self.objective(self.look(after, done + 1))
                if not decrease >= infos.moved.sum() / (2 * rate * self.given.n_local_steps):
                    rate *= 0.5
                    continue
                self.trace.extend(infos, rate)
                states, done = after, done + 1
                self.report(states, done, 1)
                rate = self.trace.next_rate(FIRST_RATE)
                if self.settled(infos, states, done):
                    break
        except KeyboardInterrupt:
            if not self.options.keep_interrupted:
                raise
            return self.ended(states, done, Status.INTERRUPTED)
        return self.ended(states, done, Status.COMPLETED)

    def settled(self, infos: Info, states, done: int) -> bool:
        """Whether the last of these rounds hardly changed any node's parameters."""
        if self.options.tol == 0 or done < self.given.opening_rounds:
            return False
        size = sum(
            np.square(part).reshape(len(part), -1).sum(1) for part in self.theta(states).parts
        )
        self.converged = bool((infos.moved[-1] <= self.options.tol**2 * size).all())
        return self.converged

    def objective(self, infos: Info) -> float:
        """The objective of the state a single round began with."""
        return float(infos.fit.sum() + self.given.pull_share * infos.pull.sum())

    def run(self, program, states, done: int, n: int) -> tuple[Any, Info]:
        """`n` rounds: the states after them, and what each of them showed, (rounds, nodes)."""
        after, infos = self.carrier.run(program, states, done, n, self.capacity)
        # The record leads with rounds; gather wants (blocks, nodes) in front.
        in_front = jax.tree.map(lambda part: np.moveaxis(on_host(part)[:n], 0, -1), infos)
        per_node = rounds.gather(in_front, self.layout)
        return after, jax.tree.map(lambda part: np.ascontiguousarray(part.T), per_node)

    def look(self, states, done: int) -> Info:
        """What can be seen of these states: a round that is run and forgotten.

        One round more in a whole run is cheaper than compiling a second program for it.
        """
        return self.run(self.program, states, done, 1)[1]

    def theta(self, states) -> Mixture:
        """The mixtures of all nodes in the order of their labels, float64 NumPy."""
        per_group = self.carrier.results(self.program, states)
        return rounds.gather(per_group, self.layout).to_numpy()

    def tell(self, first: int, last: int) -> None:
        """The records of these rounds."""
        if self.options.on_round is not None:
            history = self.trace.history(last - 1)
            for t in range(first, last):
                self.options.on_round(history.record(t))

    def report(self, states, done: int, n: int) -> None:
        """Tell whoever listens."""
        self.tell(done - n, done)
        if self.options.on_chunk is not None:
            self.options.on_chunk(done, self.theta(states))
        if self.options.on_checkpoint is not None:
            leaves = tuple(on_host(leaf) for leaf in jax.tree.leaves(states))
            arrays = self.trace.arrays()
            self.options.on_checkpoint(Checkpoint(done, self.fingerprint, leaves, arrays))

    def ended(self, states, done: int, status: Status) -> Solution:
        """Look at the last states too; they may be the first bad ones."""
        trouble = self.trace.extend(self.look(states, done), self.given.rate)
        if trouble is not None and not self.given.adaptive:
            return self.diverged(trouble)
        message = ""
        if status is Status.INTERRUPTED:  # whoever listens may be who interrupted: tell no more
            message = f"interrupted; returning round {done} of {self.options.n_rounds}."
            warnings.warn(message, FitWarning, stacklevel=2)
        else:
            self.tell(done, done + 1)
        return self.solution(states, done, status, message)

    def diverged(self, trouble: Trouble) -> Solution:
        """Go back to the last good round; rounds are repeatable, so it is simply run again."""
        good = self.trace.best_before(trouble.round)
        states, done = self.initial, 0
        while done < good:
            n = min(self.chunk, good - done)
            states, _ = self.run(self.program, states, done, n)
            done += n
        label = _checks.plain(self.data.labels[trouble.node])
        degree = float(self.network.weighted_degree[trouble.node])
        message = (
            f"diverged in round {trouble.round} at node {label!r}: {trouble.cause}; returning "
            f"round {good}. {self.given.remedy(degree)}"
        )
        warnings.warn(message, FitWarning, stacklevel=2)
        return self.solution(states, good, Status.DIVERGED, message)

    def solution(self, states, done: int, status: Status, message: str = "") -> Solution:
        """Put the result together."""
        history = self.trace.history(done)
        return Solution(
            self.data.labels,
            self.theta(states),
            history,
            status,
            done,
            message,
            Certificate.of(history) if self.given.certifiable else None,
            self.carrier.traffic(self.program, states, done, self.prepared, self.network),
            self.carrier.account(self.program, states, self.network),
            self.layout.shards,
            self.converged,
        )
