"""The best one-to-one matching of components, exactly and inside a compiled program."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures._types import Array

WRITTEN_OUT, SUBSETS = 6, 10
"""Up to so many components the matching is found over all subsets, k 2^(k-1) additions: written out
one by one (no table look-ups, so that a whole block is one vector loop), or over tables."""


def best_matching(cost: Float[Array, "k k"]) -> Int[Array, " k"]:
    """`match[c]` is the neighbour's component paired with our component `c`; least total cost."""
    k = cost.shape[0]
    if k <= WRITTEN_OUT:
        return _written_out(cost)
    if k <= SUBSETS:
        return _over_subsets(cost)
    import optax  # above the subset range only: its import is slow

    row, column = optax.assignment.hungarian_algorithm(cost)
    return jnp.zeros_like(column).at[row].set(column)  # pairs come in no order of rows


@cache
def _subset_tables(k: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each number of matched components: the subsets, what precedes them, what was added."""
    levels = []
    for size in range(1, k + 1):
        subsets = [sum(1 << c for c in chosen) for chosen in combinations(range(k), size)]
        # 32 bits: these constants serve float64 and float32 programs of one process.
        added = np.array([[c for c in range(k) if subset >> c & 1] for subset in subsets], np.int32)
        subsets = np.array(subsets, np.int32)
        levels.append((subsets, subsets[:, None] ^ (np.int32(1) << added), added))
    return levels


def _written_out(cost: Float[Array, "k k"]) -> Int[Array, " k"]:
    """Held and Karp's recursion; partners travel with the cost, three bits each."""
    k = cost.shape[0]
    best = {0: (jnp.zeros((), cost.dtype), jnp.zeros((), jnp.int32))}
    for own in range(k):
        grown = {}
        for chosen in combinations(range(k), own + 1):
            subset = sum(1 << c for c in chosen)
            for c in chosen:
                total, partners = best[subset ^ (1 << c)]
                total, partners = total + cost[own, c], partners | (c << 3 * own)
                if subset in grown:
                    least, kept = grown[subset]
                    better = total < least
                    partners = jnp.where(better, partners, kept)
                    total = jnp.where(better, total, least)
                grown[subset] = total, partners
        best = grown
    partners = best[2**k - 1][1]
    return jnp.stack([(partners >> 3 * own) & 7 for own in range(k)])


def _over_subsets(cost: Float[Array, "k k"]) -> Int[Array, " k"]:
    """Held and Karp's recursion: the best way to give our first s components to a subset."""
    k = cost.shape[0]
    best = jnp.zeros(2**k, cost.dtype)
    choice = jnp.zeros(2**k, jnp.int32)
    for own, (subsets, before, added) in enumerate(_subset_tables(k)):
        totals = best[before] + cost[own][added]
        pick = totals.argmin(1)
        best = best.at[subsets].set(totals.min(1))
        choice = choice.at[subsets].set(
            jnp.take_along_axis(jnp.asarray(added), pick[:, None], axis=1)[:, 0]
        )

    def backtrack(subset, own):
        del own
        partner = choice[subset]
        return subset ^ (1 << partner), partner

    _, partners = jax.lax.scan(backtrack, jnp.int32(2**k - 1), jnp.arange(k), reverse=True)
    return partners
