r"""Sufficient statistics of weighted rows under the mixtures of a block of nodes.

One pass over the rows gives the likelihood, its gradient (eq. 1 and, on drawn rows, eq. 4) and the
M-step of EM. First and second moments are taken about each component's own mean, never as
$E[xx^\top] - \mu\mu^\top$, so that means far from the origin lose no digits.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
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
from fedmixtures.mixture.mixture import Mixture

ROW_CHUNK = 8192
"""Rows of a node beyond this many are visited in chunks, so that memory stays bounded."""


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
    one_pass = _by_matrix_products
    if theta.n_features <= UNROLLED:
        one_pass = _by_gpu_kernel if on_gpu() else _unrolled
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

    With precision $P_c = \Sigma_c^{-1}$: $-\partial\pi_c = N_c/\pi_c$, $-\partial\mu_c = P_c a_c$,
    $-\partial\Sigma_c = \frac12 (P_c B_c P_c - N_c P_c)$, the plain symmetric matrix gradient.
    """
    s = statistics(theta, rows, row_weights)
    inverse, _ = inverse_cholesky(theta.covariances)
    precision = jnp.einsum("nkpi,nkpj->nkij", inverse, inverse)
    present = theta.weights > 0
    sandwich = jnp.einsum("nkia,nkab,nkbj->nkij", precision, s.second, precision)
    gradient = Mixture(
        jnp.where(present, -s.mass / jnp.where(present, theta.weights, 1.0), 0.0),
        -jnp.einsum("nkij,nkj->nki", precision, s.first),
        0.5 * (s.mass[..., None, None] * precision - sandwich),
    )
    return -s.log_likelihood, gradient


def _constants(theta: Mixture, log_determinant: jax.Array) -> jax.Array:
    """Logarithm of weight times normalising constant; minus infinity where absent."""
    present = theta.weights > 0
    log_weights = jnp.log(jnp.where(present, theta.weights, 1.0))
    constant = log_weights - 0.5 * (log_determinant + theta.n_features * jnp.log(2 * jnp.pi))
    return jnp.where(present, constant, -jnp.inf)


def _unrolled(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """Few features: entry by entry, node axis last so that it is the vector axis."""
    d = theta.n_features
    entries, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
    factor = [[entry.T[:, None, :] for entry in row] for row in entries]  # (k, 1, nodes)
    constant = _constants(theta, log_determinant).T[:, None, :]
    x = [rows[:, :, i].T[None] for i in range(d)]  # (1, m, nodes)
    delta = [x[i] - theta.means[:, :, i].T[:, None, :] for i in range(d)]  # (k, m, nodes)
    white = [sum_of(factor[i][j] * delta[j] for j in range(i + 1)) for i in range(d)]
    log_joint = constant - 0.5 * sum_of(w * w for w in white)
    top = log_joint.max(0)
    unnormalised = jnp.exp(log_joint - top[None])
    total = unnormalised.sum(0)
    log_likelihood = (row_weights.T * (top + jnp.log(total))).sum(0)
    share = unnormalised * (row_weights.T / total)[None]
    pairs = [(i, j) for i in range(d) for j in range(i + 1)]
    moments = [share, *(share * delta[i] for i in range(d))]
    moments += [share * (delta[i] * delta[j]) for i, j in pairs]
    sums = [part.T for part in sum_together(moments, axis=1)]
    products = dict(zip(pairs, sums[1 + d :], strict=True))
    return Statistics(
        log_likelihood,
        sums[0],
        jnp.stack(sums[1 : 1 + d], axis=-1),
        symmetric([[products[i, j] for j in range(i + 1)] for i in range(d)]),
    )


def _by_gpu_kernel(
    theta: Mixture, rows: Rows, row_weights: RowWeights, interpret: bool = False
) -> Statistics:
    """Few features on a GPU: one kernel, a thread per node."""
    from fedmixtures.mixture.statistics_gpu import moments_gpu

    d = theta.n_features
    entries, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
    constant = _constants(theta, log_determinant)
    log_likelihood, sums = moments_gpu(
        constant, theta.means, entries, rows, row_weights, interpret=interpret
    )
    parts = [sums[:, i].T for i in range(sums.shape[1])]
    triangle = iter(parts[1 + d :])
    return Statistics(
        log_likelihood,
        parts[0],
        jnp.stack(parts[1 : 1 + d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def _by_matrix_products(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """Many features: the work is in batched matrix products."""
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    delta = rows[:, None, :, :] - theta.means[:, :, None, :]  # (nodes, k, m, d)
    white = jnp.einsum("nkij,nkmj->nkmi", inverse, delta)
    constant = _constants(theta, log_determinant)[:, :, None]
    log_joint = constant - 0.5 * jnp.square(white).sum(-1)
    log_density = jax.nn.logsumexp(log_joint, axis=1)
    share = jnp.exp(log_joint - log_density[:, None, :]) * row_weights[:, None, :]
    return Statistics(
        (row_weights * log_density).sum(-1),
        share.sum(-1),
        jnp.einsum("nkm,nkmi->nki", share, delta),
        jnp.einsum("nkmi,nkmj->nkij", share[..., None] * delta, delta),
    )
