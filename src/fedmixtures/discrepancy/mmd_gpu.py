r"""The MMD pair sums as one GPU kernel (Pallas): no pair is ever written to memory.

A thread holds one component of a receiving node in registers and streams its neighbours' components
past it. The loop over slots ends at the largest degree of the tile, so that nodes sorted by degree
waste little. Same sums as `mmd_kernels`, which explains them; `interpret=True` runs it on any
machine.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Float

from fedmixtures._types import Array, PerSlot
from fedmixtures.discrepancy.mmd_kernels import Sums, atom_sums
from fedmixtures.mixture.linear import lower_triangle, sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.trial import compare, some_mixtures

TILE = 64
"""Receiving nodes in one program of the grid, one per thread of two warps."""
MOST_FEATURES = 10
"""A thread's registers hold no larger matrix."""
LOG2_E = 1.4426950408889634


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
    # Slots in use come first; an empty one in between weighs zero and does no harm.
    in_use = jnp.where(weight != 0, jnp.arange(1, slots + 1)[None], 0).max(1).astype(jnp.int32)
    sigmas = jnp.stack([jnp.asarray(sigma, dtype) for sigma in bandwidths])
    padding = -nodes % TILE  # none where there are many nodes: their number is round
    whole = lambda part: jnp.pad(part, [(0, padding), *[(0, 0)] * (part.ndim - 1)])
    arrays = [whole(part) for part in (*own.parts, weight, in_use)]
    tile = lambda part: pl.BlockSpec(
        (TILE, *part.shape[1:]), lambda c, i: (i, *[0] * (part.ndim - 1))
    )
    of_one = lambda part: pl.BlockSpec(
        (TILE, 1, *part.shape[2:]), lambda c, i: (i, c, *[0] * (part.ndim - 2))
    )
    results = [arrays[0], *arrays[:3]]
    sums = pl.pallas_call(
        partial(_kernel, k=k, d=d),
        grid=(k, (nodes + padding) // TILE),
        in_specs=[
            pl.BlockSpec((len(bandwidths),), lambda c, i: (0,)),
            *map(of_one, arrays[:3]),
            *map(tile, arrays),
            pl.BlockSpec((*atoms.fields.shape[:2], TILE), lambda c, i: (0, 0, i)),
        ],
        out_specs=list(map(of_one, results)),
        out_shape=[jax.ShapeDtypeStruct(part.shape, dtype) for part in results],
        interpret=interpret,
        **({} if interpret else {"compiler_params": _compiler_params()}),
    )(sigmas, *arrays[:3], *arrays, atoms.fields)
    return tuple(part[:nodes] for part in sums)


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `mixture.trial`."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[: TILE // 2, 1:] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    bandwidths = (0.5, 2.0)

    def kernel(own, neighbours, weight):
        atoms = GpuAtoms.of(neighbours)
        return atom_sums_gpu(own, atoms, weight, bandwidths, interpret=interpret)

    def plain(own, neighbours, weight):
        atoms = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], 1), own, neighbours)
        factors = jnp.concatenate([weight.sum(-1)[:, None], -weight], axis=1)
        return atom_sums(own, atoms, factors, bandwidths)

    compare(kernel, plain, dtype, own, neighbours, weight)


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


def _component(weights_ref, means_ref, covariances_ref, c, d: int) -> list[jax.Array]:
    """`_fields` of component `c` of a tile of nodes."""
    at = lambda i, j: covariances_ref[:, c, i, j]
    triangle = [
        at(i, i) if i == j else 0.5 * (at(i, j) + at(j, i)) for i in range(d) for j in range(i + 1)
    ]
    return [weights_ref[:, c], *(means_ref[:, c, i] for i in range(d)), *triangle]


