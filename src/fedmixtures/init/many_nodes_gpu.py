"""Starting mixtures of very many nodes on a GPU: rows are sorted and joined there too.

The same clusterings as `many_nodes` finds: equal rows are joined into one of their whole weight,
and the others stay behind with weight zero, which counts as absent.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.init.many_nodes import batches, clustered
from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import double


def mixtures_on_gpu(
    data: NodeData, n_components: Sequence[int], seeds: np.ndarray, n_init: int, ridge: float
) -> Mixture:
    """Starting mixtures of all nodes, stacked."""
    k_of, d = np.asarray(n_components), data.n_features
    shape = (data.n_nodes, int(k_of.max()))
    weights, means = np.zeros(shape), np.zeros((*shape, d))
    covariances = np.broadcast_to(np.eye(d), (*shape, d, d)).copy()
    distinct = np.zeros(data.n_nodes, dtype=np.int64)
    level = np.float64(ridge)  # a number of the program, not a part of it
    with double():
        table = jnp.asarray(data.rows), jnp.asarray(data.row_weights)
        for nodes, width, m, k in batches(data.counts, k_of, n_init):
            filled = np.concatenate([nodes, np.repeat(nodes[:1], width - len(nodes))])
            begin = data.offsets[filled], data.counts[filled]
            found, n_rows = _of_batch(*table, *begin, seeds[filled], level, m, k, n_init)
            distinct[nodes] = np.asarray(n_rows)[: len(nodes)]
            # Nodes in a row, as they mostly are, are copied in one piece.
            in_a_row = nodes[-1] - nodes[0] == len(nodes) - 1
            span = slice(nodes[0], nodes[-1] + 1) if in_a_row else nodes
            for part, new in zip((weights, means, covariances), found, strict=True):
                part[span, :k] = np.asarray(new)[: len(nodes), 0]
    few = np.flatnonzero(distinct < k_of)
    _checks.enough_rows(
        {data.labels[i]: int(distinct[i]) for i in few}, {data.labels[i]: int(k_of[i]) for i in few}
    )
    parts = (weights, means, covariances)
    # Made by us, a million of them: put together without the look at each one's eigenvalues.
    one = Mixture(*(part[:1] for part in parts))
    return jax.tree.unflatten(jax.tree.structure(one), parts)


@jit
def _of_batch(rows, row_weights, first, count, seeds, ridge, m: int, k: int, n_init: int):
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
    shares, means, covariances = clustered(x, weights, seeds, k, n_init, False)
    eye = jnp.eye(len(features)).reshape(1, 1, 1, len(features), -1)
    return (shares, means, covariances + ridge * eye), (weights > 0).sum(-1)


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
