"""How good a fit is: log-likelihood by node, medians over repetitions, gains of listening."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData, rows_by_node

CLEAR = 1.96  # a difference of fewer standard errors than this counts as no clear change


def node_means(log_density: ArrayLike, nodes: ArrayLike) -> dict[Hashable, float]:
    """Mean log-density of every node's rows under its own model, by node label, labels sorted."""
    values, nodes = np.asarray(log_density), np.asarray(nodes)
    if values.ndim != 1 or values.shape != nodes.shape:
        raise ValueError(
            f"`nodes` has the shape {nodes.shape} but `log_density` has {values.shape}. "
            "Give one entry of each per row."
        )
    return {label: float(values[rows].mean()) for label, rows in rows_by_node(nodes).items()}


class Interval(NamedTuple):
    """A median and the interval around it."""

    median: float
    low: float
    high: float


def median_interval(
    values: ArrayLike, n_resamples: int = 9999, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median over repetitions and its percentile-bootstrap interval.

    One value has itself as median and no interval (NaN), no value no median either. A NaN among
    the values (a run that failed) makes all three NaN: drop it knowingly or not at all. Infinite
    values are ranked as such, and a bound that falls between them is NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"`values` has the shape {values.shape}. Give one number per repetition.")
    if len(values) == 0 or np.isnan(values).any():
        return Interval(np.nan, np.nan, np.nan)
    if len(values) == 1:
        return Interval(float(values[0]), np.nan, np.nan)
    rng, n = np.random.default_rng(seed), len(values)
    batch = max(1, 1_000_000 // n)
    with np.errstate(invalid="ignore"):  # inf - inf
        medians = [
            np.median(values[rng.integers(0, n, (min(batch, n_resamples - done), n))], axis=1)
            for done in range(0, n_resamples, batch)
        ]
        tail = (1 - confidence) / 2
        low, high = np.quantile(np.concatenate(medians), [tail, 1 - tail])
        return Interval(float(np.median(values)), float(low), float(high))


def paired_difference(
    a: ArrayLike, b: ArrayLike, n_resamples: int = 9999, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median of a - b over repetitions, with its interval; a[i] and b[i] share a seed.

    What two methods have in common, the draw of the data, cancels: use this rather than two
    intervals side by side to say which is better.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(
            f"`a` has the shape {a.shape} and `b` {b.shape}. "
            "Give the same repetitions of both, in the same order."
        )
    with np.errstate(invalid="ignore"):  # inf - inf: neither is better, NaN says so
        return median_interval(a - b, n_resamples, confidence, seed)


@dataclass(frozen=True)
class Scores:
    """Mean log-density of each node's held-out rows; NaN where there is none."""

    labels: tuple[Label, ...]
    n_held_out: np.ndarray  # held-out rows of each node
    local: np.ndarray  # own data only
    network: np.ndarray  # with neighbours
    pooled: np.ndarray  # one mixture of all rows, where that was allowed
    error: np.ndarray  # standard error of the gain, from the rows' own differences
    baseline: str = "local"
    """What gains are taken against, the best a node has without the method: own data only, or all
    rows pooled where that is the better of the two at most nodes."""

    @classmethod
    def of(
        cls,
        labels: Sequence[Label],
        held: NodeData | None,
        network: np.ndarray | None = None,
        local: np.ndarray | None = None,
        pooled: np.ndarray | None = None,
    ) -> Scores:
        """From the log-density of every held-out row, as they came in, under the three models."""
        n, index, nothing = len(labels), np.zeros(0, int), np.full(len(labels), np.nan)
        if held is not None:
            position = {label: i for i, label in enumerate(labels)}
            index = np.empty(len(held.rows), int)
            index[held.source_index] = np.array([position[a] for a in held.labels])[held.node_index]
        counts = np.bincount(index, minlength=n)
        baseline = "local"

        def mean(values: np.ndarray | None) -> np.ndarray:
            with np.errstate(invalid="ignore", divide="ignore"):
                return nothing if values is None else np.bincount(index, values, n) / counts

        if local is not None and pooled is not None:
            better = (mean(pooled) > mean(local))[counts > 0]
            baseline = "pooled" if better.mean() > 0.5 else "local"
        beside = pooled if baseline == "pooled" else local
        error = nothing
        if network is not None and beside is not None:
            difference = network - beside
            variance = mean(np.square(difference - mean(difference)[index]))
            error = np.sqrt(np.where(counts > 1, variance / np.maximum(counts - 1, 1), np.nan))
        found = mean(local), mean(network), mean(pooled)
        return cls(tuple(labels), counts, *found, error, baseline)

    @property
    def gain(self) -> np.ndarray:
        """What the method brought beyond the baseline, in nats per held-out row."""
        return self.network - getattr(self, self.baseline)

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

    def medians(self) -> dict[str, Interval]:
        """Median over nodes of each of the three and of the gain, with intervals."""
        columns = {name: getattr(self, name) for name in ("local", "network", "pooled", "gain")}
        return {name: median_interval(v[np.isfinite(v)]) for name, v in columns.items()}
