r"""Sufficient statistics of weighted rows under the mixtures of a block of nodes.

One pass over the rows gives the likelihood, its gradient (eq. 1 and, on drawn rows, eq. 4) and the
M-step of EM. First and second moments are taken about each component's own mean, never as
$E[xx^\top] - \mu\mu^\top$, so that means far from the origin lose no digits.
"""

from __future__ import annotations

from functools import reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.mixture.gradient import gradient_entries
from fedmixtures.mixture.linear import (
    UNROLLED,
    inverse_cholesky,
    inverse_cholesky_entries,
    lower_triangle,
    on_gpu,
    sum_of,
    sum_together,
    symmetric,
)
from fedmixtures.mixture.logarithm import fast_log
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.trial import passes

ROW_CHUNK = 8192
"""Rows of a node beyond this many are visited in chunks, so that memory stays bounded."""
MOST_SUMS = 72
"""Up to this many sums are taken in one loop over the rows; the loop's code grows with them."""


class Statistics(eqx.Module):
    r"""Weighted sums over rows, with responsibilities $r_c(x)$ and $\delta_c = x - \mu_c$."""

    log_likelihood: PerNode
    r"""$\sum_x w \ln p(x)$"""
    mass: Float[Array, "nodes k"]
    r"""$\sum_x w\, r_c$"""
    first: Float[Array, "nodes k d"]
    r"""$\sum_x w\, r_c\, \delta_c$"""
    second: Float[Array, "nodes k d d"]
    r"""$\sum_x w\, r_c\, \delta_c \delta_c^\top$"""


