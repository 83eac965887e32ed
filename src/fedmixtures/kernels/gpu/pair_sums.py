r"""The MMD pair sums as one GPU kernel: no pair is ever written to memory.

A thread holds one component of a receiving node in registers and streams its neighbours' components
past it. The loop over slots ends at the largest degree of the tile, so that nodes sorted by degree
waste little. Same sums as `cpu.pair_sums`, which explains them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures._types import Array, PerNode, PerSlot
from fedmixtures.kernels.cpu.pair_sums import Atoms, Sums, pull_of_sums
from fedmixtures.kernels.gpu import tiles
from fedmixtures.kernels.gpu.tiles import TILE, nodes_last, nodes_of
from fedmixtures.kernels.trial import compare, some_mixtures
from fedmixtures.mixture.linear import lower_triangle, sum_of, symmetric
from fedmixtures.mixture.mixture import Mixture

LOG2_E = 1.4426950408889634
MOST_FEATURES = 10
"""A thread's registers hold no larger matrix."""


class GpuAtoms(eqx.Module):
    """Neighbours as the kernel reads them, laid out once per round, nodes last in whole tiles."""

    fields: Float[Array, "numbers places"]
    """Weight, mean and lower triangle of the covariance, component after component."""
    factors: Float[Array, "slots places"]
    """The sum of a node's edge weights, then each of them, negative."""
    in_use: Int[Array, " tiles"]
    """Slots of the nodes of each tile, at most."""
    constant: PerNode
    """Weighted sum of the neighbours' inner products with themselves."""
    bandwidths: tuple[Any, ...]

    @classmethod
    def of(cls, neighbours: Mixture, weight: PerSlot, constant: PerNode, bandwidths) -> GpuAtoms:
        """Mixtures (nodes, slots, k, ...) and the weights of their edges, which are positive."""
        factors = nodes_last(jnp.concatenate([weight.sum(-1)[:, None], -weight], axis=1))
        in_use = tiles.most_in_use(weight)
        return cls(_fields(neighbours), factors, in_use, constant, tuple(bandwidths))

    def pull(self, own: Mixture, interpret: bool = False) -> tuple[PerNode, Mixture]:
        """Eq. (5) at each node, (nodes,), and its gradient with respect to `own`."""
        value, gradient = pull_of_sums(own, atom_sums_gpu(own, self, interpret=interpret))
        return value + self.constant, gradient


