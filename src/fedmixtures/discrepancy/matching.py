"""The best one-to-one matching of components, exactly and inside a compiled program."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures._ties import clearly_less, order_preference
from fedmixtures._types import Array

WRITTEN_OUT, SUBSETS = 6, 10
"""Up to so many components the matching is found over all subsets, k 2^(k-1) additions: written out
one by one (no table look-ups, so that a whole block is one vector loop), or over tables."""
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
    packed = jax.lax.map(_written_out, chunks).reshape(-1)[:batch]
    return jnp.stack([(packed >> (BITS * own)) & (2**BITS - 1) for own in range(k)])


def _written_out(cost: Float[Array, "k k batch"]) -> Int[Array, " batch"]:
    """As `_over_subsets`, every subset by itself; matchings are carried along, packed."""
    k, _, batch = cost.shape
    known = {0: (jnp.zeros(batch, cost.dtype), jnp.zeros(batch, jnp.int32))}
    for own in range(k):
        level = {}
        for chosen in combinations(range(k), own + 1):
            subset = sum(1 << c for c in chosen)
            least = found = None
            for c in chosen:  # in order, so that the first of equals is kept
                total, matching = known[subset ^ (1 << c)]
                total, matching = total + cost[own, c], matching | (c << (BITS * own))
                if least is None or found is None:
                    least, found = total, matching
                else:
                    found = jnp.where(clearly_less(total, least), matching, found)
                    least = jnp.minimum(total, least)
            level[subset] = least, found
        known = level
    return known[2**k - 1][1]


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
