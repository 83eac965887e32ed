r"""One pair of components in the MMD kernel: every value is a vector over a tile of nodes.

Both forms add $g$, $-gv$ and $g (vv^\top - S^{-1})$ of eq. (5), summed over the bandwidths. These
come as a table with a column for each: $\sigma$, $\sigma^2$ and $\log_2 \sigma^2$.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmixtures.mixture.linear import sum_of
from fedmixtures.mixture.tiles_gpu import Functions

LOG2_E = 1.4426950408889634


def band_table(bandwidths, dtype) -> jax.Array:
    """The table of the bandwidths."""
    sigma = jnp.stack([jnp.asarray(sigma, dtype) for sigma in bandwidths])
    return jnp.stack([sigma, sigma * sigma, 2 * jnp.log2(sigma)])


def two_features(totals, own, atom, factor, bands, functions: Functions) -> list[jax.Array]:
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
        root = functions.rsqrt(determinant + square * (trace + square))
        inverse = root * root
        g = root * functions.exp2((inner + square * length) * inverse + log_square)
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


def any_features(totals, own, atom, factor, band_ref, functions: Functions) -> list[jax.Array]:
    """Any number of features, one bandwidth after another."""
    d = next(d for d in range(1, len(own) + 1) if d + d * (d + 1) // 2 == len(own))
    delta = [own[i] - atom[i] for i in range(d)]

    def one_bandwidth(b, totals):
        sigma, square = band_ref[0, b], band_ref[1, b]
        summed = iter(own[i] + atom[i] for i in range(d, len(own)))
        rows = [[next(summed) for _ in range(i + 1)] for i in range(d)]
        rows = [[*row[:-1], row[-1] + square] for row in rows]
        minus, root = _swept(rows, sigma, functions)
        entry = lambda i, j: minus[max(i, j)][min(i, j)]
        v = [-sum_of(entry(i, j) * delta[j] for j in range(d)) for i in range(d)]
        exponent = sum_of(v[i] * delta[i] for i in range(d))
        g = factor * root * functions.exp2((-0.5 * LOG2_E) * exponent)
        t = [g * v[i] for i in range(d)]
        second = [t[i] * v[j] + g * minus[i][j] for i in range(d) for j in range(i + 1)]
        new = [g, *(-t[i] for i in range(d)), *second]
        return [a + b for a, b in zip(totals, new, strict=True)]

    return jax.lax.fori_loop(0, band_ref.shape[1], one_bandwidth, totals)


def _swept(rows, sigma, functions):
    r"""$-S^{-1}$ and $\sigma^d |S|^{-1/2}$ by Goodnight's sweeps: no second matrix is held.

    Every sweep takes the first row and column for its pivot and puts them last: so all sweeps are
    the same code, a tenth of what the compiler would get to see otherwise.
    """
    d = len(rows)

    def sweep(_, carry):
        rows, scale = carry
        root = functions.rsqrt(rows[0][0])
        inverse = root * root
        column = [rows[i][0] for i in range(1, d)]
        scaled = [inverse * entry for entry in column]
        left = [
            [rows[i + 1][j + 1] - scaled[i] * column[j] for j in range(i + 1)] for i in range(d - 1)
        ]
        # The determinant itself could overflow: factor by factor.
        return [*left, [*scaled, -inverse]], scale * (sigma * root)

    return jax.lax.fori_loop(0, d, sweep, (rows, jnp.ones_like(rows[0][0])))
