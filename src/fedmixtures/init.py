"""Where the iteration starts: k-means on every node's own rows (Algorithm 1, line 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from fedmixtures import _checks
from fedmixtures._ties import first_least
from fedmixtures.data.node_data import NodeData, filled, label_hash
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import Segments, in_order_of
from fedmixtures.kernels.compiling import jit
from fedmixtures.kernels.cpu.clustering import plus_plus
from fedmixtures.kernels.cpu.kmeans import Partition, clustering
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture

BATCHED_FROM = 200  # nodes from which on compiling the batched program pays
MANY_ROWS = 50_000  # from which on a fit of one node gains from threads
FEW_ROWS = 2000  # up to so many NumPy is about as fast as scikit-learn
APART = 1e-8  # how far rows are moved, in standard deviations of a feature


@runtime_checkable
class Start(Protocol):
    """Whatever makes starting mixtures of rows: `KMeansStart`, or the fits of `Local`."""

    def mixtures(
        self, data: NodeData, n_components: Sequence[int], seed: int, default_reg_covar: float
    ) -> Mixture:
        """Mixtures of all nodes, stacked; the method bears no less than `default_reg_covar`."""
        ...


@dataclass(frozen=True)
class KMeansStart:
    """Local k-means: cluster fractions, centres, and within-cluster covariances plus `reg_covar`.

    Rows are sorted and equal rows joined first, so that the start depends neither on the order of
    rows nor on whether a row is listed twice or weighs two.

    Parameters
    ----------
    n_init
        Restarts of k-means++ per node; the tightest clustering is kept.
    reg_covar
        Added to the diagonal of every covariance; None adds the smallest variance that the
        method's feasible set allows.
    batched
        True clusters all nodes together in JAX, False one after the other as scikit-learn would.
        The two draw different random numbers. None is False for fewer than 200 nodes.
    """

    n_init: int = 10
    reg_covar: float | None = None
    batched: bool | None = None

    def __post_init__(self):
        _checks.whole("n_init", self.n_init)
        if self.reg_covar is not None:
            _checks.positive("reg_covar", self.reg_covar, allow_zero=True)

    def mixtures(
        self, data: NodeData, n_components: Sequence[int], seed: int, default_reg_covar: float
    ) -> Mixture:
        """Starting mixtures of all nodes, stacked; missing cells are filled for it."""
        data = filled(data)
        reg_covar = default_reg_covar if self.reg_covar is None else self.reg_covar
        batched = self.batched or (self.batched is None and data.n_nodes >= BATCHED_FROM)
        if batched and dispatch.sorts_on_device():
            return sorted_on_device(data, n_components, seed, self.n_init, reg_covar)
        data = distinct_rows_of_all(data)
        counts = dict(zip(data.labels, data.counts.tolist(), strict=True))
        _checks.enough_rows(counts, dict(zip(data.labels, n_components, strict=True)))
        if batched:
            seeds = seeds_of_many(seed, data.label_hashes)
            return mixtures_of_many(data, n_components, seeds, self.n_init, reg_covar)
        found = [
            self._one_node(*data.of(i), k, node_seed(seed, data.labels[i]), reg_covar)
            for i, k in enumerate(n_components)
        ]
        return Mixture.stack(found)

    def _one_node(self, rows, weights, k: int, seed: int, reg_covar: float) -> Mixture:
        if k == 1:
            cluster = np.zeros(len(rows), dtype=int)
        else:
            cluster = tightest_clustering(rows, weights, k, self.n_init, seed)
        return clustered_mixture(rows, weights, cluster, k, reg_covar)


def tightest_clustering(
    rows: np.ndarray, weights: np.ndarray | None, k: int, n_init: int, seed: int
) -> np.ndarray:
    """The cluster of every row in the tightest of `n_init` clusterings, the first of equals.

    The restarts are those of ``KMeans(k, n_init=n_init)``, which would let rounding decide between
    different clusterings that are equally tight.
    """
    tried = list(clusterings(rows, weights, k, n_init, seed))
    return tried[first_least(np.array([found.inertia for found in tried]))].labels


def clusterings(
    rows: np.ndarray, weights: np.ndarray | None, k: int, n_init: int, seed: int
) -> Iterator[Partition]:
    """One clustering of scikit-learn's after the other, from one random stream.

    Distances are compared as they come. So that no two are equal, every row is moved by a fixed
    random share of the spread, far too little to matter and far more than rounding.
    """
    moves = np.random.default_rng(0).uniform(-1, 1, rows.shape)
    moved = rows + APART * rows.std(axis=0) * moves
    random = np.random.RandomState(seed)
    cluster = clustering if len(rows) <= FEW_ROWS else _by_sklearn
    for _ in range(n_init):
        yield cluster(moved, weights, k, random)


def _by_sklearn(
    rows: np.ndarray, weights: np.ndarray | None, k: int, random: np.random.RandomState
) -> Partition:
    import sklearn
    from sklearn.cluster import KMeans

    known_good = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
    # Threads cost more than they bring on fewer rows, much more on a busy machine. They can be
    # limited only once scikit-learn has loaded them.
    few = len(rows) < MANY_ROWS
    with known_good, threadpool_limits(1 if few else None, user_api="openmp"):
        found = KMeans(k, n_init=1, random_state=random).fit(rows, sample_weight=weights)
    return Partition(found.labels_, found.inertia_)


def clustered_mixture(
    rows: np.ndarray, weights: np.ndarray, cluster: np.ndarray, k: int, reg_covar: float
) -> Mixture:
    """The mixture of a hard clustering: weighted fractions, means, covariances plus `reg_covar`."""
    member = (cluster[:, None] == np.arange(k)) * weights[:, None]
    mass = member.sum(0)
    share = member / mass
    means = share.T @ rows
    centred = rows[:, None, :] - means[None]
    covariances = np.einsum("mk,mki,mkj->kij", share, centred, centred)
    return Mixture(mass / mass.sum(), means, covariances + reg_covar * np.eye(rows.shape[1]))


def node_seed(seed: int, label) -> int:
    """A 32-bit seed for one node, from the run's seed and the node's label alone."""
    hashed = label_hash(label)
    return int(np.random.SeedSequence([seed, hashed]).generate_state(1)[0])


def mixtures_of_many(
    data: NodeData,
    n_components: Sequence[int],
    seeds: np.ndarray,
    n_init: int,
    reg_covar: float,
    keep_all: bool = False,
) -> Mixture:
    """Starting mixtures of all nodes, stacked; rows in an order of their own (sorted).

    The tightest of `n_init` clusterings per node, the first of equals; with `keep_all` all of them,
    node after node.
    """
    k_of = np.asarray(n_components)
    parts = _absent(data.n_nodes, n_init if keep_all else 1, int(k_of.max()), data.n_features)
    for nodes, batch, m, k in _batches(data.counts, k_of, n_init):
        with double():
            found = _clustered(*_padded(data, batch, m), seeds[batch], k, n_init, keep_all)
        for part, new in zip(parts, found, strict=True):
            part[nodes, :, :k] = np.asarray(new)[: len(nodes)]
    weights, means, covariances = parts
    covariances[weights > 0] += reg_covar * np.eye(data.n_features)
    flat = lambda part: part.reshape(-1, *part.shape[2:])
    return Mixture(flat(weights), flat(means), flat(covariances))


def sorted_on_device(
    data: NodeData, n_components: Sequence[int], seed: int, n_init: int, reg_covar: float
) -> Mixture:
    """`mixtures_of_many` of rows in any order: the device sorts them and joins equal ones too.

    Equal rows are joined into one of their whole weight; the others stay behind with weight zero,
    which counts as absent.
    """
    k_of = np.asarray(n_components)
    parts = _absent(data.n_nodes, 1, int(k_of.max()), data.n_features)
    distinct = np.zeros(data.n_nodes, dtype=np.int64)
    level = np.float64(reg_covar)  # a number of the program, not a part of it
    with double():
        table = jax.device_put((data.rows, data.row_weights))
        seeds = seeds_of_many(seed, data.label_hashes)
        for nodes, batch, m, k in _batches(data.counts, k_of, n_init):
            begin = data.offsets[batch], data.counts[batch]
            found, n_rows = _sorted_and_clustered(*table, *begin, seeds[batch], level, m, k, n_init)
            distinct[nodes] = np.asarray(n_rows)[: len(nodes)]
            # Nodes in a row, as they mostly are, are copied in one piece.
            in_a_row = nodes[-1] - nodes[0] == len(nodes) - 1
            span = slice(nodes[0], nodes[-1] + 1) if in_a_row else nodes
            for part, new in zip(parts, found, strict=True):
                part[span, :, :k] = np.asarray(new)[: len(nodes)]
    few = np.flatnonzero(distinct < k_of)
    _checks.enough_rows(
        {data.labels[i]: int(distinct[i]) for i in few}, {data.labels[i]: int(k_of[i]) for i in few}
    )
    parts = tuple(part[:, 0] for part in parts)
    # Made by us, a million of them: put together without the look at each one's eigenvalues.
    one = Mixture(*(part[:1] for part in parts))
    return jax.tree.unflatten(jax.tree.structure(one), parts)


def _absent(nodes: int, kept: int, k: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, means and covariances of mixtures (nodes, kept) without a component."""
    shape = (nodes, kept, k)
    covariances = np.broadcast_to(np.eye(d), (*shape, d, d)).copy()
    return np.zeros(shape), np.zeros((*shape, d)), covariances


