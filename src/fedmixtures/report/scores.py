"""Did listening to neighbours help, and whom: held-out log-likelihood per node, three ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmixtures._types import Label
from fedmixtures.metrics import Interval, median_interval

CLEAR = 1.96
"""A difference of fewer standard errors than this counts as no clear change."""


@dataclass(frozen=True)
class Scores:
    """Mean log-density of each node's held-out rows; NaN where there is none."""

    labels: tuple[Label, ...]
    n_held_out: np.ndarray
    """Held-out rows of each node."""
    local: np.ndarray
    """Own data only."""
    network: np.ndarray
    """With neighbours."""
    pooled: np.ndarray
    """One mixture of all rows, where that was allowed."""
    error: np.ndarray
    """Standard error of `network - local`, from the rows' own differences."""

    @classmethod
    def of(
        cls,
        labels: Sequence[Label],
        nodes: np.ndarray,
        network: np.ndarray,
        local: np.ndarray | None,
        pooled: np.ndarray | None,
    ) -> Scores:
        """From the log-density of each held-out row under the three models."""
        position = {label: i for i, label in enumerate(labels)}
        distinct, place = np.unique(nodes, return_inverse=True)
        index = np.array([position[label] for label in distinct.tolist()], dtype=int)[place]
        n = len(labels)
        n_held_out = np.bincount(index, minlength=n)
        nothing = np.full(n, np.nan)
        mean = lambda values: nothing if values is None else _means(values, index, n_held_out)
        difference = None if local is None else network - local
        gain = mean(difference)
        if difference is None:
            error = nothing
        else:
            squares = np.bincount(index, np.square(difference - gain[index]), n)
            with np.errstate(invalid="ignore", divide="ignore"):
                error = np.where(
                    n_held_out > 1, np.sqrt(squares / (n_held_out - 1) / n_held_out), np.nan
                )
        return cls(tuple(labels), n_held_out, mean(local), mean(network), mean(pooled), error)

    @property
    def gain(self) -> np.ndarray:
        """What neighbours brought, in nats per held-out row."""
        return self.network - self.local

    @property
    def verdict(self) -> np.ndarray:
        """1 where a node clearly gained, -1 where it clearly lost, 0 otherwise."""
        with np.errstate(invalid="ignore"):
            clear = np.abs(self.gain) > CLEAR * self.error
        return np.where(clear, np.sign(self.gain), 0).astype(int)

    @property
    def known(self) -> bool:
        """Whether there is anything to compare."""
        return bool(np.isfinite(self.gain).any())

    def median_gain(self) -> Interval:
        """Median over nodes with its bootstrap interval."""
        return median_interval(self.gain[np.isfinite(self.gain)])

    def medians(self) -> dict[str, Interval]:
        """Median over nodes of each of the three, with intervals."""
        columns = {"local": self.local, "network": self.network, "pooled": self.pooled}
        return {name: median_interval(v[np.isfinite(v)]) for name, v in columns.items()}


def _means(values: np.ndarray, index: np.ndarray, n_held_out: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.bincount(index, values, len(n_held_out)) / n_held_out
