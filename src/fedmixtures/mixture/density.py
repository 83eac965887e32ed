"""Density of one mixture: the plain definitions that the fast kernels are tested against."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedmixtures._types import Array, Scalar
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture


def log_joint(
    mixture: Mixture, x: Float[Array, "*nodes m d"], factor: tuple[Array, Array] | None = None
) -> Float[Array, "*nodes m k"]:
    r"""$\ln \pi_c + \ln N(x; \mu_c, \Sigma_c)$ for every row and component.

    `factor` is `inverse_cholesky` of the covariances, where somebody has it. Kernels that write
    this out: `kernels.cpu.likelihood` and `kernels.gpu.likelihood`.
    """
    inverse, log_determinant = inverse_cholesky(mixture.covariances) if factor is None else factor
    difference = x[..., None, :, :] - mixture.means[..., :, None, :]
    white = jnp.einsum("...cij,...cmj->...cmi", inverse, difference)
    constant = log_constants(mixture, log_determinant)
    return jnp.swapaxes(constant[..., None] - 0.5 * jnp.square(white).sum(-1), -1, -2)


def log_joint_observed(
    mixture: Mixture, x: Float[Array, "*nodes m d"], observed: Bool[Array, "*nodes m d"]
) -> Float[Array, "*nodes m k"]:
    r"""`log_joint` of the cells that were observed: the marginal of every row's own features."""
    return observed_terms(mixture, x, observed)[0]


def observed_terms(
    mixture: Mixture, x: Float[Array, "*nodes m d"], observed: Bool[Array, "*nodes m d"]
) -> tuple[Array, Array, Array]:
    r"""The log joint of observed cells, $S^{-1}\delta$ and $L^{-1}$ with $LL^\top = S$, by row.

    For a row with observed features O, $S = \Sigma_{OO}$ in the rows and columns of O and the
    identity elsewhere, $\delta = x - \mu$ in O and zero elsewhere: determinant, quadratic form and
    inverse are those of $\Sigma_{OO}$, and all rows have one shape whatever their gaps.
    """
    seen = observed[..., None, :].astype(x.dtype)  # (..., m, 1, d)
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    outer = seen[..., :, None] * seen[..., None, :]
    blank = eye.reshape(*(1,) * (seen.ndim - 1), *eye.shape) * (1 - seen)[..., None]
    masked = mixture.covariances[..., None, :, :, :] * outer + blank  # (..., m, k, d, d)
    inverse, log_determinant = inverse_cholesky(masked)
    delta = jnp.where(observed[..., None, :], x[..., None, :] - mixture.means[..., None, :, :], 0.0)
    white = jnp.einsum("...ij,...j->...i", inverse, delta)
    solved = jnp.einsum("...ij,...i->...j", inverse, white)
    cells = observed.sum(-1)[..., None].astype(x.dtype)
    half = 0.5 * (jnp.square(white).sum(-1) + log_determinant + cells * jnp.log(2 * jnp.pi))
    return _log_weights(mixture)[..., None, :] - half, solved, inverse


def _log_weights(mixture: Mixture) -> Float[Array, "*nodes k"]:
    present = mixture.weights > 0
    return jnp.where(present, jnp.log(jnp.where(present, mixture.weights, 1.0)), -jnp.inf)


def log_constants(
    mixture: Mixture, log_determinant: Float[Array, "*nodes k"]
) -> Float[Array, "*nodes k"]:
    """Logarithm of weight times normalising constant; minus infinity where absent."""
    present = mixture.weights > 0
    log_weights = jnp.log(jnp.where(present, mixture.weights, 1.0))
    constant = log_weights - 0.5 * (log_determinant + mixture.n_features * jnp.log(2 * jnp.pi))
    return jnp.where(present, constant, -jnp.inf)


def log_density(mixture: Mixture, x: Float[Array, "m d"]) -> Float[Array, " m"]:
    r"""$\ln p(x)$ for every row."""
    return jax.nn.logsumexp(log_joint(mixture, x), axis=-1)


def responsibilities(mixture: Mixture, x: Float[Array, "m d"]) -> Float[Array, "m k"]:
    """Posterior probability of each component for every row."""
    return jax.nn.softmax(log_joint(mixture, x), axis=-1)


def local_loss(
    mixture: Mixture, rows: Float[Array, "m d"], row_weights: Float[Array, " m"]
) -> Scalar:
    r"""Eq. (1): $L = -\frac1m \sum_r \ln p(x_r)$, rows counted by `row_weights`.

    The weights are used as given; the caller makes them sum to one (or to zero for an empty node).
    """
    return -(row_weights @ log_density(mixture, rows))
