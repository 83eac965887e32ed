"""The best one-to-one matching of components, exactly and inside a compiled program.

And what the pull of eq. (3) needs of it: the weighted mean of the matched neighbours.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures._ties import clearly_less, order_preference
from fedmixtures._types import Array, PerNode, PerSlot
from fedmixtures.mixture.linear import UNROLLED
from fedmixtures.mixture.mixture import Mixture

WRITTEN_OUT, SUBSETS = 6, 8
"""Up to so many components the matching is found over all subsets, k 2^(k-1) additions: written out
one by one (no table look-ups, so that a whole block is one vector loop), or over tables. Beyond,
optax's Hungarian algorithm. In ms on a CPU core: 1280 pairs of 5 components 0.3 written out, 0.6 by
tables, 1.4 by optax; 1000 pairs of 8 components 2.1 by tables, 3.7 by optax; of 10 141 and 10."""
CHUNK = 512
"""Pairs matched at a time where it is written out."""
BITS = 3
"""What the partner of a component takes in a matching written as one number."""


def best_matching(cost: Float[Array, "k k"]) -> Int[Array, " k"]:
    """`match[c]` is the neighbour's component paired with our component `c`; least total cost."""
    if cost.shape[0] <= SUBSETS:
        return _over_subsets(cost[..., None])[:, 0]
    import optax  # above the subset range only: its import is slow

    row, column = optax.assignment.hungarian_algorithm(cost + order_preference(cost))
    return jnp.zeros_like(column).at[row].set(column)  # pairs come in no order of rows


def best_matchings(cost: Float[Array, "k k batch"]) -> Int[Array, "k batch"]:
    """`best_matching` of many at once; the batch stands last, where it is the vector axis."""
    if cost.shape[0] <= WRITTEN_OUT:
        return _in_chunks(cost)
    if cost.shape[0] <= SUBSETS:
        return _over_subsets(cost)
    return jax.vmap(best_matching, in_axes=-1, out_axes=-1)(cost)