def atom_sums_gpu(own: Mixture, atoms: GpuAtoms, *, interpret: bool = False) -> Sums:
    """`cpu.pair_sums.atom_sums` on a GPU."""
    nodes, k, d = own.means.shape
    dtype, bandwidths = own.means.dtype, atoms.bandwidths
    mine = _fields(own)
    others = atoms.fields if d == 2 else jnp.concatenate([mine, atoms.fields])
    n_sums = 1 + len(mine) // k
    places = mine.shape[-1]
    (sums,) = tiles.call(
        partial(_kernel, k=k, d=d, n_bandwidths=len(bandwidths)),
        {"tile": places // TILE, "component": k},
        [jax.ShapeDtypeStruct((k, n_sums, places), dtype)],
        (mine, others, atoms.factors, atoms.in_use, band_table(bandwidths, dtype)),
        interpret=interpret,
        approximate=True,
    )
    own_kernels, neighbour_kernels, *rest = sums[:, :, :nodes].transpose(1, 2, 0)
    entries = iter(rest[d:])
    covariances = symmetric([[next(entries) for _ in range(i + 1)] for i in range(d)])
    return own_kernels, neighbour_kernels, jnp.stack(rest[:d], axis=-1), covariances


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `kernels.trial`."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[: TILE // 2, 1:] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    constant, bandwidths = np.zeros(TILE, dtype), (0.5, 2.0)

    def kernel(own, neighbours, weight):
        atoms = GpuAtoms.of(neighbours, weight, constant, bandwidths)
        return atom_sums_gpu(own, atoms, interpret=interpret)

    plain = lambda own, others, weight: Atoms(others, weight, constant, bandwidths).sums(own)
    compare(kernel, plain, dtype, own, neighbours, weight)


def _fields(mixture: Mixture) -> jax.Array:
    """Weight, mean and lower triangle of the covariance of all components, nodes last."""
    triangle = [entry for row in lower_triangle(mixture.covariances) for entry in row]
    weights, triangle = mixture.weights[..., None], jnp.stack(triangle, axis=-1)
    packed = jnp.concatenate([weights, mixture.means, triangle], axis=-1)
    return nodes_last(packed.reshape(len(packed), -1))


def _kernel(
    tile,
    component,
    mine_ref,
    others_ref,
    factor_ref,
    in_use_ref,
    band_ref,
    sums_ref,
    *,
    k: int,
    d: int,
    n_bandwidths: int,
):
    """Sums of one component for one tile of nodes; every value below is a vector over the tile."""
    at, n_fields = nodes_of(tile), 1 + d + d * (d + 1) // 2
    read = lambda ref, a: [ref[a * n_fields + f, at] for f in range(n_fields)]
    _, *mine = read(mine_ref, component)
    zero = tiles.zeros(mine[0])
    start = [zero] * n_fields
    in_use = in_use_ref[tile]

    def one_atom(a, totals):
        """Own components come first, then those of the neighbours: one body to compile."""
        before, here = totals
        weight, *atom = read(others_ref, a)
        factor = factor_ref[jax.lax.div(a, np.int32(k)), at] * weight
        after = any_features(here, mine, atom, factor, band_ref, n_bandwidths)
        return jnp.where(a < k, after[0], before), after

    def one_node(ref, first, edge, totals):
        def one_component(e, totals):
            weight, *atom = read(ref, first + e)
            return two_features(totals, mine, atom, edge * weight, bands)

        return jax.lax.fori_loop(0, k, one_component, totals)

    def one_slot(slot, totals):
        return one_node(others_ref, slot * k, factor_ref[slot + 1, at], totals)

    if d == 2:  # two loops are quicker; where the body is long, compiling it twice is not
        bands = [(band_ref[1, b], band_ref[2, b]) for b in range(n_bandwidths)]
        totals = one_node(mine_ref, 0, factor_ref[0, at], start)
        own_kernels = totals[0]
        totals = jax.lax.fori_loop(0, in_use, one_slot, totals)
    else:
        own_kernels, totals = jax.lax.fori_loop(0, k + k * in_use, one_atom, (zero, start))
    halves = [0.5 * entry for entry in totals[1 + d :]]
    found = [own_kernels, totals[0] - own_kernels, *totals[1 : 1 + d], *halves]
    for i, number in enumerate(found):
        sums_ref[component, i, at] = number


# One pair of components: every value is a vector over a tile of nodes. Both forms add $g$, $-gv$
# and $g (vv^\top - S^{-1})$ of eq. (5), summed over the bandwidths.


def band_table(bandwidths, dtype) -> jax.Array:
    r"""The bandwidths, a column for each: $\sigma$, $\sigma^2$ and $\log_2 \sigma^2$."""
    sigma = jnp.stack([jnp.asarray(sigma, dtype) for sigma in bandwidths])
    return jnp.stack([sigma, sigma * sigma, 2 * jnp.log2(sigma)])


def two_features(totals, own, atom, factor, bands) -> list[jax.Array]:
    r"""Two features, bandwidths (a list of squares and their logarithms) written out.

    With $\Sigma + \Sigma' = (a, b; b, c)$ all that a bandwidth changes is linear in its square s:
    $|S| = |\Sigma + \Sigma'| + s(a + c + s)$, $u = |S| v = x + s\Delta$ with $x = (c, -b; -b, a)
    \Delta$, and $|S| \Delta^\top S^{-1} \Delta = x^\top\Delta + s|\Delta|^2$.
    """
    d0, d1 = own[0] - atom[0], own[1] - atom[1]
    a, b, c = (own[i] + atom[i] for i in (2, 3, 4))
    x0, x1 = c * d0 - b * d1, a * d1 - b * d0
    trace, determinant = a + c, a * c - b * b
    inner, length = (-0.5 * LOG2_E) * (x0 * d0 + x1 * d1), (-0.5 * LOG2_E) * (d0 * d0 + d1 * d1)
    sums: list[Any] = []
    for square, log_square in bands:
        root = jax.lax.rsqrt(determinant + square * (trace + square))
        inverse = root * root
        g = root * jnp.exp2((inner + square * length) * inverse + log_square)
        once = g * inverse
        twice = once * inverse
        u0, u1 = x0 + square * d0, x1 + square * d1
        t0, t1 = twice * u0, twice * u1
        terms = [g, once, square * once, t0 * u0, t0 * u1, t1 * u1]
        sums = [x + y for x, y in zip(sums, terms, strict=True)] if sums else terms
    total, h, hs, s00, s10, s11 = sums
    p, q, r = c * h + hs, b * h, a * h + hs  # sums of g times S^-1, but for the sign of q
    new = [total, q * d1 - p * d0, q * d0 - r * d1, s00 - p, s10 + q, s11 - r]
    return [x + factor * y for x, y in zip(totals, new, strict=True)]


def any_features(totals, own, atom, factor, band_ref, n_bandwidths: int) -> list[jax.Array]:
    """Any number of features, one bandwidth after another."""
    d = next(d for d in range(1, len(own) + 1) if d + d * (d + 1) // 2 == len(own))
    delta = [own[i] - atom[i] for i in range(d)]

    def one_bandwidth(b, totals):
        sigma, square = band_ref[0, b], band_ref[1, b]
        summed = iter(own[i] + atom[i] for i in range(d, len(own)))
        rows = [[next(summed) for _ in range(i + 1)] for i in range(d)]
        rows = [[*row[:-1], row[-1] + square] for row in rows]
        minus, root = _swept(rows, sigma)
        entry = lambda i, j: minus[max(i, j)][min(i, j)]
        v = [-sum_of(entry(i, j) * delta[j] for j in range(d)) for i in range(d)]
        exponent = sum_of(v[i] * delta[i] for i in range(d))
        g = factor * root * jnp.exp2((-0.5 * LOG2_E) * exponent)
        t = [g * v[i] for i in range(d)]
        second = [t[i] * v[j] + g * minus[i][j] for i in range(d) for j in range(i + 1)]
        new = [g, *(-t[i] for i in range(d)), *second]
        return [a + b for a, b in zip(totals, new, strict=True)]

    return jax.lax.fori_loop(0, n_bandwidths, one_bandwidth, totals)


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

    return jax.lax.fori_loop(0, d, sweep, (rows, 1 + tiles.zeros(rows[0][0])))
