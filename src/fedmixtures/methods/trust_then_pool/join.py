r"""Step 9, clusters: which components are one, decided once for the whole network by one sum.

The components of the personal level are the same at every node. Every node adds
$S = \sum_x r(x)\, r(x)^T$ over its rows: $r$ are the memberships of a row in the components of the
fit that has not seen it. A component's mass is the sum of its line, and $S_{ij} / \min(m_i, m_j)$
is how much of the smaller of two cannot be told from the other. The pair with the most is joined
until none has more than `ALIKE`. Adding lines and columns of $S$ is what joining does to it, so
that one total is enough, and everybody who has it finds the same clusters.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.methods.base import Joined
from fedmixtures.methods.protocol import Sum
from fedmixtures.methods.trust_then_pool.nodes import Nodes
from fedmixtures.methods.trust_then_pool.own import Level

ALIKE = 0.15
"""The share of a component that may not be told from another before the two are one cluster."""
LEAST = 1e-6
"""Rows below which a component has none that the fit has not seen."""


def join(
    nodes: Nodes, level: Level, group: np.ndarray, n_clusters: int | str
) -> Generator[Sum, Any, Joined]:
    """The sum, from the fits of the personal level without each fold, and what comes of it."""
    assert level.folds is not None
    own = nodes.in_parts(lambda part, _, folds: part.overlaps(folds), level.folds)
    total = yield Sum(own, group)
    return joined(np.asarray(own), np.asarray(total), group, n_clusters)


def joined(own: np.ndarray, total: np.ndarray, group: np.ndarray, n_clusters: int | str) -> Joined:
    """Which components are one cluster.

    Parameters
    ----------
    own
        (nodes, k, k) sums of every node.
    total
        (nodes, k, k) sums over all nodes of each node's network.
    group
        (nodes,) which nodes have one network: they have one total.
    n_clusters
        How many to leave; ``"auto"`` joins what overlaps by more than `ALIKE`.
    """
    first, back = np.unique(group, return_index=True, return_inverse=True)[1:]
    cluster = _of_each(np.asarray(total, np.float64)[first], n_clusters)[back.reshape(-1)]
    table = np.nan_to_num(np.asarray(own, np.float64))
    rows = np.maximum(table.sum((1, 2)), LEAST)
    numbers = np.arange(int(cluster.max()) + 1)
    part = (cluster[:, :, None] == numbers).astype(np.float64)
    mass = np.einsum("nkl,nkc->nc", table, part)
    squares = np.einsum("nkl,nkc,nlc->nc", table, part, part)
    return Joined(cluster, np.maximum(mass - squares, 0.0) / rows[:, None])


def _of_each(total: np.ndarray, n_clusters: int | str) -> np.ndarray:
    """(networks, k) the clusters of each total (networks, k, k), the largest first."""
    total = np.where(np.isfinite(total), total, 0.0)  # what cannot be a sum joins nothing
    n, k = total.shape[:2]
    mass, line = total.sum(-1), np.arange(n)
    there = mass > LEAST
    there[:, 0] |= ~there.any(1)
    cluster = np.tile(np.arange(k), (n, 1))
    least = 1 if n_clusters == "auto" else int(n_clusters)
    for _ in range(k - 1):
        share = _shares(total, there)
        pair = np.asarray(first_greatest(share.reshape(n, -1), scale=1.0))
        one, other = np.minimum(*divmod(pair, k)), np.maximum(*divmod(pair, k))
        go_on = there.sum(1) > least
        if n_clusters == "auto":
            go_on &= share[line, one, other] > ALIKE
        if not go_on.any():
            break
        at, i, j = line[go_on], one[go_on], other[go_on]
        total[at, i] += total[at, j]
        total[at, :, i] += total[at, :, j]
        there[at, j] = False
        cluster[at] = np.where(cluster[at] == j[:, None], i[:, None], cluster[at])
    mass = np.where(there, total.sum(-1, where=there[:, None]), -1.0)
    return _numbered(cluster, there, mass)


def _shares(total: np.ndarray, there: np.ndarray) -> np.ndarray:
    """(networks, k, k) of every two that are there; -1 for others."""
    mass = np.where(there, total.sum(-1, where=there[:, None]), 1.0)
    share = total / np.maximum(np.minimum(mass[:, :, None], mass[:, None]), LEAST)
    both = there[:, :, None] & there[:, None] & ~np.eye(total.shape[1], dtype=bool)
    return np.where(both, share, -1.0)


def _numbered(cluster: np.ndarray, there: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Clusters by their mass; a component that no row speaks for goes with the largest."""
    order = np.argsort(
        -np.round(mass / np.maximum(mass.max(1, keepdims=True), LEAST), 9), axis=1, kind="stable"
    )
    place = np.argsort(order, axis=1)
    number = np.take_along_axis(place, cluster, 1)
    return np.where(np.take_along_axis(there, cluster, 1), number, 0)
