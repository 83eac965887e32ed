"""Starting mixtures of many nodes: batches of alike nodes, each one call of the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from fedmixtures._ties import first_least
from fedmixtures.data.node_data import NodeData
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.compiling import jit
from fedmixtures.kernels.cpu.clustering import plus_plus
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import double


def mixtures_of_many(
    data: NodeData,
    n_components: Sequence[int],
    seeds: np.ndarray,
    n_init: int,
    ridge: float,
    keep_all: bool = False,
) -> Mixture:
    """Starting mixtures of all nodes, stacked; rows in an order of their own (sorted).

    The tightest of `n_init` clusterings per node, the first of equals; with `keep_all` all of them,
    node after node.
    """
    kept = n_init if keep_all else 1
    k_of = np.asarray(n_components)
    shape, d = (data.n_nodes, kept, int(k_of.max())), data.n_features
    weights, means = np.zeros(shape), np.zeros((*shape, d))
    covariances = np.broadcast_to(np.eye(d), (*shape, d, d)).copy()
    for nodes, width, m, k in batches(data.counts, k_of, n_init):
        filled = np.concatenate([nodes, np.repeat(nodes[:1], width - len(nodes))])
        with double():
            found = _clustered(*_padded(data, filled, m), seeds[filled], k, n_init, keep_all)
        for part, new in zip((weights, means, covariances), found, strict=True):
            part[nodes, :, :k] = np.asarray(new)[: len(nodes)]
    covariances[weights > 0] += ridge * np.eye(d)
    flat = lambda part: part.reshape(-1, *part.shape[2:])
    return Mixture(flat(weights), flat(means), flat(covariances))


def distinct_rows_of_all(data: NodeData) -> NodeData:
    """The same nodes, rows sorted and equal rows joined into one of their whole weight."""
    order = np.lexsort((*data.rows.T[::-1], data.node_index))
    rows, node = data.rows[order], data.node_index[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (node[1:] != node[:-1]) | (rows[1:] != rows[:-1]).any(1)
    first = np.flatnonzero(new)
    weights = np.add.reduceat(data.row_weights[order], first)
    counts = np.bincount(node[first], minlength=data.n_nodes)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return NodeData(data.labels, rows[first], weights, offsets, data.source_index[order][first])


def clustered(x, weights, seeds, k: int, n_init: int, keep_all: bool):
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
    found = dispatch.settled(x, weights, centres)
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


_clustered = jit(clustered, quick=True)  # short runs: compiling is most of it


def batches(
    counts: np.ndarray, n_components: np.ndarray, n_init: int
) -> Iterator[tuple[np.ndarray, int, int, int]]:
    """Nodes of one k and alike size together: little padding, few shapes, bounded memory."""
    room = dispatch.clustered_at_once()
    # Whole octaves: a program more to compile costs as much as clustering a million rows.
    size = np.maximum(8, 1 << np.ceil(np.log2(counts)).astype(int))
    for k in np.unique(n_components):
        for m in np.unique(size[n_components == k]):
            members = np.flatnonzero((n_components == k) & (size == m))
            width = min(max(1, room // int(m * n_init)), len(members))
            for i in range(0, len(members), width):
                yield members[i : i + width], width, int(m), int(k)


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
