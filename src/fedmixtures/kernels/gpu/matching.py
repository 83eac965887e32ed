r"""Matching and averaging of neighbours as one GPU kernel: no matched copy is ever kept.

A thread holds one receiving node, matches one neighbour after another (`cpu.matching` explains how)
and adds it to the weighted mean, which is all that the pull of eq. (3) needs of a round. The arrays
are read as they stand: turning them about would cost more than the matching.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import PerSlot
from fedmixtures.kernels.cpu.matching import BITS, MatchedMean, best_path, matched, mean_of
from fedmixtures.kernels.gpu import tiles
from fedmixtures.kernels.gpu.tiles import TILE, nodes_of
from fedmixtures.kernels.trial import compare, some_mixtures
from fedmixtures.mixture.linear import sum_of
from fedmixtures.mixture.mixture import Mixture


def matched_mean_gpu(
    own: Mixture, neighbours: Mixture, weight: PerSlot, block_weights, *, interpret: bool = False
) -> MatchedMean:
    """Match every neighbour to its node and average."""
    nodes = len(weight)
    k, d, dtype = own.n_components, own.n_features, own.means.dtype
    blocks = jnp.stack([jnp.asarray(block, dtype) for block in block_weights])
    arrays = [*map(tiles.flat, (*own.parts, *neighbours.parts, weight))]
    shapes = [part.shape for part in arrays[:3]]
    *offset, total, scatter = tiles.call(
        partial(_kernel, k=k, d=d),
        {"tile": len(arrays[0]) // TILE},
        [jax.ShapeDtypeStruct(shape, dtype) for shape in (*shapes, *[shapes[0][:1]] * 2)],
        (*arrays, tiles.most_in_use(weight), blocks),
        interpret=interpret,
    )
    shaped = zip(offset, own.parts, strict=True)
    mean = Mixture(*(new[:nodes].reshape(part.shape) for new, part in shaped))
    return MatchedMean(own, mean, total[:nodes], scatter[:nodes], tuple(block_weights))


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `kernels.trial`."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[: TILE // 2, 1:] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    blocks = (1.0, 2.0, 0.5)
    kernel = lambda own, others, weight: matched_mean_gpu(
        own, others, weight, blocks, interpret=interpret
    ).pull(own)
    plain = lambda own, others, weight: mean_of(matched(own, others, blocks), weight, blocks).pull(
        own
    )
    compare(kernel, plain, dtype, own, neighbours, weight)


def _kernel(tile, *refs, k: int, d: int):
    """Centres of one tile of nodes; every value below is a vector over the tile."""
    edge_ref, in_use_ref, block_ref, *out_refs = refs[6:]
    at = nodes_of(tile)
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
            place = slot * k + c
            means = [means_ref[at, place * d + i] for i in range(d)]
            entries = [covariances_ref[at, (place * d + i) * d + j] for i, j in triangle]
            found.append([weights_ref[at, place], *means, *entries])
        return found

    own = read(refs[:3], 0)
    zero = tiles.zeros(own[0][0])

    def one_slot(slot, carry):
        sums, scatter, total = carry
        theirs = read(refs[3:6], slot)
        away = lambda c, e: zip(scales, own[c], theirs[e], strict=True)
        cost = [
            [sum_of(scale * ((a - b) * (a - b)) for scale, a, b in away(c, e)) for e in range(k)]
            for c in range(k)
        ]
        least, matching = best_path(cost)
        weight = edge_ref[at, slot]
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
    sums, scatter, total = jax.lax.fori_loop(0, in_use_ref[tile], one_slot, start)
    share = 1.0 / jnp.where(total > 0, total, 1.0)
    offset_weights, offset_means, offset_covariances, total_ref, scatter_ref = out_refs
    for c in range(k):
        offset = [share * s for s in sums[c]]
        # Of the squares about the node's mixture, what is left about the mean.
        squares = (scale * (o * s) for scale, o, s in zip(scales, offset, sums[c], strict=True))
        scatter = scatter - sum_of(squares)
        offset_weights[at, c] = offset[0]
        for i in range(d):
            offset_means[at, c * d + i] = offset[1 + i]
        for (i, j), entry in zip(triangle, offset[1 + d :], strict=True):
            for row, column in {(i, j), (j, i)}:
                offset_covariances[at, (c * d + row) * d + column] = entry
    total_ref[at] = total
    scatter_ref[at] = jnp.maximum(scatter, 0.0)
