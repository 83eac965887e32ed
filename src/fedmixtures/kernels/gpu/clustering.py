"""Lloyd's iteration of very many nodes as one GPU kernel: every node ends by itself.

A thread holds the centres of one restart of one node and streams the node's rows past them until
they settle. Same steps as `cpu.clustering.lloyd`, which explains them. Labels are never kept: those
of the step before are found again from the centres before.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedmixtures._ties import clearly_less
from fedmixtures._types import Array, RowWeights
from fedmixtures.kernels.cpu.clustering import (
    MAX_STEPS,
    TOLERANCE,
    Clustering,
    FeaturesFirst,
    lloyd,
    mean_variance,
)
from fedmixtures.kernels.gpu import tiles
from fedmixtures.kernels.gpu.tiles import TILE, nodes_last, nodes_of
from fedmixtures.kernels.trial import compare
from fedmixtures.mixture.linear import sum_of

MOST_NUMBERS = 40
"""Numbers of all centres together that a thread's registers hold (twice)."""


def lloyd_gpu(
    x: FeaturesFirst,
    weights: RowWeights,
    centres: Float[Array, "starts k d"],
    *,
    interpret: bool = False,
) -> Clustering:
    """`cpu.clustering.lloyd` of restarts of every node: `centres` lists them node after node."""
    nodes, d, m = x.shape
    k = centres.shape[1]
    restarts = len(centres) // nodes
    starts = nodes_last(centres.reshape(nodes, restarts * k * d))
    tolerance = nodes_last(TOLERANCE * mean_variance(x, weights))
    count = tiles.in_use(weights)
    arrays = (starts, nodes_last(x.reshape(nodes, d * m)), nodes_last(weights))
    places = starts.shape[-1]
    sizes, dtypes = (m, k * d, 1), (jnp.int32, x.dtype, x.dtype)
    found = tiles.call(
        partial(_kernel, k=k, d=d, m=m),
        {"tile": places // TILE, "restart": restarts},
        [
            jax.ShapeDtypeStruct((restarts * size, places), dtype)
            for size, dtype in zip(sizes, dtypes, strict=True)
        ],
        (*arrays, nodes_last(count), tiles.most_in_use(weights), tolerance),
        interpret=interpret,
    )
    by_node = (part.T[:nodes].reshape(nodes * restarts, -1) for part in found)
    labels, moved, inertia = by_node
    # Rows behind the last one of a tile were never looked at.
    behind = jnp.arange(m)[None] >= jnp.repeat(count, restarts)[:, None]
    return Clustering(jnp.where(behind, 0, labels), moved.reshape(-1, k, d), inertia[:, 0])


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `kernels.trial`; a centre far away stays empty and must be filled."""
    rng, restarts, m = np.random.default_rng(0), 2, 4 * k
    x = rng.normal(size=(TILE, d, m)).astype(dtype)
    weights = rng.uniform(0.5, 2, size=(TILE, m)).astype(dtype)
    weights[: TILE // 2, 3 * k :] = 0
    rows = rng.permuted(np.tile(np.arange(3 * k), (TILE * restarts, 1)), axis=1)[:, :k]
    again = np.repeat(np.swapaxes(x, 1, 2), restarts, axis=0)
    centres = np.take_along_axis(again, rows[:, :, None], axis=1)
    centres[: TILE // 2, -1] += 50
    repeat = lambda part: jnp.repeat(part, restarts, axis=0)

    def counted(found: Clustering, weights):
        """The labels of rows that count."""
        return jnp.where(repeat(weights) > 0, found.labels, 0), found.centres, found.inertia

    def kernel(x, weights, centres):
        return counted(lloyd_gpu(x, weights, centres, interpret=interpret), weights)

    def plain(x, weights, centres):
        return counted(lloyd(repeat(x), repeat(weights), centres), weights)

    compare(kernel, plain, dtype, x, weights, centres)


def _kernel(
    tile,
    restart,
    start_ref,
    x_ref,
    weight_ref,
    count_ref,
    in_use_ref,
    tolerance_ref,
    label_ref,
    centre_ref,
    inertia_ref,
    *,
    k: int,
    d: int,
    m: int,
):
    """One restart of one tile of nodes; every value below is a vector over the tile."""
    at = nodes_of(tile)
    count, tolerance, n_rows = count_ref[at], tolerance_ref[at], in_use_ref[tile]
    zero, none = tiles.zeros(tolerance), tiles.zeros(count)
    first = restart * k * d
    start = [[start_ref[first + c * d + i, at] for i in range(d)] for c in range(k)]
    read = lambda r: ([x_ref[i * m + r, at] for i in range(d)], weight_ref[r, at])

    def step(carry):
        centres, before, done, unchanged, t, _ = carry
        moved, same = _moved(centres, before, done, read, n_rows)
        same = jnp.where(t > 0, same, 0)  # nothing to be the same as at first
        away = sum_of((a - b) * (a - b) for a, b in zip(_all(moved), _all(centres), strict=True))
        ended = jnp.where((same > 0) | (away <= tolerance), 1, done)
        unchanged = jnp.where((done == 0) & (same > 0), 1, unchanged)
        keep = lambda new, old: [
            [jnp.where(done > 0, b, a) for a, b in zip(*both, strict=True)]
            for both in zip(new, old, strict=True)
        ]
        return (
            keep(moved, centres),
            keep(centres, before),
            ended,
            unchanged,
            t + 1,
            (1 - ended).max(),
        )

    unfinished = lambda carry: (carry[-2] < MAX_STEPS) & (carry[-1] > 0)
    done = jnp.where(count > 0, none, none + 1)
    begin = (start, start, done, none, jnp.int32(0), (1 - done).max())
    centres, before, _, unchanged, _, _ = jax.lax.while_loop(unfinished, step, begin)

    def last_look(r, inertia):
        """Where centres moved last, labels are those of the centres after."""
        x, weight = read(r)
        label, distance = _nearest(centres, x)
        label_ref[restart * m + r, at] = jnp.where(unchanged > 0, _nearest(before, x)[0], label)
        return inertia + weight * distance

    inertia_ref[restart, at] = jax.lax.fori_loop(0, n_rows, last_look, zero)
    for i, centre in enumerate(_all(centres)):
        centre_ref[first + i, at] = centre


def _moved(centres, before, done, read, n_rows):
    """The means of the rows nearest to each centre, and whether these are the rows of before."""
    zero, d = tiles.zeros(centres[0][0]), len(centres[0])

    def one_row(r, carry):
        sums, same = carry
        x, weight = read(r)
        label, _ = _nearest(centres, x)
        old, _ = _nearest(before, x)
        same = jnp.where((label == old) | (weight == 0), same, 0)
        return _with_row(sums, label, x, weight), same

    blank = [[zero] * (1 + d) for _ in centres]
    sums, same = jax.lax.fori_loop(0, n_rows, one_row, (blank, 1 + tiles.zeros(done)))
    none = tiles.zeros(done)
    empty = [jnp.where((total[0] == 0) & (done == 0), none + 1, none) for total in sums]
    fill = lambda sums: _filled(sums, empty, centres, read, n_rows)
    sums = jax.lax.cond(sum_of(empty).max() > 0, fill, lambda sums: sums, sums)
    moved = [
        [jnp.where(s[0] > 0, s[1 + i] / jnp.where(s[0] > 0, s[0], 1), own[i]) for i in range(d)]
        for s, own in zip(sums, centres, strict=True)
    ]
    return moved, same


def _all(centres) -> list[jax.Array]:
    return [number for centre in centres for number in centre]


def _nearest(centres, x):
    """The nearest centre, the first of equals, and its squared distance."""
    away = lambda c: sum_of((a - b) * (a - b) for a, b in zip(x, centres[c], strict=True))
    least = away(0)
    label = jnp.zeros(least.shape, jnp.int32)
    for c in range(1, len(centres)):
        distance = away(c)
        label = jnp.where(clearly_less(distance, least), jnp.int32(c), label)
        least = jnp.minimum(distance, least)
    return label, least


def _with_row(sums, label, x, weight):
    """Weight and weighted sums of each cluster with one row more."""
    new = []
    for c, total in enumerate(sums):
        share = jnp.where(label == c, weight, 0)
        terms = [share, *(share * one for one in x)]
        new.append([a + b for a, b in zip(total, terms, strict=True)])
    return new


def _filled(sums, empty, centres, read, n_rows):
    """Empty clusters in turn take the farthest row that is left away from where it was."""
    taken = []
    for c in range(len(sums)):

        def farther(r, best, taken=tuple(taken)):
            far, where, label, x, weight = best
            row, row_weight = read(r)
            own, distance = _nearest(centres, row)
            better = (row_weight > 0) & clearly_less(far, distance)
            for other in taken:
                better = better & (other != r)
            pick = lambda new, old: jnp.where(better, new, old)
            x = [pick(a, b) for a, b in zip(row, x, strict=True)]
            return (
                pick(distance, far),
                pick(r, where),
                pick(own, label),
                x,
                pick(row_weight, weight),
            )

        nothing, nowhere = tiles.zeros(sums[0][0]), tiles.zeros(empty[0]) - 1
        begin = (nothing - 1, nowhere, nowhere, [nothing] * len(read(0)[0]), nothing)
        _, where, label, x, weight = jax.lax.fori_loop(0, n_rows, farther, begin)
        weight = jnp.where(empty[c] > 0, weight, 0)
        sums = _with_row(_with_row(sums, label, x, -weight), jnp.full_like(label, c), x, weight)
        taken.append(jnp.where(empty[c] > 0, where, -1))
    return sums