def statistics(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """E-step of every node of a block on its own weighted rows."""
    k, d = theta.n_components, theta.n_features
    one_pass = statistics_of_products
    if _has_kernel(theta):
        from fedmixtures.mixture.statistics_gpu import statistics_of_kernel

        one_pass = statistics_of_kernel
    elif d <= UNROLLED and k * (1 + d + d * (d + 1) // 2) <= MOST_SUMS:
        return _unrolled(theta, rows, row_weights)
    elif 1 + d + d * (d + 1) // 2 <= MOST_SUMS and not on_gpu():
        one_pass = _rows_last
    m = rows.shape[1]
    if m <= ROW_CHUNK:
        return one_pass(theta, rows, row_weights)
    n_chunks = -(-m // ROW_CHUNK)
    padding = n_chunks * ROW_CHUNK - m
    rows = jnp.pad(rows, ((0, 0), (0, padding), (0, 0)))
    row_weights = jnp.pad(row_weights, ((0, 0), (0, padding)))
    chunked = (
        jnp.moveaxis(rows.reshape(len(rows), n_chunks, ROW_CHUNK, -1), 1, 0),
        jnp.moveaxis(row_weights.reshape(len(rows), n_chunks, ROW_CHUNK), 1, 0),
    )
    first = one_pass(theta, chunked[0][0], chunked[1][0])

    def add(total: Statistics, chunk):
        return jax.tree.map(jnp.add, total, one_pass(theta, *chunk)), None

    rest = jax.tree.map(lambda part: part[1:], chunked)
    return jax.lax.scan(add, first, rest)[0]


def nll_and_gradient(
    theta: Mixture, rows: Rows, row_weights: RowWeights
) -> tuple[PerNode, Mixture]:
    r"""Weighted negative log-likelihood of every node and its gradient, in closed form.

    With $P_c = \Sigma_c^{-1} = F^\top F$, mass $N_c$, first and second moments $a_c, B_c$:
    $-\partial\pi_c = N_c/\pi_c$, $-\partial\mu_c = P_c a_c$, $-\partial\Sigma_c = \frac12 (P_c B_c
    P_c - N_c P_c) = \frac12 F^\top (F B_c F^\top - N_c I) F$, the plain symmetric matrix gradient.
    """
    if rows.shape[1] <= ROW_CHUNK and _has_kernel(theta):
        from fedmixtures.mixture.statistics_gpu import GpuRows, nll_gpu

        return nll_gpu(theta, GpuRows.of(rows, row_weights))
    return nll_gradient(theta, statistics(theta, rows, row_weights))


def _has_kernel(theta: Mixture) -> bool:
    """Whether there is a GPU kernel for mixtures like these, and it works here."""
    if theta.n_features > UNROLLED or not on_gpu():
        return False
    from fedmixtures.mixture.statistics_gpu import trial

    return passes(trial, theta.n_components, theta.n_features, theta.means.dtype)


def nll_gradient(theta: Mixture, s: Statistics) -> tuple[PerNode, Mixture]:
    """The same from statistics already taken under `theta`."""
    present = theta.weights > 0
    weights = jnp.where(present, -s.mass / jnp.where(present, theta.weights, 1.0), 0.0)
    few = theta.n_features <= UNROLLED
    means, covariances = (_gradient_by_entries if few else _gradient_by_products)(theta, s)
    return -s.log_likelihood, Mixture(weights, means, covariances)


def log_density_slots(mixtures: Mixture, points: list[jax.Array]) -> jax.Array:
    """Log-density of points (slots, nodes, n), an array per feature, under each slot's mixture."""
    k, d = mixtures.n_components, mixtures.n_features
    of = lambda part, c: part[:, c, None]

    def one_slot(args):
        theta, x = args
        inverse, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
        delta = [[x[i] - of(theta.means[..., i], c) for i in range(d)] for c in range(k)]
        log_joint = _log_joint(log_constants(theta, log_determinant), inverse, delta, of)
        top = reduce(jnp.maximum, log_joint)
        return top + fast_log(sum_of(jnp.exp(one - top) for one in log_joint))

    slots_first = jax.tree.map(lambda part: jnp.moveaxis(jnp.asarray(part), 1, 0), mixtures)
    return jax.lax.map(one_slot, (slots_first, points))


def _log_joint(constant, inverse, delta, of) -> list[jax.Array]:
    """Log of weight times density: an array for each component."""
    log_joint = []
    for c, from_mean in enumerate(delta):
        d = len(from_mean)
        white = [
            sum_of(of(inverse[i][j], c) * from_mean[j] for j in range(i + 1)) for i in range(d)
        ]
        log_joint.append(of(constant, c) - 0.5 * sum_of(w * w for w in white))
    return log_joint


def _gradient_by_entries(theta: Mixture, s: Statistics) -> tuple[Array, Array]:
    d = theta.n_features
    inverse, _ = inverse_cholesky_entries(lower_triangle(theta.covariances))
    first = [s.first[..., i] for i in range(d)]
    second = [[s.second[..., i, j] for j in range(i + 1)] for i in range(d)]
    means, covariances = gradient_entries(inverse, s.mass, first, second)
    return jnp.stack(means, axis=-1), symmetric(covariances)


def _gradient_by_products(theta: Mixture, s: Statistics) -> tuple[Array, Array]:
    inverse, _ = inverse_cholesky(theta.covariances)
    precision = jnp.einsum("nkpi,nkpj->nkij", inverse, inverse)
    sandwich = jnp.einsum("nkia,nkab,nkbj->nkij", precision, s.second, precision)
    means = -jnp.einsum("nkij,nkj->nki", precision, s.first)
    return means, 0.5 * (s.mass[..., None, None] * precision - sandwich)


def log_constants(theta: Mixture, log_determinant: Array) -> jax.Array:
    """Logarithm of weight times normalising constant; minus infinity where absent."""
    present = theta.weights > 0
    log_weights = jnp.log(jnp.where(present, theta.weights, 1.0))
    constant = log_weights - 0.5 * (log_determinant + theta.n_features * jnp.log(2 * jnp.pi))
    return jnp.where(present, constant, -jnp.inf)


def _unrolled(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """Few features: all written out, and every sum over rows taken in one loop over them.

    Rows stand on the last axis, which is the vector axis. Nothing of the size of rows times
    components is ever kept.
    """
    k, d = theta.n_components, theta.n_features
    inverse, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
    constant = log_constants(theta, log_determinant)
    x = [rows[:, :, i] for i in range(d)]  # (nodes, m)
    of = lambda part, c: part[:, c, None]  # (nodes, 1)
    delta = [[x[i] - of(theta.means[:, :, i], c) for i in range(d)] for c in range(k)]
    log_joint = _log_joint(constant, inverse, delta, of)
    top = reduce(jnp.maximum, log_joint)
    unnormalised = [jnp.exp(one - top) for one in log_joint]
    total = sum_of(unnormalised)
    scale = row_weights / total
    terms = [row_weights * (top + fast_log(total))]
    for c in range(k):
        share = unnormalised[c] * scale
        first = [share * delta[c][i] for i in range(d)]
        second = [first[i] * delta[c][j] for i in range(d) for j in range(i + 1)]
        terms += [share, *first, *second]
    log_likelihood, *sums = sum_together(terms, axis=1)
    moments = 1 + d + d * (d + 1) // 2
    parts = [jnp.stack(sums[i::moments], axis=-1) for i in range(moments)]  # (nodes, k)
    triangle = iter(parts[1 + d :])
    return Statistics(
        log_likelihood,
        parts[0],
        jnp.stack(parts[1 : 1 + d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def _rows_last(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """A dozen features at most: as `_unrolled`, but components stay an axis of the arrays."""
    d = theta.n_features
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    constant = log_constants(theta, log_determinant)[:, :, None]
    delta = [rows[:, None, :, i] - theta.means[:, :, i, None] for i in range(d)]  # (nodes, k, m)
    white = [sum_of(inverse[:, :, i, j, None] * delta[j] for j in range(i + 1)) for i in range(d)]
    log_joint = constant - 0.5 * sum_of(w * w for w in white)
    top = log_joint.max(1, keepdims=True)
    unnormalised = jnp.exp(log_joint - top)
    total = unnormalised.sum(1, keepdims=True)
    share = unnormalised * (row_weights[:, None, :] / total)
    first = [share * delta[i] for i in range(d)]
    second = [first[i] * delta[j] for i in range(d) for j in range(i + 1)]
    parts = sum_together([share, *first, *second], axis=2)
    triangle = iter(parts[1 + d :])
    return Statistics(
        (row_weights * (top + fast_log(total))[:, 0]).sum(-1),
        parts[0],
        jnp.stack(parts[1 : 1 + d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def statistics_of_products(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """Many features: the work is in batched matrix products."""
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    delta = rows[:, None, :, :] - theta.means[:, :, None, :]  # (nodes, k, m, d)
    white = jnp.einsum("nkij,nkmj->nkmi", inverse, delta)
    constant = log_constants(theta, log_determinant)[:, :, None]
    log_joint = constant - 0.5 * jnp.square(white).sum(-1)
    log_density = jax.nn.logsumexp(log_joint, axis=1)
    share = jnp.exp(log_joint - log_density[:, None, :]) * row_weights[:, None, :]
    return Statistics(
        (row_weights * log_density).sum(-1),
        share.sum(-1),
        jnp.einsum("nkm,nkmi->nki", share, delta),
        jnp.einsum("nkmi,nkmj->nkij", share[..., None] * delta, delta),
    )
