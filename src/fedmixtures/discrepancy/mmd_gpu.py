r"""The MMD pair sums as one GPU kernel (Pallas): no pair is ever written to memory.

A thread holds one receiving node: its components in registers, its neighbours' streamed past them.
The loop over slots ends at the largest degree of the tile, so that nodes sorted by degree waste
little. Same sums as `mmd_kernels`, which explains them; `interpret=True` runs it on any machine.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fedmixtures.discrepancy.mmd_kernels import pair_terms
from fedmixtures.mixture.linear import lower_triangle, sum_of, symmetric
from fedmixtures.mixture.mixture import Mixture

TILE = 64
"""Receiving nodes in one program of the grid, one per thread of two warps."""


def atom_sums_gpu(own: Mixture, atoms: Mixture, factors, bandwidths, *, interpret: bool = False):
    """`mmd_kernels.atom_sums` on a GPU."""
    nodes, slots, k = atoms.weights.shape
    d, dtype = own.n_features, own.means.dtype
    padding = -nodes % TILE
    last = lambda part: jnp.pad(
        jnp.moveaxis(part, 0, -1), [(0, 0)] * (part.ndim - 1) + [(0, padding)]
    )
    own_fields = jnp.stack([last(field) for field in _fields(own)], axis=1)  # (k, fields, nodes)
    weighted = Mixture(atoms.weights * factors[:, :, None], atoms.means, atoms.covariances)
    atom_fields = jnp.stack([last(field) for field in _fields(weighted)], axis=2)
    atom_fields = atom_fields.reshape(slots * k, *atom_fields.shape[2:])
    # Slots in use come first; an empty one in between weighs zero and does no harm.
    in_use = jnp.where(factors != 0, jnp.arange(1, slots + 1)[None], 0).max(1)
    in_use = jnp.pad(in_use.astype(jnp.int32), (0, padding))
    sigmas = jnp.stack([jnp.asarray(sigma, dtype) for sigma in bandwidths])
    n_sums = 2 + d + d * (d + 1) // 2
    tile = lambda *shape: pl.BlockSpec((*shape, TILE), lambda i: (*(0 for _ in shape), i))
    sums = pl.pallas_call(
        partial(_kernel, k=k, d=d, n_bandwidths=len(bandwidths)),
        grid=((nodes + padding) // TILE,),
        in_specs=[
            pl.BlockSpec((len(bandwidths),), lambda i: (0,)),
            tile(k, own_fields.shape[1]),
            tile(slots * k, own_fields.shape[1]),
            tile(),
        ],
        out_specs=tile(k, n_sums),
        out_shape=jax.ShapeDtypeStruct((k, n_sums, nodes + padding), dtype),
        interpret=interpret,
        **({} if interpret else {"compiler_params": _compiler_params()}),
    )(sigmas, own_fields, atom_fields, in_use)
    parts = [sums[:, i, :nodes].T for i in range(n_sums)]
    triangle = iter(parts[2 + d :])
    return (
        parts[0],
        parts[1],
        jnp.stack(parts[2 : 2 + d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def _compiler_params():
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=TILE // 32, num_stages=1)


def _fields(mixture: Mixture) -> list[jax.Array]:
    """Weight, means, lower triangle of the covariance: one array (..., k) each."""
    d = mixture.n_features
    triangle = [entry for row in lower_triangle(mixture.covariances) for entry in row]
    return [mixture.weights, *(mixture.means[..., i] for i in range(d)), *triangle]


def _kernel(sigma_ref, own_ref, atom_ref, in_use_ref, out_ref, *, k: int, d: int, n_bandwidths):
    """Sums of one tile of nodes; every value below is a vector over the tile."""
    fields = own_ref.shape[1]
    own = [[own_ref[c, f, :] for f in range(1, fields)] for c in range(k)]
    sigmas = [sigma_ref[b] for b in range(n_bandwidths)]
    n_sums = 1 + d + d * (d + 1) // 2
    zero = jnp.zeros_like(own[0][0])

    # A loop over atoms, not an unrolled one: unrolled, the compiler takes minutes.
    def one_atom(a, totals):
        atom = [atom_ref[a, f, :] for f in range(fields)]
        for c in range(k):
            terms = _pair_sums(own[c], atom[1:], sigmas, d)
            sums = [t + atom[0] * term for t, term in zip(totals[c], terms, strict=True)]
            totals = [*totals[:c], sums, *totals[c + 1 :]]
        return totals

    start = [[zero] * n_sums for _ in range(k)]
    own_totals = jax.lax.fori_loop(0, k, one_atom, start)
    apart = [[zero, *per_component[1:]] for per_component in own_totals]
    totals = jax.lax.fori_loop(k, k * in_use_ref[...].max(), one_atom, apart)
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
