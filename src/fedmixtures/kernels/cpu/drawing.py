"""Points that stand for the neighbours of every node: drawn slot by slot, pulled as rows.

Of 1,280 neighbours with 5 components and 2 features 50 points each take 3.7 ms on a CPU core, with
their log-density; by `mixture.sampling` and `mixture.density` 7.6 ms.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, PerSlot, SlotKeys
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.cpu import likelihood
from fedmixtures.mixture.density import log_density
from fedmixtures.mixture.linear import UNROLLED, cholesky_entries, lower_triangle, sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics
from fedmixtures.mixture.sampling import sample, standard_draws

CHUNK_SLOTS = 4
"""Slots whose points are taken together where there are many."""


class NeighbourRows(eqx.Module):
    """Points of all neighbours as weighted rows: eq. (4) is the local loss on them."""

    points: Float[Array, "nodes s n d"]
    row_weights: Float[Array, "nodes s n"]
    constant: PerNode
    """Weighted sum of the log-density of the points under the neighbours' own mixtures."""

    def pull(self, own: Mixture) -> tuple[PerNode, Mixture]:
        """Closed form, some slots at a time: those in use come first, and the loop ends there."""
        nodes, slots, n, d = self.points.shape
        rows = self.points.reshape(nodes, slots * n, d)
        row_weights = self.row_weights.reshape(nodes, slots * n)
        together = dispatch.together(slots)
        if together == slots:
            nll, gradient = dispatch.nll_and_gradient(own, rows, row_weights)
        else:
            used = (self.row_weights != 0).any(-1)
            in_use = jnp.where(used, jnp.arange(1, slots + 1)[None], 0).max()
            n_chunks = (in_use + together - 1) // together
            s = _chunked_statistics(own, rows, row_weights, together * n, n_chunks)
            nll, gradient = dispatch.nll_of_statistics(own, s)
        return nll + self.constant, gradient


def draw_points(neighbours: Mixture, keys: SlotKeys, weight: PerSlot, n: int) -> NeighbourRows:
    """`n` points drawn from every neighbour, each slot's rows weighing its weight."""
    if neighbours.n_features <= UNROLLED:
        drawn = sample_slots(neighbours, keys, n)
        nodes_first = lambda part: jnp.moveaxis(part, 0, 1)
        log_neighbour = nodes_first(likelihood.log_density_slots(neighbours, drawn))
        points = nodes_first(jnp.stack(drawn, axis=-1))
    else:
        over_block = lambda function: jax.vmap(jax.vmap(function))
        points = over_block(lambda mixture, key: sample(mixture, key, n))(neighbours, keys)
        log_neighbour = over_block(log_density)(neighbours, points)
    row_weights = jnp.broadcast_to(weight[:, :, None] / n, points.shape[:3])
    return NeighbourRows(points, row_weights, (row_weights * log_neighbour).sum((-1, -2)))


def sample_slots(mixtures: Mixture, keys: SlotKeys, n: int) -> list[jax.Array]:
    """`sample` for every slot of a block: an array (slots, nodes, n) for each feature.

    One slot after another, first all random numbers, then all points: loops keep what they made,
    where one long expression would be worked out anew for each of its uses.
    """
    k, d = mixtures.n_components, mixtures.n_features
    dtype = jnp.result_type(mixtures.means)
    slots_first = lambda part: jnp.moveaxis(jnp.asarray(part), 1, 0)
    draws = jax.lax.map(
        lambda bits: standard_draws(jr.wrap_key_data(bits), n, d, dtype),
        slots_first(jr.key_data(keys)),
    )
    of = lambda part, c: part[:, c, None]

    def one_slot(args):
        (weights, means, covariances), (uniforms, noise) = args
        cumulative = jnp.cumsum(weights, axis=-1)
        level = uniforms * cumulative[:, -1:]
        factor = cholesky_entries(lower_triangle(covariances))

        def point(i, c):
            shift = sum_of(of(factor[i][j], c) * noise[j] for j in range(i + 1))
            return of(means[..., i], c) + shift

        points = []
        for i in range(d):
            chosen = point(i, 0)
            for c in range(1, k):  # the last one whose share of (0, 1) has begun
                new = point(i, c)
                chosen = jnp.where(level >= of(cumulative, c - 1), new, chosen)
            points.append(chosen)
        return points

    return jax.lax.map(one_slot, (tuple(slots_first(part) for part in mixtures.parts), draws))


def _chunked_statistics(own: Mixture, rows, row_weights, size: int, n_chunks) -> Statistics:
    """Statistics of the first `n_chunks` chunks of rows: what lies behind them weighs nothing."""
    nodes, m, d = rows.shape
    most = -(-m // size)
    padding = most * size - m
    rows = jnp.pad(rows, ((0, 0), (0, padding), (0, 0))).reshape(nodes, most, size, d)
    row_weights = jnp.pad(row_weights, ((0, 0), (0, padding))).reshape(nodes, most, size)
    # Chunks lead and features stand apart, so that each is one piece of memory.
    features = [jnp.moveaxis(rows[..., i], 1, 0) for i in range(d)]
    row_weights = jnp.moveaxis(row_weights, 1, 0)

    def chunk(i) -> Statistics:
        return dispatch.statistics(
            own, jnp.stack([x[i] for x in features], axis=-1), row_weights[i]
        )

    add = lambda i, total: jax.tree.map(jnp.add, total, chunk(i))
    blank = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(chunk, 0))
    return jax.lax.fori_loop(0, n_chunks, add, blank)
