"""The record of a run, and the watch on it: NaN and runaway models never reach the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import jax
import numpy as np

from fedmixtures._ties import first_greatest, first_least
from fedmixtures.engine.run.checkpoint import Checkpoint
from fedmixtures.engine.solution import History
from fedmixtures.methods.programs import Info
from fedmixtures.mixture.mixture import Mixture

FAR = 10.0
"""The objective has run away once it exceeds its start by this many times |start| + nodes."""


@dataclass(frozen=True)
class Progress:
    """What whoever watches a run is shown: what costs nothing at once, the rest on request."""

    round: int
    """Rounds finished so far; zero before the first."""
    records: list[dict[str, int | float]]
    """Of the rounds since the last call: round, objective, fit and pull of the state each began
    with. At the end that of the last state alone."""
    final: bool
    """Whether the run has ended: the same round as in the call before, with the last record."""
    _theta: Callable[[], Mixture]
    _checkpoint: Callable[[], Checkpoint]

    @cached_property
    def theta(self) -> Mixture:
        """The mixtures of all nodes, stacked, NumPy; those of absent components have weight 0."""
        return self._theta()

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """What `solve(resume=...)` needs to go on from here."""
        return self._checkpoint()


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
