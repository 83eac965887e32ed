"""Where the iteration starts: k-means on every node's own rows (Algorithm 1, line 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from fedmixtures import _checks
from fedmixtures._ties import first_least
from fedmixtures.data.gaps import filled
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.init.many_nodes import (
    distinct_rows_of_all,
    mixtures_of_many,
    seeds_of_many,
    sorted_on_device,
)
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

BATCHED_FROM = 200
"""Nodes from which on compiling the batched program pays."""
APART = 1e-8
"""How far rows are moved, in standard deviations of a feature."""


@dataclass(frozen=True)
class KMeansStart:
    """Local k-means: cluster fractions, centres, and within-cluster covariances plus a ridge.

    Rows are sorted and equal rows joined first, so that the start depends neither on the order of
    rows nor on whether a row is listed twice or weighs two.

    Parameters
    ----------
    n_init
        Restarts of k-means++ per node; the tightest clustering is kept.
    ridge
        Added to the diagonal of every covariance; None adds the smallest variance that the
        method's feasible set allows.
    batched
        True clusters all nodes together in JAX, False one after the other by scikit-learn. The two
        draw different random numbers. None is scikit-learn for fewer than 200 nodes.
    """

    n_init: int = 10
    ridge: float | None = None
    batched: bool | None = None

    def __post_init__(self):
        _checks.whole("n_init", self.n_init)
        if self.ridge is not None:
            _checks.positive("ridge", self.ridge, allow_zero=True)

    def mixtures(
        self, data: NodeData, n_components: Sequence[int], seed: int, default_ridge: float
    ) -> Mixture:
        """Starting mixtures of all nodes, stacked; missing cells are filled for it."""
        data = filled(data)
        ridge = default_ridge if self.ridge is None else self.ridge
        batched = self.batched or (self.batched is None and data.n_nodes >= BATCHED_FROM)
        seeds = seeds_of_many(seed, data.label_hashes) if batched else None
        if seeds is not None and dispatch.sorts_on_device():
            return sorted_on_device(data, n_components, seeds, self.n_init, ridge)
        data = distinct_rows_of_all(data)
        counts = dict(zip(data.labels, data.counts.tolist(), strict=True))
        _checks.enough_rows(counts, dict(zip(data.labels, n_components, strict=True)))
        if seeds is not None:
            return mixtures_of_many(data, n_components, seeds, self.n_init, ridge)
        # Threads cost more than they bring on rows this few, much more on a busy machine.
        with threadpool_limits(1, user_api="openmp"):
            found = [
                self._one_node(*data.of(i), k, node_seed(seed, data.labels[i]), ridge)
                for i, k in enumerate(n_components)
            ]
        return Mixture.stack(found)

    def _one_node(self, rows, weights, k: int, seed: int, ridge: float) -> Mixture:
        if k == 1:
            cluster = np.zeros(len(rows), dtype=int)
        else:
            cluster = tightest_clustering(rows, weights, k, self.n_init, seed)
        return clustered_mixture(rows, weights, cluster, k, ridge)


def tightest_clustering(
    rows: np.ndarray, weights: np.ndarray | None, k: int, n_init: int, seed: int
) -> np.ndarray:
    """The cluster of every row in the tightest of `n_init` clusterings, the first of equals.

    The restarts are those of ``KMeans(k, n_init=n_init)``, which would let rounding decide between
    different clusterings that are equally tight.
    """
    tried = list(clusterings(rows, weights, k, n_init, seed))
    return tried[first_least(np.array([found.inertia_ for found in tried]))].labels_


def clusterings(
    rows: np.ndarray, weights: np.ndarray | None, k: int, n_init: int, seed: int
) -> Iterator[KMeans]:
    """One clustering by scikit-learn after the other, from one random stream.

    scikit-learn compares distances as they come. So that no two are equal, every row is moved by a
    fixed random share of the spread, far too little to matter and far more than rounding.
    """
    import sklearn
    from sklearn.cluster import KMeans

    moves = np.random.default_rng(0).uniform(-1, 1, rows.shape)
    moved = rows + APART * rows.std(axis=0) * moves
    settings: dict = {"n_init": 1, "random_state": np.random.RandomState(seed)}
    for _ in range(n_init):
        with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            yield KMeans(k, **settings).fit(moved, sample_weight=weights)


def clustered_mixture(
    rows: np.ndarray, weights: np.ndarray, cluster: np.ndarray, k: int, ridge: float
) -> Mixture:
    """The mixture of a hard clustering: weighted fractions, means, covariances plus `ridge`."""
    member = (cluster[:, None] == np.arange(k)) * weights[:, None]
    mass = member.sum(0)
    share = member / mass
    means = share.T @ rows
    centred = rows[:, None, :] - means[None]
    covariances = np.einsum("mk,mki,mkj->kij", share, centred, centred)
    return Mixture(mass / mass.sum(), means, covariances + ridge * np.eye(rows.shape[1]))


def distinct_rows(rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted distinct rows and the total weight of each."""
    distinct, index = np.unique(rows, axis=0, return_inverse=True)
    return distinct, np.bincount(index.reshape(-1), weights=weights, minlength=len(distinct))


def node_seed(seed: int, label) -> int:
    """A 32-bit seed for one node, from the run's seed and the node's label alone."""
    hashed = label_hash(label)
    return int(np.random.SeedSequence([seed, hashed]).generate_state(1)[0])
