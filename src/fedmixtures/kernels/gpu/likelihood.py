"""The E-step as one GPU kernel: responsibilities are never written to memory.

A thread holds one node: its components and their sums in registers, its rows streamed past them.
Same sums as `mixture.moments`, which explains them.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures._types import Array, Rows, RowWeights
from fedmixtures.kernels.cpu.likelihood import gradient_entries, n_sums, of_sums
from fedmixtures.kernels.gpu import tiles
from fedmixtures.kernels.gpu.tiles import TILE, nodes_last, nodes_of
from fedmixtures.kernels.trial import compare, some_mixtures
from fedmixtures.mixture.density import log_constants
from fedmixtures.mixture.linear import inverse_cholesky_entries, lower_triangle, sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, plain_gradient, plain_statistics

LOG_2PI, LOG2_E, LOG_2 = 1.8378770664093453, 1.4426950408889634, 0.6931471805599453


class GpuRows(eqx.Module):
    """Rows as the kernel reads them, the node axis last and padded to whole tiles."""

    x: Float[Array, "m d places"]
    weight: Float[Array, "w places"]
    """Of each row, or of as many rows in turn as there are rows for each of these."""
    in_use: Int[Array, " tiles"]
    """Rows of a tile's nodes, at most; what lies behind them weighs nothing and need not be set."""

    @classmethod
    def of(cls, rows: Rows, row_weights: RowWeights) -> GpuRows:
        """Rows in use come first; padding between them weighs zero and does no harm."""
        return cls(nodes_last(rows), nodes_last(row_weights), tiles.most_in_use(row_weights))


def statistics_gpu(
    theta: Mixture, rows: Rows, row_weights: RowWeights, interpret: bool = False
) -> Statistics:
    """`moments.plain_statistics` of few features: one kernel, a thread per node."""
    entries, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
    constant = log_constants(theta, log_determinant)
    laid_out = GpuRows.of(rows, row_weights)
    log_likelihood, sums = moments_gpu(
        constant, theta.means, entries, laid_out, interpret=interpret
    )
    return of_sums(log_likelihood, [sums[:, i].T for i in range(sums.shape[1])], theta.n_features)


