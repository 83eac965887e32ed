"""The record of a run, the watch on it, and what it takes to go on where it stopped.

NaN and runaway models never reach the user.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._ties import first_greatest, first_least
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import History
from fedmixtures.graph.network import Network
from fedmixtures.methods.programs import Info
from fedmixtures.mixture.mixture import Mixture

FAR = 10.0
"""The objective has run away once it exceeds its start by this many times |start| + nodes."""
SECONDS = 10.0
"""Between two lines of progress in a log."""


@dataclass(frozen=True)
class Progress:
    """What whoever watches a run is shown: what costs nothing at once, the rest on request."""

    round: int
    """Rounds finished so far; zero before the first."""
    records: list[dict[str, Any]]
    """Of the rounds since the last call: round, objective, fit and pull of the state each began
    with. At the end that of the last state alone. Of a protocol before its end: the round it
    has reached and the kind of request that took it there, ``{"round", "step"}``."""
    final: bool
    """Whether the run has ended: the same round as in the call before, with the last record."""
    _theta: Callable[[], Mixture]

    @cached_property
    def theta(self) -> Mixture:
        """The mixtures of all nodes, stacked, NumPy; those of absent components have weight 0."""
        return self._theta()


@dataclass(frozen=True)
class Trouble:
    """Where a run went wrong."""

    round: int
    node: int
    cause: str


class Trace:
    """Totals of every state so far, entry 0 the start; per-node values only on request."""

    _lists = ("_fit", "_pull", "_moved", "_rate", "_node_fit", "_node_pull")

    def __init__(self, pull_share: float, keep_nodes: bool, descends: bool = True):
        self.pull_share, self.keep_nodes = pull_share, keep_nodes
        self.descends = descends
        self.start: Info | None = None
        self._fit, self._pull, self._moved, self._rate = [], [], [], []
        self._node_fit, self._node_pull = [], []

    def __len__(self) -> int:
        return len(self._fit)

    @property
    def objective(self) -> np.ndarray:
        """Objective of every state so far."""
        return np.array(self._fit) + np.array(self._pull)

    def extend(self, infos: Info, rate: float | None) -> Trouble | None:
        """Add states (rounds, nodes) by what the rounds that began with them showed."""
        first, start = len(self), self.start
        if start is None:
            start = self.start = jax.tree.map(lambda part: part[0], infos)
        self._fit += list(infos.fit.sum(-1))
        self._pull += list(self.pull_share * infos.pull.sum(-1))
        self._moved += list(infos.moved.sum(-1))
        self._rate += [np.nan if rate is None else rate] * len(infos.fit)
        if self.keep_nodes:
            self._node_fit += list(infos.fit)
            self._node_pull += list(infos.pull)
        return self._first_bad(infos, first, start)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything recorded, for a checkpoint."""
        start = fields(Info) if self.start is not None else ()  # there is none before a round
        found = {f"start_{f.name}": getattr(self.start, f.name) for f in start}
        return found | {name: np.array(getattr(self, name)) for name in self._lists}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what a checkpoint holds."""
        if "start_fit" in arrays:
            self.start = Info(*(arrays[f"start_{f.name}"] for f in fields(Info)))
        for name in self._lists:
            setattr(self, name, list(arrays[name]))

    def _first_bad(self, states: Info, first: int, start: Info) -> Trouble | None:
        """The first state that is not finite, far above the start, or ran into the bound."""
        local = states.fit + states.pull
        with np.errstate(invalid="ignore"):  # infinite values are what is looked for below
            rise = local - (start.fit + start.pull)[None]
        objective = self.objective
        limit = objective[0] + FAR * (abs(objective[0]) + local.shape[1])
        arrived = (states.at_bound > 0) & (start.at_bound == 0)[None] & (rise > 0)
        for r in range(len(local)):
            if not np.isfinite(local[r]).all():
                node = int(np.flatnonzero(~np.isfinite(local[r]))[0])
                return Trouble(first + r, node, "the objective is not finite")
            if self.descends and objective[first + r] > limit:
                cause = f"the objective rose from {objective[0]:.4g} to {objective[first + r]:.4g}"
                return Trouble(first + r, int(first_greatest(rise[r], scale=1.0)), cause)
            if arrived[r].any():
                node = int(np.flatnonzero(arrived[r])[0])
                return Trouble(first + r, node, "a mean ran into the bound max_mean_norm")
        return None

    @property
    def last_rate(self) -> float | None:
        """Step size of the last round; None before the first."""
        return self._rate[-1] if self._rate else None

    def best_before(self, bad: int) -> int:
        """The last good round: the lowest objective before the trouble."""
        return int(first_least(self.objective[:bad])) if bad else 0

    def history(self, n_rounds: int) -> History:
        """The history of the first `n_rounds` rounds."""
        n = n_rounds + 1
        open_end = lambda values: np.array([*values[:n_rounds], np.nan])
        nodes = lambda values: np.stack(values[:n]) if self.keep_nodes else None
        return History(
            np.array(self._fit[:n]),
            np.array(self._pull[:n]),
            open_end(self._moved),
            open_end(self._rate),
            nodes(self._node_fit),
            nodes(self._node_pull),
        )


@dataclass(frozen=True)
class Checkpoint:
    """What was reached after some round, as plain arrays: `solve(resume=...)` goes on from it."""

    round: int
    fingerprint: str
    """Identifies rows, graph, method and seed: another run is not resumed by mistake."""
    states: tuple[np.ndarray, ...]
    """Of a program in rounds the states of its nodes, of a protocol the results of its stages."""
    trace: dict[str, np.ndarray]
    """The record of the rounds."""
    stages: tuple[tuple[str, Any, int], ...] = ()
    """Of a protocol, by stage: its name, what its result is made of, its number of arrays."""

    def check(self, fingerprint: str) -> None:
        """Refuse to go on with another run than the one it was taken in."""
        if self.fingerprint != fingerprint:
            raise ValueError(
                "`resume` comes from another run: rows, graph, method, settings or seed differ. "
                "Resume with what that run began with, or start anew."
            )

    def restored(self, like: Any) -> Any:
        """The states in the shape of the program's own, bit for bit."""
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(
            structure,
            [
                jnp.asarray(new, old.dtype).reshape(old.shape)  # files know no scalars
                for new, old in zip(self.states, leaves, strict=True)
            ],
        )


