"""Drawing the points of a KL round as one GPU kernel, straight into the layout they need.

A thread draws the points of one (node, neighbour) and adds up their log-density; the same numbers
as `cpu.drawing.sample_slots` gives. Slots that no node of a tile uses are left out.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures._types import PerNode, PerSlot, SlotKeys
from fedmixtures.kernels.cpu.drawing import draw_points
from fedmixtures.kernels.gpu import tiles
from fedmixtures.kernels.gpu.likelihood import GpuRows, factor_and_constant, nll_gpu, square
from fedmixtures.kernels.gpu.tiles import TILE, nodes_of
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
    in_use, by_slot = tiles.most_in_use(weight), tiles.nodes_last(weight)
    places = by_slot.shape[-1]
    points, log_density = tiles.call(
        partial(_kernel, n=n, k=k, d=d),
        {"tile": places // TILE, "slot": slots},
        [
            jax.ShapeDtypeStruct((slots * n, d, places), dtype),
            jax.ShapeDtypeStruct((slots, places), dtype),
        ],
        (*arrays, in_use),
        interpret=interpret,
    )
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
    tile,
    slot,
    weights_ref,
    means_ref,
    covariances_ref,
    key_ref,
    in_use_ref,
    points_ref,
    density_ref,
    *,
    n: int,
    k: int,
    d: int,
):
    """Points of one slot for one tile of nodes; every value below is a vector over the tile."""
    at = nodes_of(tile)
    weights = [weights_ref[at, slot * k + c] for c in range(k)]
    means = [[means_ref[at, (slot * k + c) * d + i] for i in range(d)] for c in range(k)]
    cumulative = weights[:1]
    for weight in weights[1:]:
        cumulative.append(cumulative[-1] + weight)
    entry = lambda c, i, j: covariances_ref[at, ((slot * k + c) * d + i) * d + j]
    factors, inverses, constants = [], [], []
    for c in range(k):
        of_c = partial(entry, c)
        inverse, constant = factor_and_constant(weights[c], of_c, d)
        entries = [[of_c(i, j) for j in range(i + 1)] for i in range(d)]
        factors.append(cholesky_entries(entries, tiles.sqrt))
        inverses.append([one for row in inverse for one in row])
        constants.append(constant)
    key = [key_ref[at, 2 * slot], key_ref[at, 2 * slot + 1]]

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
            points_ref[slot * n + r, i, at] = chosen
        log_joint = [
            constants[c]
            - 0.5 * square(inverses[c], [x - m for x, m in zip(point, means[c], strict=True)], d)
            for c in range(k)
        ]
        top = log_joint[0]
        for value in log_joint[1:]:
            top = jnp.maximum(top, value)
        return total + top + jnp.log(sum_of(jnp.exp(value - top) for value in log_joint))

    steps = jnp.where(slot < in_use_ref[tile], n, 0)  # none in slots that no node of the tile has
    total = jax.lax.fori_loop(0, steps, one_point, tiles.zeros(weights[0]))
    density_ref[slot, at] = total / n


def _standard(r, key, d: int, dtype):
    """`sampling.standard_draws` for the point of number `r`."""
    zero = jnp.zeros_like(key[0])
    index = zero + r.astype(jnp.uint32)
    words = []
    for block in range(-(-(1 + d) // 4)):
        words += philox([index, zero + np.uint32(block), zero, zero], key)
    uniforms, *rest = [uniform(word).astype(dtype) for word in words[: 1 + d]]
    return uniforms, [normal(part, tiles.sqrt) for part in rest]
