r"""The MMD pair sums as one GPU kernel (Pallas): no pair is ever written to memory.

A thread holds one receiving node: its components in registers, its neighbours' streamed past them.
The loop over slots ends at the largest degree of the tile, so that nodes sorted by degree waste
little. Same sums as `mmd_kernels`, which explains them; `interpret=True` runs it on any machine.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Float

from fedmixtures._types import Array, PerSlot
from fedmixtures.discrepancy.mmd_kernels import Sums, pair_terms
from fedmixtures.mixture.linear import lower_triangle, sum_of, symmetric
from fedmixtures.mixture.mixture import Mixture

TILE = 64
"""Receiving nodes in one program of the grid, one per thread of two warps."""


class GpuAtoms(eqx.Module):
    """Neighbours as the kernel reads them, laid out once per round: (slots * k, fields, nodes)."""

    fields: Float[Array, "atoms fields nodes"]

    @classmethod
    def of(cls, neighbours: Mixture) -> GpuAtoms:
        """Mixtures (nodes, slots, k, ...) with the node axis last, padded to whole tiles."""
        stacked = jnp.stack([_nodes_last(field) for field in _fields(neighbours)], axis=2)
        return cls(stacked.reshape(-1, *stacked.shape[2:]))


def atom_sums_gpu(
    own: Mixture, atoms: GpuAtoms, weight: PerSlot, bandwidths, *, interpret: bool = False
) -> Sums:
    """`mmd_kernels.atom_sums` on a GPU: `weight` is that of the edges, positive."""
    nodes, slots = weight.shape
    k, d, dtype = own.n_components, own.n_features, own.means.dtype
    own_fields = jnp.stack([_nodes_last(field) for field in _fields(own)], axis=1)
    # Slots in use come first; an empty one in between weighs zero and does no harm.
    in_use = jnp.where(weight != 0, jnp.arange(1, slots + 1)[None], 0).max(1).astype(jnp.int32)
    sigmas = jnp.stack([jnp.asarray(sigma, dtype) for sigma in bandwidths])
    n_sums = 2 + d + d * (d + 1) // 2
    places = own_fields.shape[-1]
    tile = lambda *shape: pl.BlockSpec((*shape, TILE), lambda i: (*(0 for _ in shape), i))
    sums = pl.pallas_call(
        partial(_kernel, k=k, d=d, n_bandwidths=len(bandwidths)),
        grid=(places // TILE,),
        in_specs=[
            pl.BlockSpec((len(bandwidths),), lambda i: (0,)),
            tile(k, own_fields.shape[1]),
            tile(slots * k, own_fields.shape[1]),
            tile(slots),
            tile(),
        ],
        out_specs=tile(k, n_sums),
        out_shape=jax.ShapeDtypeStruct((k, n_sums, places), dtype),
        interpret=interpret,
        **({} if interpret else {"compiler_params": _compiler_params()}),
    )(sigmas, own_fields, atoms.fields, _nodes_last(weight), _nodes_last(in_use))
    parts = [sums[:, i, :nodes].T for i in range(n_sums)]
    triangle = iter(parts[2 + d :])
    return (
        parts[0],
        parts[1],
        jnp.stack(parts[2 : 2 + d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def _nodes_last(part: jax.Array) -> jax.Array:
    """The node axis moved to the end and padded to whole tiles."""
    padding = [(0, 0)] * (part.ndim - 1) + [(0, -len(part) % TILE)]
    return jnp.pad(jnp.moveaxis(part, 0, -1), padding)


def _compiler_params():
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=TILE // 32, num_stages=1)


def _fields(mixture: Mixture) -> list[jax.Array]:
    """Weight, means, lower triangle of the covariance: one array (..., k) each."""
    d = mixture.n_features
    triangle = [entry for row in lower_triangle(mixture.covariances) for entry in row]
    return [mixture.weights, *(mixture.means[..., i] for i in range(d)), *triangle]


def _kernel(
    sigma_ref, own_ref, atom_ref, weight_ref, in_use_ref, out_ref, *, k: int, d: int, n_bandwidths
):
    """Sums of one tile of nodes; every value below is a vector over the tile."""
    fields = own_ref.shape[1]
    own = [[own_ref[c, f, :] for f in range(1, fields)] for c in range(k)]
    sigmas = [sigma_ref[b] for b in range(n_bandwidths)]
    n_sums = 1 + d + d * (d + 1) // 2
    zero = jnp.zeros_like(own[0][0])

    def add(totals, factor, atom):
        for c in range(k):
            terms = _pair_sums(own[c], atom, sigmas, d)
            sums = [t + factor * term for t, term in zip(totals[c], terms, strict=True)]
            totals = [*totals[:c], sums, *totals[c + 1 :]]
        return totals

    # Loops over atoms, not unrolled ones: unrolled, the compiler takes minutes.
    def one_own(a, totals):
        atom = [own_ref[a, f, :] for f in range(fields)]
        return add(totals, atom[0], atom[1:])

    def one_neighbour(a, totals):
        atom = [atom_ref[a, f, :] for f in range(fields)]
        return add(totals, -atom[0] * weight_ref[a // k, :], atom[1:])

    def total_weight(slot, total):
        return total + weight_ref[slot, :]

    in_use = in_use_ref[...].max()
    degree = jax.lax.fori_loop(0, in_use, total_weight, zero)
    start = [[zero] * n_sums for _ in range(k)]
    own_totals = jax.lax.fori_loop(0, k, one_own, start)
    own_totals = [[degree * total for total in per_component] for per_component in own_totals]
    apart = [[zero, *per_component[1:]] for per_component in own_totals]
    totals = jax.lax.fori_loop(0, k * in_use, one_neighbour, apart)
    for c in range(k):
        out_ref[c, 0, :] = own_totals[c][0]
        for i in range(n_sums):
            out_ref[c, 1 + i, :] = totals[c][i]


def _pair_sums(own, atom, sigmas, d: int) -> list[jax.Array]:
    r"""$g$, $-g v$ and $\frac12 g (vv^\top - S^{-1})$ of one pair, summed over bandwidths."""
    delta = [own[i] - atom[i] for i in range(d)]
    flat = [own[i] + atom[i] for i in range(d, len(own))]
    rows = [flat[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2] for i in range(d)]
    one_bandwidth = _two_features if d == 2 else _any_features
    terms = [one_bandwidth(delta, rows, sigma, d) for sigma in sigmas]
    return [sum_of(parts) for parts in zip(*terms, strict=True)]


def _two_features(delta, rows, sigma, d: int) -> list[jax.Array]:
    """Two features: the inverse by its determinant, one root and one exponential per pair."""
    del d
    square = sigma * sigma
    a, b, c = rows[0][0] + square, rows[1][0], rows[1][1] + square
    root = jax.lax.rsqrt(a * c - b * b)
    inverse = root * root
    p, q, r = c * inverse, -b * inverse, a * inverse
    v0, v1 = p * delta[0] + q * delta[1], q * delta[0] + r * delta[1]
    g = square * root * jnp.exp(-0.5 * (v0 * delta[0] + v1 * delta[1]))
    half = 0.5 * g
    return [
        g,
        -(g * v0),
        -(g * v1),
        half * (v0 * v0 - p),
        half * (v0 * v1 - q),
        half * (v1 * v1 - r),
    ]


def _any_features(delta, rows, sigma, d: int) -> list[jax.Array]:
    summed = [[*row[:-1], row[-1] + sigma * sigma] for row in rows]
    return pair_terms(delta, summed, sigma, d)