def _in_chunks(cost: Float[Array, "k k batch"]) -> Int[Array, "k batch"]:
    """A loop over chunks, two at least: its end keeps XLA from matching anew for every use."""
    k, _, batch = cost.shape
    size = min(CHUNK, -(-batch // 2))
    n_chunks = -(-batch // size)
    padded = jnp.pad(cost, ((0, 0), (0, 0), (0, n_chunks * size - batch)))
    chunks = jnp.moveaxis(padded.reshape(k, k, n_chunks, size), 2, 0)
    written_out = lambda cost: best_path([[cost[c, e] for e in range(k)] for c in range(k)])[1]
    packed = jax.lax.map(written_out, chunks).reshape(-1)[:batch]
    return jnp.stack([(packed >> (BITS * own)) & (2**BITS - 1) for own in range(k)])


def best_path(cost: list[list[jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Least cost of a matching, and the matching: `BITS` bits for the partner of each component.

    As `_over_subsets`, every subset by itself, its whole matching carried along.
    """
    k = len(cost)
    best: dict[int, tuple[Any, jax.Array]]
    best = {0: (None, jnp.zeros(cost[0][0].shape, jnp.int32))}
    for own in range(k):
        level = {}
        for chosen in combinations(range(k), own + 1):
            subset, found = sum(1 << e for e in chosen), None
            for e in chosen:  # in order, so that the first of equals is kept
                before, path = best[subset ^ (1 << e)]
                value = cost[own][e] if before is None else before + cost[own][e]
                path = path | (e << (BITS * own))
                if found is not None:
                    path = jnp.where(clearly_less(value, found[0]), path, found[1])
                    value = jnp.minimum(value, found[0])
                found = value, path
            level[subset] = found
        best = level
    return best[2**k - 1]


@cache
def _subset_tables(k: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """For each number of matched components: rows of the level before, and what was added.

    Each level holds the subsets of one size, a row for each. Also where each subset stands among
    the rows of all levels.
    """
    levels, place, n_rows = [], np.zeros(2**k, np.int32), 0
    row_of = {0: 0}
    for size in range(1, k + 1):
        subsets = [sum(1 << c for c in chosen) for chosen in combinations(range(k), size)]
        # 32 bits: these constants serve float64 and float32 programs of one process.
        added = np.array([[c for c in range(k) if subset >> c & 1] for subset in subsets], np.int32)
        before = [
            [row_of[s ^ (1 << c)] for c in row] for s, row in zip(subsets, added, strict=True)
        ]
        levels.append((np.array(before, np.int32), added))
        row_of = {subset: row for row, subset in enumerate(subsets)}
        place[subsets] = n_rows + np.arange(len(subsets))
        n_rows += len(subsets)
    return levels, place


def _over_subsets(cost: Float[Array, "k k batch"]) -> Int[Array, "k batch"]:
    """Held and Karp's recursion: the best way to give our first s components to a subset."""
    k, _, batch = cost.shape
    levels, place = _subset_tables(k)
    best, choices = jnp.zeros((1, batch), cost.dtype), []
    for own, (before, added) in enumerate(levels):
        least = best[before[:, 0]] + cost[own, added[:, 0]]
        pick = jnp.broadcast_to(added[:, :1], least.shape)
        for j in range(1, own + 1):  # candidates in order, so that the first of equals is kept
            other = best[before[:, j]] + cost[own, added[:, j]]
            pick = jnp.where(clearly_less(other, least), added[:, j, None], pick)
            least = jnp.minimum(other, least)
        # Each level is kept: worked out anew for every use, the cost would double per level.
        best, pick = jax.lax.optimization_barrier((least, pick))
        choices.append(pick)
    choice = jnp.concatenate(choices)
    subset = jnp.full((1, batch), 2**k - 1, jnp.int32)
    partners = []
    for _ in range(k):
        partners.append(jnp.take_along_axis(choice, jnp.asarray(place)[subset], axis=0))
        subset = subset ^ (1 << partners[-1])
    return jnp.concatenate(partners[::-1])


# Eq. (3) over a block ----------------------------------------------------------------------------


class MatchedMean(eqx.Module):
    r"""Weighted mean $\bar\theta = \theta_0 + \delta$ of the matched neighbours of every node."""

    origin: Mixture
    r"""$\theta_0$, some mixture nearby: means may be far from zero."""
    offset: Mixture
    total: PerNode
    """Sum of the weights."""
    scatter: PerNode
    r"""$\sum_j w_j \|P_j\theta_j - \bar\theta\|^2$, blocks weighed."""
    block_weights: tuple[Any, Any, Any]

    def pull(self, own: Mixture) -> tuple[PerNode, Mixture]:
        r"""Closed form around the mean, block by block.

        With $W = \sum_j w_j$ and $\bar\theta = \sum_j w_j P_j\theta_j / W$:
        $\sum_j w_j \|\theta - P_j\theta_j\|^2 = W \|\theta - \bar\theta\|^2 + \sum_j w_j
        \|P_j\theta_j - \bar\theta\|^2$, whose last term and $\bar\theta$ stay the same for a round.
        """
        value, gradient = self.scatter, []
        parts = zip(own.parts, self.origin.parts, self.offset.parts, strict=True)
        for block, (mine, origin, offset) in zip(self.block_weights, parts, strict=True):
            difference = (mine - origin) - offset
            total = self.total.reshape(-1, *[1] * (mine.ndim - 1))
            gradient.append(2 * block * total * difference)
            value = value + 0.5 * (gradient[-1] * difference).reshape(len(mine), -1).sum(-1)
        return value, Mixture(*gradient)


def component_distances(own: Mixture, other: Mixture, block_weights) -> Float[Array, "k k"]:
    """Squared distance of every component of one mixture to every component of the other."""
    squares = [
        jnp.square(a[:, None] - b[None, :]).reshape(len(a), len(b), -1).sum(-1)
        for a, b in zip(own.parts, other.parts, strict=True)
    ]
    return jnp.asarray(sum(w * square for w, square in zip(block_weights, squares, strict=True)))


def matched(own: Mixture, neighbours: Mixture, block_weights) -> Mixture:
    """The neighbours of every slot with their components in the order of the node's own."""
    nodes, slots, k = neighbours.weights.shape
    if own.n_features <= UNROLLED:  # one parameter after another, slots and then nodes last
        cost = 0.0
        mine, theirs = _fields(own, block_weights), _fields(neighbours, block_weights)
        for (scale, a), (_, b) in zip(mine, theirs, strict=True):
            a, b = jnp.moveaxis(a, 0, -1), jnp.moveaxis(b, (0, 1), (-1, -2))
            cost = cost + scale * jnp.square(a[:, None, None, :] - b[None])
    else:
        over_slots = jax.vmap(component_distances, in_axes=(None, 0, None))
        cost = jax.vmap(over_slots, in_axes=(0, 0, None))(own, neighbours, block_weights)
        cost = jnp.transpose(cost, (2, 3, 1, 0))
    match = best_matchings(jnp.reshape(cost, (k, k, slots * nodes))).reshape(k, slots, nodes)
    order = jnp.transpose(match, (2, 1, 0))
    pick = lambda part: jnp.take_along_axis(
        part, order.reshape(*order.shape, *(1,) * (part.ndim - 3)), axis=2
    )
    return Mixture(*(pick(jnp.asarray(part)) for part in neighbours.parts))


def mean_of(neighbours: Mixture, weight: PerSlot, block_weights) -> MatchedMean:
    """The mean of neighbours (nodes, slots, ...) whose components are already matched."""
    total = weight.sum(-1)
    share = weight / jnp.where(total > 0, total, 1.0)[:, None]
    like = lambda values, part: values.reshape(*values.shape, *[1] * (part.ndim - 2))
    origin = jax.tree.map(lambda part: jnp.asarray(part)[:, 0], neighbours)
    scatter, offset = jnp.zeros_like(total), []
    for block, theirs, first in zip(block_weights, neighbours.parts, origin.parts, strict=True):
        theirs = theirs - first[:, None]
        offset.append((like(share, theirs) * theirs).sum(1))
        squares = jnp.square(theirs - offset[-1][:, None])
        scatter += block * (weight * squares.reshape(*weight.shape, -1).sum(-1)).sum(-1)
    return MatchedMean(origin, Mixture(*offset), total, scatter, tuple(block_weights))


def _fields(mixture: Mixture, block_weights) -> list[tuple[Any, Any]]:
    """The parameters one by one, (..., k) each, and how much their squares weigh in eq. (3)."""
    in_weights, in_means, in_covariances = block_weights
    d = mixture.n_features
    fields = [(in_weights, mixture.weights)]
    fields += [(in_means, mixture.means[..., i]) for i in range(d)]
    for i in range(d):
        fields += [(in_covariances, mixture.covariances[..., i, j]) for j in range(d)]
    return fields
