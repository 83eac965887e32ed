"""The E-step as one GPU kernel (Pallas): responsibilities are never written to memory.

A thread holds one node: its components and their sums in registers, its rows streamed past them.
Same sums as `statistics`, which explains them; `interpret=True` runs it on any machine.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from fedmixtures._types import Array, Rows, RowWeights
from fedmixtures.mixture.gradient import gradient_entries
from fedmixtures.mixture.linear import inverse_cholesky_entries, sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.trial import compare, some_mixtures

TILE = 64
"""Nodes in one program of the grid, one per thread of two warps."""
LOG_2PI = 1.8378770664093453


class GpuRows(eqx.Module):
    """Rows as the kernel reads them, the node axis last and padded to whole tiles."""

    x: Float[Array, "m d places"]
    weight: Float[Array, "w places"]
    """Of each row, or of as many rows in turn as there are rows for each of these."""
    in_use: Int[Array, " places"]
    """Rows of each node; what lies behind them weighs nothing and need not be set."""

    @classmethod
    def of(cls, rows: Rows, row_weights: RowWeights) -> GpuRows:
        """Rows in use come first; padding between them weighs zero and does no harm."""
        m = rows.shape[1]
        in_use = jnp.where(row_weights != 0, jnp.arange(1, m + 1)[None], 0).max(1)
        return cls(_last(rows), _last(row_weights), _last(in_use.astype(jnp.int32)))


def _last(part: jax.Array) -> jax.Array:
    """The node axis moved to the end and padded to whole tiles."""
    padding = [(0, 0)] * (part.ndim - 1) + [(0, -len(part) % TILE)]
    return jnp.pad(jnp.moveaxis(part, 0, -1), padding)


def moments_gpu(constant, means, factor, rows: GpuRows, *, interpret: bool = False):
    """Log-likelihood (nodes,) and sums (k, 1 + d + d(d+1)/2, nodes) of mass and moments.

    `constant` (nodes, k) is the log of weight times normalising constant, `factor` the lower
    triangle of the inverse Cholesky factors as a list of rows of arrays (nodes, k).
    """
    nodes, k = constant.shape
    m, d, places = rows.x.shape
    flat = [constant, *(means[..., i] for i in range(d)), *(e for row in factor for e in row)]
    own = jnp.stack([_last(field) for field in flat], axis=1)  # (k, fields, nodes)
    n_sums = 1 + d + d * (d + 1) // 2
    tile = lambda *shape: pl.BlockSpec((*shape, TILE), lambda i: (*(0 for _ in shape), i))
    sums, log_likelihood = pl.pallas_call(
        partial(_kernel, k=k, d=d),
        grid=(places // TILE,),
        in_specs=[tile(k, own.shape[1]), tile(m, d), tile(len(rows.weight)), tile()],
        out_specs=[tile(k, n_sums), tile()],
        out_shape=[
            jax.ShapeDtypeStruct((k, n_sums, places), means.dtype),
            jax.ShapeDtypeStruct((places,), means.dtype),
        ],
        interpret=interpret,
        **({} if interpret else {"compiler_params": compiler_params()}),
    )(own, rows.x, rows.weight, rows.in_use)
    return log_likelihood[:nodes], sums[..., :nodes]


def compiler_params():
    """A thread for each node of a tile."""
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=TILE // 32, num_stages=1)


def _kernel(own_ref, x_ref, w_ref, in_use_ref, sums_ref, log_likelihood_ref, *, k: int, d: int):
    """Sums of one tile of nodes; every value below is a vector over the tile."""
    own = [[own_ref[c, f, :] for f in range(own_ref.shape[1])] for c in range(k)]
    log_likelihood, totals = _row_sums(own, x_ref, w_ref, in_use_ref, d)
    log_likelihood_ref[...] = log_likelihood
    for c in range(k):
        for i, total in enumerate(totals[c]):
            sums_ref[c, i, :] = total


def _row_sums(own, x_ref, w_ref, in_use_ref, d: int):
    """Log-likelihood, and mass and moments of each component, over the rows of one tile.

    `own` lists for each component the constant, the means and the flat factor.
    """
    k, zero = len(own), jnp.zeros_like(own[0][0])
    pairs = [(i, j) for i in range(d) for j in range(i + 1)]
    each = x_ref.shape[0] // w_ref.shape[0]

    def one_row(r, carry):
        log_likelihood, totals = carry
        x, w = [x_ref[r, i, :] for i in range(d)], w_ref[r // each, :]
        delta = [[x[i] - own[c][1 + i] for i in range(d)] for c in range(k)]
        log_joint = [own[c][0] - 0.5 * square(own[c][1 + d :], delta[c], d) for c in range(k)]
        top = log_joint[0]
        for value in log_joint[1:]:
            top = jnp.maximum(top, value)
        unnormalised = [jnp.exp(value - top) for value in log_joint]
        total = sum_of(unnormalised)
        scale = w / total
        new = []
        for c in range(k):
            share = unnormalised[c] * scale
            moments = [share, *(share * delta[c][i] for i in range(d))]
            moments += [share * (delta[c][i] * delta[c][j]) for i, j in pairs]
            new.append([t + moment for t, moment in zip(totals[c], moments, strict=True)])
        return log_likelihood + w * (top + jnp.log(total)), new

    start = (zero, [[zero] * (1 + d + len(pairs)) for _ in range(k)])
    return jax.lax.fori_loop(0, in_use_ref[...].max(), one_row, start)


def nll_gpu(theta: Mixture, rows: GpuRows, *, interpret: bool = False):
    """`statistics.nll_and_gradient` of every node as one kernel, mixtures read as they stand."""
    nodes, k, d = theta.means.shape
    places = rows.x.shape[-1]
    whole = lambda part: jnp.pad(part, [(0, places - nodes), *[(0, 0)] * (part.ndim - 1)])
    parts = [whole(part) for part in theta.parts]
    node = lambda part: pl.BlockSpec((TILE, *part.shape[1:]), lambda i: (i, *[0] * (part.ndim - 1)))
    tile = lambda part: pl.BlockSpec(
        (*part.shape[:-1], TILE), lambda i: (*[0] * (part.ndim - 1), i)
    )
    results = [*parts, parts[0][:, 0]]
    *gradient, nll = pl.pallas_call(
        partial(_gradient_kernel, k=k, d=d),
        grid=(places // TILE,),
        in_specs=[*map(node, parts), tile(rows.x), tile(rows.weight), tile(rows.in_use)],
        out_specs=list(map(node, results)),
        out_shape=[jax.ShapeDtypeStruct(part.shape, theta.means.dtype) for part in results],
        interpret=interpret,
        **({} if interpret else {"compiler_params": compiler_params()}),
    )(*parts, rows.x, rows.weight, rows.in_use)
    return nll[:nodes], Mixture(*(part[:nodes] for part in gradient))


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `mixture.trial`."""
    from fedmixtures.mixture.statistics import nll_gradient, statistics_of_products

    rng = np.random.default_rng(0)
    theta = some_mixtures(rng, dtype, TILE, k, d)
    rows = 2 * rng.normal(size=(TILE, 12, d)).astype(dtype)
    row_weights = rng.uniform(size=(TILE, 12)).astype(dtype) / 12
    row_weights[: TILE // 2, 5:] = 0
    kernel = lambda theta, *rows: nll_gpu(theta, GpuRows.of(*rows), interpret=interpret)
    plain = lambda theta, *rows: nll_gradient(theta, statistics_of_products(theta, *rows))
    compare(kernel, plain, dtype, theta, rows, row_weights)


def _gradient_kernel(
    weights_ref, means_ref, covariances_ref, x_ref, w_ref, in_use_ref, *out_refs, k: int, d: int
):
    own, factors = [], []
    for c in range(k):
        weight = weights_ref[:, c]
        factor, constant = factor_and_constant(
            weight, lambda i, j, c=c: covariances_ref[:, c, i, j], d
        )
        factors.append(factor)
        means = [means_ref[:, c, i] for i in range(d)]
        own.append([constant, *means, *(entry for row in factor for entry in row)])
    log_likelihood, totals = _row_sums(own, x_ref, w_ref, in_use_ref, d)
    out_weights, out_means, out_covariances, out_nll = out_refs
    out_nll[...] = -log_likelihood
    for c in range(k):
        mass, rest = totals[c][0], iter(totals[c][1:])
        first = [next(rest) for _ in range(d)]
        second = [[next(rest) for _ in range(i + 1)] for i in range(d)]
        weight = weights_ref[:, c]
        out_weights[:, c] = jnp.where(weight > 0, -mass / jnp.where(weight > 0, weight, 1.0), 0.0)
        means, covariances = gradient_entries(factors[c], mass, first, second)
        for i in range(d):
            out_means[:, c, i] = means[i]
            for j in range(i + 1):
                out_covariances[:, c, i, j] = covariances[i][j]
                if i != j:
                    out_covariances[:, c, j, i] = covariances[i][j]


def factor_and_constant(weight, entry, d: int):
    """Inverse Cholesky factor of a component, and the log of its weight and normalisation."""
    triangle = [
        [0.5 * (entry(i, j) + entry(j, i)) for j in range(i)] + [entry(i, i)] for i in range(d)
    ]
    factor, log_determinant = inverse_cholesky_entries(triangle)
    log_weight = jnp.log(jnp.where(weight > 0, weight, 1.0))
    constant = log_weight - 0.5 * (log_determinant + d * LOG_2PI)
    return factor, jnp.where(weight > 0, constant, -jnp.inf)


def square(factor, delta, d: int):
    """Squared length of the whitened difference; `factor` is the flat lower triangle."""
    white = [
        sum_of(factor[i * (i + 1) // 2 + j] * delta[j] for j in range(i + 1)) for i in range(d)
    ]
    return sum_of(w * w for w in white)