def distinct_rows_of_all(data: NodeData) -> NodeData:
    """Sort the rows of every node and join equal ones into one of their whole weight."""
    rows, weights = data.rows, data.row_weights
    if isinstance(data.rows, jax.Array):
        node = Segments(data.offsets[:-1], len(data.rows)).number()
        order = in_order_of(*_columns(data.rows), node)
        rows, weights, same, some = jax.jit(_in_order)(rows, weights, node, order)
        if not some:  # where each row came from nobody asks on a device
            return replace(data, rows=rows, row_weights=weights)
    else:
        node: Any = data.node_index
        order = np.lexsort((*data.rows.T[::-1], node))
        rows, weights, same, _ = _in_order(rows, weights, node, order)
    source, node, same = (np.asarray(part) for part in (order, node, same))
    source = data.source_index[source]
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    weights = Segments(first, len(rows)).sums(weights)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(node[first], minlength=data.n_nodes))])
    return NodeData(
        data.labels, rows[first], weights, offsets, source[first], categories=data.categories
    )


@jax.jit
def _columns(rows: jax.Array) -> list[jax.Array]:
    """The first comes last, since it counts most."""
    return [*rows.T[::-1]]


def _in_order(rows: Any, weights: Any, node: Any, order: Any) -> tuple[Any, Any, Any, Any]:
    """Rows and weights; which rows are as the one before them, and whether any is.

    `node` is sorted, and so the same in that order.
    """
    rows, weights = rows[order], weights[order]
    same = (rows[1:] == rows[:-1]).all(1) & (node[1:] == node[:-1])
    return rows, weights, same, same.any()


