"""The loop of a run: chunks of rounds, with a watch on the objective between them."""

from __future__ import annotations

import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import build_layout, on_host
from fedmixtures.engine.layout.shards import build_sharded_layout
from fedmixtures.engine.options import Options
from fedmixtures.engine.run.rounds import HubRunner, NeighbourRunner
from fedmixtures.engine.run.runner import Runner, as_traced, gather
from fedmixtures.engine.run.sharded import DeviceRunner
from fedmixtures.engine.run.watch import Checkpoint, Progress, Trace, Trouble, fingerprint
from fedmixtures.engine.solution import Certificate, FitWarning, Solution, Status
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Method, Participants
from fedmixtures.methods.programs import HubProgram, Info
from fedmixtures.mixture.mixture import Mixture

CHUNK_CELLS = 200_000
"""Rounds times nodes in one device call, at most: what its record may hold."""
LOOK_EVERY = 10
"""Rounds between two looks at whether the run has converged."""
RISEN = 0.5
"""Nats per node that an objective may end above its start before it is worth a warning."""


class Run:
    """A program on these nodes, and what stays the same during the run."""

    def __init__(
        self,
        program: Any,
        data: NodeData,
        network: Network,
        theta: Mixture,
        options: Options,
    ):
        self.given, self.data, self.network, self.options = program, data, network, options
        self.search = program.search
        self.program = self._compiled(program.with_rate(1.0) if self.search else program)
        self.runner = self._runner()
        self.layout = self.runner.layout
        rows, degree = data.total_weights(), network.degree
        self.prepared = program.prepare(
            theta, Participants(data.labels, rows, degree, options.seed)
        )
        self.initial = self.runner.start(self.program, self.prepared)
        longest = max(1, CHUNK_CELLS // self.layout.n_places)
        often = LOOK_EVERY if options.tol > 0 else longest
        chunk = max(1, min(options.n_rounds, longest, options.report_every or often))
        self.chunk = 1 if self.search else chunk
        self.capacity = 1 << (chunk - 1).bit_length()
        self.trace = Trace(program.pull_share, options.keep_nodes, program.descends)
        self.converged = False
        self.told = 0  # rounds that whoever watches has been shown
        # Nobody waits for the record of a chunk: it is read while the next one runs.
        unwatched = options.watch is None and options.checkpoint is None and options.tol == 0
        self.reads_later = unwatched and len(options.devices) < 2 and not self.search
        self.reader = ThreadPoolExecutor(1)
        self.reading: Future[Trouble | None] | None = None

    def _runner(self) -> Runner:
        o, rest = self.options, (self.network, self.options.dtype)
        if len(o.devices) > 1 and not isinstance(self.given, HubProgram):
            spread = build_sharded_layout(self.data, self.network, o.devices, o.dtype, o.seed)
            return DeviceRunner(spread, *rest)
        layout = build_layout(self.data, self.network, o.dtype, o.block_size, o.seed)
        kind = HubRunner if isinstance(self.given, HubProgram) else NeighbourRunner
        return kind(layout, *rest)

    def _compiled(self, program: Method) -> Any:
        return as_traced(program, self.options.dtype)

    @cached_property
    def fingerprint(self) -> str:
        """Worked out on demand: it reads all rows."""
        o = self.options
        settings = o.seed, o.dtype, o.block_size, *([len(o.devices)] if o.devices else [])
        return fingerprint(self.given, self.data, self.network, *settings)

    def begin(self) -> tuple[Any, int]:
        """States and round to begin with: the start, or where a checkpoint left off."""
        checkpoint = self.options.resume
        if checkpoint is None:
            self.report(self.initial, 0)
            return self.initial, 0
        checkpoint.check(self.fingerprint)
        self.trace.restore(checkpoint.trace)
        self.told = checkpoint.round
        return checkpoint.restored(self.initial), checkpoint.round

    def solution(self) -> Solution:
        """Chunk after chunk, back to the last good round if one goes wrong."""
        states, done = self.begin()
        status, last = Status.COMPLETED, self.options.n_rounds
        try:
            while done < last:
                n = min(self.chunk, last - done)
                rate = self.given.rate
                if self.search:
                    found = self.searched(states, done)
                    if found is None:
                        break
                    after, infos, rate = found
                else:
                    after, infos = self.run(self.program, states, done, n)
                trouble = self.noted(infos, n, rate)
                if trouble is not None and not self.search:
                    return self.diverged(trouble)
                states, done = after, done + n
                # A search makes one round at a time.
                if not self.search or done - self.told >= (self.options.report_every or 1):
                    self.report(states, done)
                if self.stands_still(states):
                    break
        except KeyboardInterrupt:
            if not self.options.keep_interrupted:
                raise
            status = Status.INTERRUPTED
        return self.ended(states, done, status)

    def noted(self, infos: Any, n: int, rate: float | None) -> Trouble | None:
        """Record these rounds; what was wrong with them, or with those before if they wait."""
        if not self.reads_later:
            return self._note(infos, n, rate)
        before, self.reading = self.reading, self.reader.submit(self._note, infos, n, rate)
        return before and before.result()

    def caught_up(self) -> Trouble | None:
        """Have all rounds recorded; what was wrong with the last."""
        return self.reading and self.reading.result()

    def _note(self, infos: Any, n: int, rate: float | None) -> Trouble | None:
        self.seen = self.per_node(infos, n)
        return self.trace.extend(self.seen, rate)

    def searched(self, states, done: int) -> tuple[Any, Any, float] | None:
        """One round with the first step that the search accepts; None if there is none."""
        search, last = self.search, self.trace.last_rate
        rate = search.first if last is None else search.longer * last
        while rate > search.smallest:
            after, infos = self.run(self._compiled(self.given.with_rate(rate)), states, done, 1)
            seen, ahead = self.per_node(infos, 1), self.look(after, done + 1)
            decrease = self.objective(seen) - self.objective(ahead)
            if search.accepts(decrease, float(seen.moved.sum()), rate, self.given.n_local_steps):
                return after, infos, rate
            rate *= search.shorter
        return None

    def stands_still(self, states) -> bool:
        """Whether the last of the rounds hardly changed any node's parameters."""
        if self.options.tol == 0:
            return False
        size = sum(
            np.square(part).reshape(len(part), -1).sum(1) for part in self.theta(states).parts
        )
        self.converged = bool((self.seen.moved[-1] <= self.options.tol**2 * size).all())
        return self.converged

    def objective(self, infos: Info) -> float:
        """The objective of the state a single round began with."""
        return float(infos.fit.sum() + self.given.pull_share * infos.pull.sum())

    def run(self, program, states, done: int, n: int) -> tuple[Any, Any]:
        """`n` rounds: the states after them, and what each of them showed, by group."""
        return self.runner.run(program, states, done, n, self.capacity)

    def per_node(self, infos: Any, n: int) -> Info:
        """What each of `n` rounds showed, (rounds, nodes)."""
        # The record leads with rounds; gather wants (blocks, nodes) in front.
        in_front = jax.tree.map(lambda part: np.moveaxis(on_host(part)[:n], 0, -1), infos)
        per_node = gather(in_front, self.layout)
        return jax.tree.map(lambda part: np.ascontiguousarray(part.T), per_node)

    def look(self, states, done: int) -> Info:
        """What can be seen of these states: a round that is run and forgotten.

        One round more in a whole run is cheaper than compiling a second program for it.
        """
        return self.per_node(self.run(self.program, states, done, 1)[1], 1)

    def theta(self, states) -> Mixture:
        """The mixtures of all nodes in the order of their labels, float64 NumPy."""
        per_group = self.runner.results(self.program, states)
        return gather(per_group, self.layout).to_numpy()

    def report(self, states, done: int, final: bool = False) -> None:
        """Show whoever watches the rounds since the last time; at the end, the last state alone."""
        first, last = self.told, done + final
        self.told = done
        if self.options.watch is not None:
            history = self.trace.history(last - 1) if last else None
            records = [history.record(t) for t in range(first, last)] if history else []
            self.options.watch(Progress(done, records, final, lambda: self.theta(states)))
        if self.options.checkpoint is not None and done and not final:
            self.options.checkpoint(self.checkpoint(states, done))

    def checkpoint(self, states, done: int) -> Checkpoint:
        """What it takes to go on from here."""
        leaves = tuple(on_host(leaf) for leaf in jax.tree.leaves(states))
        return Checkpoint(done, self.fingerprint, leaves, self.trace.arrays())

    def ended(self, states, done: int, status: Status) -> Solution:
        """Look at the last states too; they may be the first bad ones."""
        trouble = self.caught_up() or self.trace.extend(self.look(states, done), self.given.rate)
        if trouble is not None and not self.search:
            return self.diverged(trouble)
        message = ""
        if status is Status.INTERRUPTED:  # whoever listens may be who interrupted: tell no more
            message = f"interrupted; returning round {done} of {self.options.n_rounds}."
            warnings.warn(message, FitWarning, stacklevel=2)
        else:
            if done > self.told:
                self.report(states, done)
            self.report(states, done, final=True)
            message = self.risen()
        return self.made(states, done, status, message)

    def risen(self) -> str:
        """A warning if coupled nodes, with steps of a given length, ended above their start."""
        before, after = self.trace.objective[[0, -1]]
        coupled = self.given.rate is not None and len(self.network.source) > 0
        if not coupled or after - before <= RISEN * self.data.n_nodes:
            return ""
        degree = float(self.network.weighted_degree.max(initial=0.0))
        message = (
            f"the objective rose from {before:.4g} to {after:.4g}, so that nodes may be worse off "
            f"than alone. {self.given.remedy(degree)}"
        )
        warnings.warn(message, FitWarning, stacklevel=3)
        return message

    def diverged(self, trouble: Trouble) -> Solution:
        """Go back to the last good round; rounds are repeatable, so it is simply run again."""
        self.caught_up()
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
        return self.made(states, good, Status.DIVERGED, message)

    def made(self, states, done: int, status: Status, message: str = "") -> Solution:
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
            self.runner.traffic(self.program, states, done, self.prepared),
            shards=self.layout.shards,
            converged=self.converged,
        )
