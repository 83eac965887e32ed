"""k-means of few rows as scikit-learn's `KMeans` runs it: the same draws, steps and clusters.

A small fit need not import scikit-learn for it, which takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAX_ITER, TOL = 300, 1e-4  # scikit-learn's


class Partition(NamedTuple):
    """The cluster of every row, and the weighted squared distances to centres, summed."""

    labels: np.ndarray
    inertia: float


def clustering(
    rows: np.ndarray, weights: np.ndarray | None, k: int, random: np.random.RandomState
) -> Partition:
    """One clustering from a start by k-means++; no two distances may be equal."""
    rows = rows - rows.mean(axis=0)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    return lloyd(rows, weights, rows[_plus_plus(rows, weights, k, random)])


def _plus_plus(
    rows: np.ndarray, weights: np.ndarray, k: int, random: np.random.RandomState
) -> np.ndarray:
    """Rows to begin from by greedy k-means++: each the best of a few drawn by squared distance."""
    norms = np.einsum("md,md->m", rows, rows)
    trials = 2 + int(np.log(k))
    chosen = np.empty(k, dtype=int)
    chosen[0] = random.choice(len(rows), p=weights / weights.sum())
    nearest = _squared_distances(rows, norms, chosen[:1])[0]
    total = nearest @ weights
    for c in range(1, k):
        drawn = np.searchsorted(np.cumsum(weights * nearest), random.uniform(size=trials) * total)
        drawn = np.minimum(drawn, len(rows) - 1)
        each = np.minimum(nearest, _squared_distances(rows, norms, drawn))
        totals = each @ weights
        best = np.argmin(totals)
        nearest, total, chosen[c] = each[best], totals[best], drawn[best]
    return chosen


def _squared_distances(rows: np.ndarray, norms: np.ndarray, which: np.ndarray) -> np.ndarray:
    """From these rows to all rows."""
    return np.maximum(norms[which, None] - 2 * rows[which] @ rows.T + norms, 0.0)


def lloyd(rows: np.ndarray, weights: np.ndarray, centres: np.ndarray) -> Partition:
    """Lloyd's steps until no row changes its cluster, or centres all but stand still."""
    weighted, names = rows * weights[:, None], np.arange(len(centres))[:, None]
    enough = TOL * rows.var(axis=0).mean()
    labels = _nearest(rows, centres)
    for _ in range(MAX_ITER):
        member = (labels == names).astype(np.float64)
        mass, sums = member @ weights, member @ weighted
        if not mass.all():
            _refill(rows, weights, ((rows - centres[labels]) ** 2).sum(axis=1), labels, mass, sums)
        moved = sums / np.where(mass > 0, mass, 1.0)[:, None]
        step = ((moved - centres) ** 2).sum()
        centres, before = moved, labels
        labels = _nearest(rows, centres)
        if step <= enough or np.array_equal(labels, before):
            break
    return Partition(labels, float(weights @ ((rows - centres[labels]) ** 2).sum(axis=1)))


def _refill(
    rows: np.ndarray,
    weights: np.ndarray,
    distances: np.ndarray,
    labels: np.ndarray,
    mass: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Give every empty cluster one of the rows that are furthest from their centres, in place."""
    empty = np.flatnonzero(mass == 0)
    furthest = np.argpartition(distances, -len(empty))[: -len(empty) - 1 : -1]
    for cluster, row in zip(empty, furthest, strict=True):
        sums[labels[row]] -= weights[row] * rows[row]
        mass[labels[row]] -= weights[row]
        sums[cluster], mass[cluster] = weights[row] * rows[row], weights[row]


def _nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of every row."""
    return ((centres**2).sum(axis=1) - 2 * rows @ centres.T).argmin(axis=1)
