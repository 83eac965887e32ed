r"""Matching and averaging of neighbours as one GPU kernel (Pallas): no matched copy is ever kept.

A thread holds one receiving node, matches one neighbour after another (`matching` explains how) and
adds it to the weighted mean, which is all that the pull of eq. (3) needs of a round. The arrays are
read as they stand: turning them about would cost more than the matching. `interpret=True` runs it
on any machine.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from fedmixtures._ties import clearly_less
from fedmixtures._types import PerSlot
from fedmixtures.discrepancy.euclidean import Centre
from fedmixtures.mixture import tiles_gpu
from fedmixtures.mixture.linear import sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.tiles_gpu import TILE
from fedmixtures.mixture.trial import compare, some_mixtures

BITS = 3
"""What the partner of a component takes in a matching written as one number."""


class Unmatched(eqx.Module):
    """Neighbours as they came, until the weights of the edges are known."""

    own: Mixture
    neighbours: Mixture


def centre_gpu(
    pairs: Unmatched, weight: PerSlot, block_weights, *, interpret: bool = False
) -> Centre:
    """Match every neighbour to its node and average."""
    nodes, own = len(weight), pairs.own
    k, d, dtype = own.n_components, own.n_features, own.means.dtype
    blocks = jnp.stack([jnp.asarray(block, dtype) for block in block_weights])
    parts = (*own.parts, *pairs.neighbours.parts, weight, tiles_gpu.in_use(weight))
    arrays = [*map(tiles_gpu.flat, parts[:-1]), tiles_gpu.whole_tiles(parts[-1])]
    results = [*arrays[:3], arrays[-1], arrays[-1]]  # the offset, total and scatter
    *offset, total, scatter = pl.pallas_call(
        partial(_kernel, k=k, d=d),
        grid=(len(arrays[0]) // TILE,),
        in_specs=[pl.BlockSpec((3,), lambda i: (0,)), *map(tiles_gpu.leading, arrays)],
        out_specs=list(map(tiles_gpu.leading, results)),
        out_shape=[jax.ShapeDtypeStruct(part.shape, dtype) for part in results],
        **tiles_gpu.options(interpret),
    )(blocks, *arrays)
    shaped = zip(offset, own.parts, strict=True)
    mean = Mixture(*(new[:nodes].reshape(part.shape) for new, part in shaped))
    return Centre(own, mean, total[:nodes], scatter[:nodes])


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `mixture.trial`."""
    from fedmixtures.discrepancy.euclidean import Euclidean

    rng = np.random.default_rng(0)
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[: TILE // 2, 1:] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    euclidean = Euclidean((1.0, 2.0, 0.5))

    def kernel(own, neighbours, weight):
        pairs = Unmatched(own, neighbours)
        centre = centre_gpu(pairs, weight, euclidean.block_weights, interpret=interpret)
        return euclidean.pull(own, centre, weight)

    plain = lambda own, others, weight: euclidean.pull(own, euclidean.matched(own, others), weight)
    compare(kernel, plain, dtype, own, neighbours, weight)


def _kernel(block_ref, *refs, k: int, d: int):
    """Centres of one tile of nodes; every value below is a vector over the tile."""
    edge_ref, in_use_ref, *out_refs = refs[6:]
    triangle = [(i, j) for i in range(d) for j in range(i + 1)]
    in_weights, in_means, in_covariances = (block_ref[i] for i in range(3))
    # Entries off the diagonal stand twice in the matrix.
    twice = [in_covariances if i == j else 2 * in_covariances for i, j in triangle]
    scales = [in_weights, *[in_means] * d, *twice]

    def read(refs, slot):
        """Weight, mean and lower triangle of every component of the mixtures in a slot."""
        weights_ref, means_ref, covariances_ref = refs
        found = []
        for c in range(k):
            at = slot * k + c
            means = [means_ref[:, at * d + i] for i in range(d)]
            entries = [covariances_ref[:, (at * d + i) * d + j] for i, j in triangle]
            found.append([weights_ref[:, at], *means, *entries])
        return found

    own = read(refs[:3], 0)
    zero = jnp.zeros_like(own[0][0])

    def one_slot(slot, carry):
        sums, scatter, total = carry
        theirs = read(refs[3:6], slot)
        away = lambda c, e: zip(scales, own[c], theirs[e], strict=True)
        cost = [
            [sum_of(scale * ((a - b) * (a - b)) for scale, a, b in away(c, e)) for e in range(k)]
            for c in range(k)
        ]
        least, matching = best_path(cost)
        weight = edge_ref[:, slot]
        new = []
        for c in range(k):
            partner = (matching >> (BITS * c)) & (2**BITS - 1)
            matched = theirs[0]
            for e in range(1, k):
                chosen = partner == e
                both = zip(theirs[e], matched, strict=True)
                matched = [jnp.where(chosen, a, b) for a, b in both]
            fields = zip(sums[c], matched, own[c], strict=True)
            new.append([s + weight * (a - b) for s, a, b in fields])
        return new, scatter + weight * least, total + weight

    start = ([[zero] * len(scales) for _ in range(k)], zero, zero)
    sums, scatter, total = jax.lax.fori_loop(0, in_use_ref[...].max(), one_slot, start)
    share = 1.0 / jnp.where(total > 0, total, 1.0)
    offset_weights, offset_means, offset_covariances, total_ref, scatter_ref = out_refs
    for c in range(k):
        offset = [share * s for s in sums[c]]
        # Of the squares about the own mixture, what is left about the mean.
        squares = (scale * (o * s) for scale, o, s in zip(scales, offset, sums[c], strict=True))
        scatter = scatter - sum_of(squares)
        offset_weights[:, c] = offset[0]
        for i in range(d):
            offset_means[:, c * d + i] = offset[1 + i]
        for (i, j), entry in zip(triangle, offset[1 + d :], strict=True):
            for at in {(i, j), (j, i)}:
                offset_covariances[:, (c * d + at[0]) * d + at[1]] = entry
    total_ref[...] = total
    scatter_ref[...] = jnp.maximum(scatter, 0.0)


def best_path(cost: list[list[jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Least cost of a matching, and the matching: `BITS` bits for the partner of each component.

    The recursion of `matching`, which carries each subset's whole matching along instead of walking
    back; of equals the first is kept there and here.
    """
    k = len(cost)
    best: dict[int, tuple[Any, jax.Array]]
    best = {0: (None, jnp.zeros(cost[0][0].shape, jnp.int32))}
    for own in range(k):
        level = {}
        for chosen in combinations(range(k), own + 1):
            subset, found = sum(1 << e for e in chosen), None
            for e in chosen:
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