def fingerprint(
    program: Any, data: NodeData, network: Network, *settings: Any, arrays: Sequence[Any] = ()
) -> str:
    """A digest of everything that decides the numbers of a run but its length."""
    digest = hashlib.sha256()
    rows = (data.rows, data.row_weights, data.offsets)
    for array in (*rows, network.source, network.target, network.weight, *arrays):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr((data.labels, program, settings)).encode())
    return digest.hexdigest()


class ProgressPrinter:
    """Says what a fit is at: one line, rewritten on a terminal or in a notebook, else a log."""

    def __init__(self, n_rounds: int, enabled: bool):
        self.n_rounds, self.enabled = n_rounds, enabled
        self.began = self.last = time.monotonic()
        self.rewrites = enabled and (sys.stdout.isatty() or "ipykernel" in sys.modules)
        self.width = 0

    def say(self, text: str, *, lasting: bool = True) -> None:
        """Print a line; one that is not lasting is overwritten by the next."""
        if not self.enabled:
            return
        now = time.monotonic()
        text = f"[{now - self.began:6.1f} s] {text}"
        if self.rewrites:
            print(f"\r{text:<{self.width}}", end="\n" if lasting else "", flush=True)
            self.width = 0 if lasting else len(text)
        elif lasting or now - self.last > SECONDS:
            print(text, flush=True)
            self.last = now

    def __call__(self, progress: Progress) -> None:
        """Tell the round a run has reached."""
        if progress.final or any("step" in record for record in progress.records):
            return  # exchanges of a protocol are announced
        if progress.round == 0:
            self.say("starts made; compiling the first rounds", lasting=False)
        else:
            objective = progress.records[-1]["objective"] if progress.records else float("nan")
            words = f"round {progress.round} of {self.n_rounds}, objective {objective:.4f}"
            self.say(words, lasting=False)

    def ended(self, solution: Any) -> None:
        """The last line."""
        how = "converged" if solution.converged else str(solution.status)
        self.say(f"{how} after {solution.n_rounds} rounds")