def moments_gpu(constant, means, factor, rows: GpuRows, *, interpret: bool = False):
    """Log-likelihood (nodes,) and sums (k, 1 + d + d(d+1)/2, nodes) of mass and moments.

    `constant` (nodes, k) is the log of weight times normalising constant, `factor` the lower
    triangle of the inverse Cholesky factors as a list of rows of arrays (nodes, k).
    """
    nodes, k = constant.shape
    _, d, places = rows.x.shape
    flat = [constant, *(means[..., i] for i in range(d)), *(e for row in factor for e in row)]
    own = jnp.stack([nodes_last(field) for field in flat], axis=1)  # (k, fields, nodes)
    results = [
        jax.ShapeDtypeStruct((k, n_sums(d), places), means.dtype),
        jax.ShapeDtypeStruct((places,), means.dtype),
    ]
    arrays = (own, rows.x, rows.weight, rows.in_use)
    sums, log_likelihood = tiles.call(
        partial(_kernel, k=k, d=d),
        {"tile": places // TILE},
        results,
        arrays,
        interpret=interpret,
        approximate=True,
    )
    return log_likelihood[:nodes], sums[..., :nodes]


def _kernel(
    tile, own_ref, x_ref, w_ref, in_use_ref, sums_ref, log_likelihood_ref, *, k: int, d: int
):
    """Sums of one tile of nodes; every value below is a vector over the tile."""
    at = nodes_of(tile)
    own = [[own_ref[c, f, at] for f in range(own_ref.shape[1])] for c in range(k)]
    log_likelihood, totals = _row_sums(own, x_ref, w_ref, at, in_use_ref[tile])
    log_likelihood_ref[at] = log_likelihood
    for c in range(k):
        for i, total in enumerate(totals[c]):
            sums_ref[c, i, at] = total


def _row_sums(own, x_ref, w_ref, at, in_use):
    """Log-likelihood, and mass and moments of each component, over the rows of one tile.

    `own` lists for each component the constant, the means and the flat factor. Exponents count in
    powers of two, which is what the GPU has an instruction for.
    """
    k, d, zero = len(own), x_ref.shape[1], tiles.zeros(own[0][0])
    pairs = [(i, j) for i in range(d) for j in range(i + 1)]
    each, last = x_ref.shape[0] // w_ref.shape[0], x_ref.shape[0] - 1
    constants = [LOG2_E * one[0] for one in own]
    means = [one[1 : 1 + d] for one in own]
    factors = [[np.sqrt(0.5 * LOG2_E).astype(zero.dtype) * f for f in one[1 + d :]] for one in own]

    def read(r):
        return [x_ref[r, i, at] for i in range(d)], w_ref[jax.lax.div(r, np.int32(each)), at]

    def one_row(r, carry):
        (x, w), log_likelihood, totals = carry
        ahead = read(jnp.minimum(r + 1, last))  # on its way while this row is worked on
        delta = [[x[i] - means[c][i] for i in range(d)] for c in range(k)]
        log_joint = [constants[c] - square(factors[c], delta[c], d) for c in range(k)]
        top = log_joint[0]
        for value in log_joint[1:]:
            top = jnp.maximum(top, value)
        unnormalised = [jnp.exp2(value - top) for value in log_joint]
        total = sum_of(unnormalised)
        scale = w / total
        new = []
        for c in range(k):
            share = unnormalised[c] * scale
            moments = [share, *(share * delta[c][i] for i in range(d))]
            moments += [share * (delta[c][i] * delta[c][j]) for i, j in pairs]
            new.append([t + moment for t, moment in zip(totals[c], moments, strict=True)])
        return ahead, log_likelihood + w * (top + jnp.log2(total)), new

    start = (read(jnp.int32(0)), zero, [[zero] * (1 + d + len(pairs)) for _ in range(k)])
    _, log_likelihood, totals = jax.lax.fori_loop(0, in_use, one_row, start)
    return LOG_2 * log_likelihood, totals


def nll_gpu(theta: Mixture, rows: GpuRows, *, interpret: bool = False):
    """`dispatch.nll_and_gradient` of every node as one kernel, mixtures read as they stand."""
    nodes, k, d = theta.means.shape
    dtype = theta.means.dtype
    parts = list(map(tiles.flat, theta.parts))
    shapes = [part.shape for part in parts]
    *gradient, nll = tiles.call(
        partial(_gradient_kernel, k=k, d=d),
        {"tile": rows.x.shape[-1] // TILE},
        [jax.ShapeDtypeStruct(shape, dtype) for shape in (*shapes, shapes[0][:1])],
        (*parts, rows.x, rows.weight, rows.in_use),
        interpret=interpret,
        approximate=True,
    )
    pairs = zip(gradient, theta.parts, strict=True)
    return nll[:nodes], Mixture(*(new[:nodes].reshape(part.shape) for new, part in pairs))


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `kernels.trial`."""
    rng = np.random.default_rng(0)
    theta = some_mixtures(rng, dtype, TILE, k, d)
    rows = 2 * rng.normal(size=(TILE, 12, d)).astype(dtype)
    row_weights = rng.uniform(size=(TILE, 12)).astype(dtype) / 12
    row_weights[: TILE // 2, 5:] = 0
    kernel = lambda theta, *rows: nll_gpu(theta, GpuRows.of(*rows), interpret=interpret)

    def plain(theta, rows, row_weights):
        s = plain_statistics(theta, rows, row_weights)
        return -s.log_likelihood, plain_gradient(theta, s)

    compare(kernel, plain, dtype, theta, rows, row_weights)


def _gradient_kernel(
    tile, weights_ref, means_ref, covariances_ref, x_ref, w_ref, in_use_ref, *out_refs, k, d
):
    at, own, factors = nodes_of(tile), [], []
    place = lambda c, i, j: (c * d + i) * d + j
    for c in range(k):
        weight = weights_ref[at, c]
        entry = lambda i, j, c=c: covariances_ref[at, place(c, i, j)]
        factor, constant = factor_and_constant(weight, entry, d)
        factors.append(factor)
        means = [means_ref[at, c * d + i] for i in range(d)]
        own.append([constant, *means, *(entry for row in factor for entry in row)])
    log_likelihood, totals = _row_sums(own, x_ref, w_ref, at, in_use_ref[tile])
    out_weights, out_means, out_covariances, out_nll = out_refs
    out_nll[at] = -log_likelihood
    for c in range(k):
        mass, rest = totals[c][0], iter(totals[c][1:])
        first = [next(rest) for _ in range(d)]
        second = [[next(rest) for _ in range(i + 1)] for i in range(d)]
        weight = weights_ref[at, c]
        out_weights[at, c] = jnp.where(weight > 0, -mass / jnp.where(weight > 0, weight, 1.0), 0.0)
        means, covariances = gradient_entries(factors[c], mass, first, second)
        for i in range(d):
            out_means[at, c * d + i] = means[i]
            for j in range(d):
                out_covariances[at, place(c, i, j)] = covariances[max(i, j)][min(i, j)]


def factor_and_constant(weight, entry, d: int):
    """Inverse Cholesky factor of a component, and the log of its weight and normalisation."""
    triangle = [
        [0.5 * (entry(i, j) + entry(j, i)) for j in range(i)] + [entry(i, i)] for i in range(d)
    ]
    factor, log_determinant = inverse_cholesky_entries(triangle, tiles.sqrt)
    log_weight = jnp.log(jnp.where(weight > 0, weight, 1.0))
    constant = log_weight - 0.5 * (log_determinant + d * LOG_2PI)
    return factor, jnp.where(weight > 0, constant, -jnp.inf)


def square(factor, delta, d: int):
    """Squared length of the whitened difference; `factor` is the flat lower triangle."""
    white = [
        sum_of(factor[i * (i + 1) // 2 + j] * delta[j] for j in range(i + 1)) for i in range(d)
    ]
    return sum_of(w * w for w in white)