def _kernel(sigma_ref, *refs, k: int, d: int):
    """Sums of one component for one tile of nodes; every value below is a vector over the tile."""
    mine_refs, own_refs, (weight_ref, in_use_ref, atom_ref) = refs[:3], refs[3:6], refs[6:9]
    out_refs = refs[9:]
    _, *mine = _component(*mine_refs, 0, d)
    zero = jnp.zeros_like(mine[0])
    add_pair = _two_features if d == 2 else _any_features

    def one_atom(a, totals):
        """Own components come first, then those of the neighbours: one body to compile."""
        before, here = totals
        is_own = a < k
        own = _component(*own_refs, jnp.minimum(a, k - 1), d)
        place = jnp.maximum(a - k, 0)
        others = [atom_ref[place, f, :] for f in range(len(own))]
        atom = [jnp.where(is_own, x, y) for x, y in zip(own, others, strict=True)]
        edge = jnp.where(is_own, degree, -weight_ref[:, place // k])
        after = add_pair(here, mine, atom[1:], edge * atom[0], sigma_ref)
        return jnp.where(is_own, after[0], before), after

    def one_own(a, totals):
        atom = _component(*own_refs, a, d)
        return add_pair(totals, mine, atom[1:], degree * atom[0], sigma_ref)

    def one_neighbour(a, totals):
        atom = [atom_ref[a, f, :] for f in range(1 + len(mine))]
        factor = -atom[0] * weight_ref[:, a // k]
        return add_pair(totals, mine, atom[1:], factor, sigma_ref)

    in_use = in_use_ref[...].max()
    degree = jax.lax.fori_loop(0, in_use, lambda slot, total: total + weight_ref[:, slot], zero)
    start = [zero] * (1 + len(mine))
    if d == 2:  # two loops are quicker; where the body is long, compiling it twice is not
        totals = jax.lax.fori_loop(0, k, one_own, start)
        own_kernels = totals[0]
        totals = jax.lax.fori_loop(0, k * in_use, one_neighbour, totals)
    else:
        own_kernels, totals = jax.lax.fori_loop(0, k + k * in_use, one_atom, (zero, start))
    _write(out_refs, own_kernels, totals, d)


def _write(out_refs, own_kernels, totals, d: int) -> None:
    own_ref, other_ref, means_ref, covariances_ref = out_refs
    own_ref[:, 0] = own_kernels
    other_ref[:, 0] = totals[0] - own_kernels
    for i in range(d):
        means_ref[:, 0, i] = totals[1 + i]
    entries = iter(totals[1 + d :])
    for i in range(d):
        for j in range(i + 1):
            half = 0.5 * next(entries)
            covariances_ref[:, 0, i, j] = half
            if i != j:
                covariances_ref[:, 0, j, i] = half


def _two_features(totals, own, atom, factor, sigma_ref) -> list[jax.Array]:
    r"""Add $g$, $-gv$ and $g (vv^\top - S^{-1})$ of one pair over all bandwidths.

    With $\Sigma + \Sigma' = (a, b; b, c)$ all that a bandwidth changes is linear in its square s:
    $|S| = |\Sigma + \Sigma'| + s(a + c + s)$, $u = |S| v = x + s\Delta$ with $x = (c, -b; -b, a)
    \Delta$, and $|S| \Delta^\top S^{-1} \Delta = x^\top\Delta + s|\Delta|^2$.
    """
    total, v0, v1, s00, s10, s11 = totals
    d0, d1 = own[0] - atom[0], own[1] - atom[1]
    a, b, c = (own[i] + atom[i] for i in (2, 3, 4))
    x0, x1 = c * d0 - b * d1, a * d1 - b * d0
    trace, determinant = a + c, a * c - b * b
    inner, length = (-0.5 * LOG2_E) * (x0 * d0 + x1 * d1), (-0.5 * LOG2_E) * (d0 * d0 + d1 * d1)
    h, hs = jnp.zeros_like(d0), jnp.zeros_like(d0)
    for i in range(sigma_ref.shape[0]):
        square = sigma_ref[i] * sigma_ref[i]
        root = jax.lax.rsqrt(determinant + square * (trace + square))
        inverse = root * root
        g = (factor * square) * root * jnp.exp2((inner + square * length) * inverse)
        once = g * inverse
        twice = once * inverse
        u0, u1 = x0 + square * d0, x1 + square * d1
        t0, t1 = twice * u0, twice * u1
        total, h, hs = total + g, h + once, hs + square * once
        s00, s10, s11 = s00 + t0 * u0, s10 + t0 * u1, s11 + t1 * u1
    p, q, r = c * h + hs, b * h, a * h + hs  # sums of g times S^-1, but for the sign of q
    v0, v1 = v0 - (p * d0 - q * d1), v1 - (r * d1 - q * d0)
    return [total, v0, v1, s00 - p, s10 + q, s11 - r]


def _any_features(totals, own, atom, factor, sigma_ref) -> list[jax.Array]:
    """The same for any number of features, one bandwidth after another."""
    d = next(d for d in range(1, len(own) + 1) if d + d * (d + 1) // 2 == len(own))
    delta = [own[i] - atom[i] for i in range(d)]

    def one_bandwidth(b, totals):
        sigma = sigma_ref[b]
        summed = iter(own[i] + atom[i] for i in range(d, len(own)))
        rows = [[next(summed) for _ in range(i + 1)] for i in range(d)]
        rows = [[*row[:-1], row[-1] + sigma * sigma] for row in rows]
        minus, root = _swept(rows, sigma)
        entry = lambda i, j: minus[max(i, j)][min(i, j)]
        v = [-sum_of(entry(i, j) * delta[j] for j in range(d)) for i in range(d)]
        exponent = sum_of(v[i] * delta[i] for i in range(d))
        g = factor * root * jnp.exp2((-0.5 * LOG2_E) * exponent)
        t = [g * v[i] for i in range(d)]
        second = [t[i] * v[j] + g * minus[i][j] for i in range(d) for j in range(i + 1)]
        new = [g, *(-t[i] for i in range(d)), *second]
        return [a + b for a, b in zip(totals, new, strict=True)]

    return jax.lax.fori_loop(0, sigma_ref.shape[0], one_bandwidth, totals)


def _swept(rows, sigma):
    r"""$-S^{-1}$ and $\sigma^d |S|^{-1/2}$ by Goodnight's sweeps: no second matrix is held.

    Every sweep takes the first row and column for its pivot and puts them last: so all sweeps are
    the same code, a tenth of what the compiler would get to see otherwise.
    """
    d = len(rows)

    def sweep(_, carry):
        rows, scale = carry
        root = jax.lax.rsqrt(rows[0][0])
        inverse = root * root
        column = [rows[i][0] for i in range(1, d)]
        scaled = [inverse * entry for entry in column]
        left = [
            [rows[i + 1][j + 1] - scaled[i] * column[j] for j in range(i + 1)] for i in range(d - 1)
        ]
        # The determinant itself could overflow: factor by factor.
        return [*left, [*scaled, -inverse]], scale * (sigma * root)

    return jax.lax.fori_loop(0, d, sweep, (rows, jnp.ones_like(rows[0][0])))