def _cluster(x, weights, seeds, k: int, n_init: int, keep_all: bool):
    """Weights, means and covariances (nodes, kept, k, ...) of clusterings of every node."""
    nodes, _, m = x.shape
    x, weights = jnp.asarray(x), jnp.asarray(weights)
    # As in scikit-learn: about the mean, so that rows far from the origin lose no digits.
    shift = (weights[:, None] * x).sum(-1) / weights.sum(1, keepdims=True)
    x = jnp.where(weights[:, None] > 0, x - shift[:, :, None], 0.0)
    again = lambda part: jnp.repeat(part, n_init, axis=0)
    restart = jnp.tile(jnp.arange(n_init, dtype=jnp.uint32), nodes)
    keys = jnp.stack([again(jnp.asarray(seeds)), restart], axis=-1)
    centres = plus_plus(again(x), again(weights), keys, k)
    found = dispatch.lloyd(x, weights, centres)
    labels = found.labels.reshape(nodes, n_init, m)
    if not keep_all:
        best = first_least(found.inertia.reshape(nodes, n_init))
        labels = jnp.take_along_axis(labels, best[:, None, None], axis=1)
    ours = labels[:, :, None] == jnp.arange(k, dtype=labels.dtype)[None, None, :, None]
    member = jnp.where(ours, weights[:, None, None], 0.0)
    mass = member.sum(-1)
    share = member / mass[..., None]
    means = jnp.einsum("nskm,nim->nski", share, x)
    centred = x[:, None, None] - means[..., None]
    covariances = jnp.einsum("nskm,nskim,nskjm->nskij", share, centred, centred)
    return mass / mass.sum(-1, keepdims=True), means + shift[:, None, None], covariances


