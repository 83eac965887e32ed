"""One pair of components in the MMD kernel: every value is a vector over a tile of nodes.

Both forms add $g$, $-gv$ and $g (vv^T - S^{-1})$ of eq. (5), summed over the bandwidths.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedmixtures.mixture.linear import sum_of

LOG2_E = 1.4426950408889634


def two_features(totals, own, atom, factor, sigma_ref) -> list[jax.Array]:
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


def any_features(totals, own, atom, factor, sigma_ref) -> list[jax.Array]:
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
