"""Drawing the points of a KL round as one GPU kernel (Pallas), straight into the layout they need.

A thread draws the points of one (node, neighbour) and adds up their log-density; the same numbers
as `cpu.drawing.sample_slots` gives. Slots that no node of a tile uses are left out.
`interpret=True` runs it on any machine.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.experimental import pallas as pl

from fedmixtures._types import PerNode, PerSlot, SlotKeys
from fedmixtures.kernels.cpu.drawing import draw_points
from fedmixtures.kernels.gpu import tiles
from fedmixtures.kernels.gpu.likelihood import GpuRows, factor_and_constant, nll_gpu, square
from fedmixtures.kernels.gpu.tiles import TILE
from fedmixtures.kernels.trial import compare, some_mixtures
from fedmixtures.mixture.linear import cholesky_entries, sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import plain_gradient, plain_statistics
from fedmixtures.mixture.sampling import normal, philox, uniform


class GpuNeighbourRows(eqx.Module):
    """`cpu.drawing.NeighbourRows`, as rows for the kernel of `gpu.likelihood`."""

    rows: GpuRows
    constant: PerNode
    """Weighted sum over neighbours of the mean log-density at their own points."""

    def pull(self, own: Mixture, interpret: bool = False) -> tuple[PerNode, Mixture]:
        """Closed form: the local loss on the drawn rows."""
        nll, gradient = nll_gpu(own, self.rows, interpret=interpret)
        return nll + self.constant, gradient


def drawn_points_gpu(
    neighbours: Mixture, keys: SlotKeys, weight: PerSlot, n: int, *, interpret: bool = False
) -> GpuNeighbourRows:
    """Draw `n` points from every neighbour of every node."""
    nodes, slots = weight.shape
    k, d = neighbours.n_components, neighbours.n_features
    dtype = neighbours.means.dtype
    arrays = [tiles.flat(part) for part in (*neighbours.parts, jr.key_data(keys))]
    in_use = tiles.whole_tiles(tiles.in_use(weight))
    weight = tiles.whole_tiles(weight)
    places = len(weight)
    used = jnp.arange(slots)[:, None] < in_use.reshape(1, -1, TILE).max(-1)
    steps = jnp.where(used, n, 0).astype(jnp.int32)  # none in slots that no node of a tile has
    slot_of = lambda part: pl.BlockSpec((TILE, part.shape[1] // slots), lambda s, i: (i, s))
    points, log_density = pl.pallas_call(
        partial(_kernel, n=n, k=k, d=d),
        grid=(slots, places // TILE),
        in_specs=[*map(slot_of, arrays), pl.BlockSpec((1, 1), lambda s, i: (s, i))],
        out_specs=[
            pl.BlockSpec((n, d, TILE), lambda s, i: (s, 0, i)),
            pl.BlockSpec((1, TILE), lambda s, i: (s, i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((slots * n, d, places), dtype),
            jax.ShapeDtypeStruct((slots, places), dtype),
        ],
        **tiles.options(interpret),
    )(*arrays, steps)
    by_slot = weight.T
    constant = jnp.where(by_slot != 0, by_slot * log_density, 0.0).sum(0)[:nodes]
    return GpuNeighbourRows(GpuRows(points, by_slot / n, in_use * n), constant)


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `kernels.trial`: the pull of the drawn points, kernel of the likelihood included."""
    rng, n = np.random.default_rng(0), 8
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[:, 2] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    bits = rng.integers(2**32, size=(TILE, 3, 2), dtype=np.uint32)

    def kernel(own, neighbours, bits, weight):
        keys = jr.wrap_key_data(bits)
        drawn = drawn_points_gpu(neighbours, keys, weight, n, interpret=interpret)
        return drawn.pull(own, interpret)

    def plain(own, neighbours, bits, weight):
        drawn = draw_points(neighbours, jr.wrap_key_data(bits), weight, n)
        rows, row_weights = drawn.points.reshape(TILE, -1, d), drawn.row_weights.reshape(TILE, -1)
        s = plain_statistics(own, rows, row_weights)
        return drawn.constant - s.log_likelihood, plain_gradient(own, s)

    compare(kernel, plain, dtype, own, neighbours, bits, weight)


def _kernel(
    weights_ref,
    means_ref,
    covariances_ref,
    key_ref,
    steps_ref,
    points_ref,
    density_ref,
    *,
    n: int,
    k: int,
    d: int,
):
    """Points of one slot for one tile of nodes; every value below is a vector over the tile."""
    weights = [weights_ref[:, c] for c in range(k)]
    means = [[means_ref[:, c * d + i] for i in range(d)] for c in range(k)]
    cumulative = weights[:1]
    for weight in weights[1:]:
        cumulative.append(cumulative[-1] + weight)
    entry = lambda c, i, j: covariances_ref[:, (c * d + i) * d + j]
    factors, inverses, constants = [], [], []
    for c in range(k):
        of_c = partial(entry, c)
        inverse, constant = factor_and_constant(weights[c], of_c, d)
        factors.append(cholesky_entries([[of_c(i, j) for j in range(i + 1)] for i in range(d)]))
        inverses.append([one for row in inverse for one in row])
        constants.append(constant)
    key = [key_ref[:, 0], key_ref[:, 1]]

    def one_point(r, total):
        uniforms, noise = _standard(r, key, d, weights[0].dtype)
        level = uniforms * cumulative[-1]
        point = []
        for i in range(d):
            shift = lambda c, i=i: sum_of(factors[c][i][j] * noise[j] for j in range(i + 1))
            chosen = means[0][i] + shift(0)
            for c in range(1, k):  # the last one whose share of (0, 1) has begun
                begun = level >= cumulative[c - 1]
                chosen = jnp.where(begun, means[c][i] + shift(c), chosen)
            point.append(chosen)
            points_ref[r, i, :] = chosen
        log_joint = [
            constants[c]
            - 0.5 * square(inverses[c], [x - m for x, m in zip(point, means[c], strict=True)], d)
            for c in range(k)
        ]
        top = log_joint[0]
        for value in log_joint[1:]:
            top = jnp.maximum(top, value)
        return total + top + jnp.log(sum_of(jnp.exp(value - top) for value in log_joint))

    total = jax.lax.fori_loop(0, steps_ref[0, 0], one_point, jnp.zeros_like(weights[0]))
    density_ref[0, :] = total / n


def _standard(r, key, d: int, dtype):
    """`sampling.standard_draws` for the point of number `r`."""
    zero = jnp.zeros_like(key[0])
    index = zero + r.astype(jnp.uint32)
    words = []
    for block in range(-(-(1 + d) // 4)):
        words += philox([index, zero + np.uint32(block), zero, zero], key)
    uniforms, *rest = [uniform(word).astype(dtype) for word in words[: 1 + d]]
    return uniforms, [normal(part) for part in rest]