_clustered = jit(_cluster, quick=True)  # short runs: compiling is most of it


@jit
def _sorted_and_clustered(
    rows, row_weights, first, count, seeds, reg_covar, m: int, k: int, n_init: int
):
    """Clusterings of these nodes, and how many distinct rows each of them has."""
    column = jnp.arange(m)[None]
    there = column < jnp.asarray(count)[:, None]
    index = jnp.where(there, jnp.asarray(first)[:, None] + column, 0)
    weights = jnp.where(there, row_weights[index], 0.0)
    # Zero has two signs, which are equal; what is not there comes last.
    features = [jnp.where(there, rows[:, i][index] + 0.0, jnp.inf) for i in range(rows.shape[1])]
    *features, weights = jax.lax.sort((*features, weights), dimension=1, num_keys=len(features))
    weights = _joined(features, weights)
    x = jnp.where(weights[:, None] > 0, jnp.stack(features, axis=1), 0.0)
    shares, means, covariances = _cluster(x, weights, seeds, k, n_init, False)
    eye = jnp.eye(len(features)).reshape(1, 1, 1, len(features), -1)
    return (shares, means, covariances + reg_covar * eye), (weights > 0).sum(-1)


def _joined(features: list[jax.Array], weights: jax.Array) -> jax.Array:
    """The weight of every run of equal rows on the first of them."""
    equal = jnp.stack([x[:, 1:] == x[:, :-1] for x in features]).all(0) & (weights[:, 1:] > 0)

    def join(weights):
        columns = [weights[:, j] for j in range(weights.shape[1])]
        for j in range(len(columns) - 1, 0, -1):
            same = equal[:, j - 1]
            columns[j - 1] = columns[j - 1] + jnp.where(same, columns[j], 0.0)
            columns[j] = jnp.where(same, 0.0, columns[j])
        return jnp.stack(columns, axis=1)

    return jax.lax.cond(equal.any(), join, lambda weights: weights, weights)


def _batches(
    counts: np.ndarray, n_components: np.ndarray, n_init: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int, int]]:
    """Nodes of one k and alike size together: little padding, few shapes, bounded memory.

    Yields them, the same filled up with the first one to the length of all such batches, their
    rows when padded, and k.
    """
    room = dispatch.clustered_at_once()
    # Whole octaves: a program more to compile costs as much as clustering a million rows.
    size = np.maximum(8, 1 << np.ceil(np.log2(counts)).astype(int))
    for k in np.unique(n_components):
        for m in np.unique(size[n_components == k]):
            members = np.flatnonzero((n_components == k) & (size == m))
            width = min(max(1, room // int(m * n_init)), len(members))
            for i in range(0, len(members), width):
                nodes = members[i : i + width]
                filler = np.repeat(nodes[:1], width - len(nodes))
                yield nodes, np.concatenate([nodes, filler]), int(m), int(k)


def _padded(data: NodeData, nodes: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (nodes, features, m) and weights of these nodes; padding weighs zero."""
    index = data.offsets[nodes][:, None] + np.arange(m)
    there = np.arange(m) < data.counts[nodes][:, None]
    index = np.where(there, index, 0)
    rows = np.stack([data.rows[:, i][index] for i in range(data.n_features)], axis=1)
    return rows, np.where(there, data.row_weights[index], 0.0)


def seeds_of_many(seed: int, hashes: np.ndarray) -> np.ndarray:
    """A 32-bit number per node, from the run's seed and the hash of the node's label alone."""
    mixed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    return ((hashes ^ np.uint64(mixed)) >> np.uint64(32)).astype(np.uint32)
