"""How well mixtures explain rows: densities row by row, and the test on their differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.mixture.linear import inverse_cholesky, sum_of
from fedmixtures.mixture.mixture import Mixture

WRITTEN_OUT = 12
"""Up to this many features sums over them are written out: one loop over rows, nothing kept."""


def log_joint(theta: Mixture, rows: Rows) -> Float[Array, "nodes k m"]:
    """Log of weight times density of every component at every row of its node."""
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    present = theta.weights > 0
    log_weights = jnp.log(jnp.where(present, theta.weights, 1.0))
    constant = log_weights - 0.5 * (log_determinant + theta.n_features * jnp.log(2 * jnp.pi))
    constant = jnp.where(present, constant, -jnp.inf)
    d = theta.n_features
    if d > WRITTEN_OUT:
        delta = rows[:, None, :, :] - theta.means[:, :, None, :]
        white = jnp.einsum("nkij,nkmj->nkmi", inverse, delta)
        return constant[:, :, None] - 0.5 * jnp.square(white).sum(-1)
    delta = [rows[:, None, :, i] - theta.means[:, :, i, None] for i in range(d)]
    white = [sum_of(inverse[:, :, i, j, None] * delta[j] for j in range(i + 1)) for i in range(d)]
    return constant[:, :, None] - 0.5 * sum_of(w * w for w in white)


def log_densities(theta: Mixture, rows: Rows) -> Float[Array, "nodes m"]:
    """Log-density of every row under the mixture of its node."""
    return jax.nn.logsumexp(log_joint(theta, rows), axis=1)


def mean_and_error(
    difference: Float[Array, "nodes m"], counts: RowWeights
) -> tuple[PerNode, PerNode]:
    """Mean over rows and its standard error."""
    total = jnp.maximum(counts.sum(-1), 1e-9)
    real = jnp.where(counts > 0, difference, 0.0)
    mean = (counts * real).sum(-1) / total
    spread = (counts * jnp.square(real - mean[:, None])).sum(-1) / total
    return mean, jnp.sqrt(spread / total)


def not_worse(
    difference: Float[Array, "nodes m"], counts: RowWeights, z: float | Array
) -> Bool[Array, " nodes"]:
    r"""$\bar D + z\, se(D) > 0$: the rows do not speak against it."""
    mean, error = mean_and_error(difference, counts)
    return mean + z * error > 0


def total_gain(difference: Float[Array, "nodes m"], counts: RowWeights) -> PerNode:
    """Sum of log-density differences: a log Bayes factor where the densities are out-of-fold."""
    return (counts * jnp.where(counts > 0, difference, 0.0)).sum(-1)
