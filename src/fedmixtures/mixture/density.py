"""Density of one mixture: the plain definitions that the fast kernels are tested against."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedmixtures._types import Array, Scalar
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture


def log_joint(mixture: Mixture, x: Float[Array, "*nodes m d"]) -> Float[Array, "*nodes m k"]:
    r"""$\ln \pi_c + \ln N(x; \mu_c, \Sigma_c)$ for every row and component.

    Kernels that write this out: `kernels.cpu.likelihood` and `kernels.gpu.likelihood`.
    """
    inverse, log_determinant = inverse_cholesky(mixture.covariances)
    difference = x[..., None, :, :] - mixture.means[..., :, None, :]
    white = jnp.einsum("...cij,...cmj->...cmi", inverse, difference)
    constant = log_constants(mixture, log_determinant)
    return jnp.swapaxes(constant[..., None] - 0.5 * jnp.square(white).sum(-1), -1, -2)


class GappyRows(eqx.Module):
    """Rows with missing cells, in stretches of one length whose rows lack the same cells."""

    x: Float[Array, "*nodes m d"]
    """Any number where a cell is missing."""
    observed: Bool[Array, "*nodes stretches d"]
    """Which cells the rows of every stretch have."""

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the rows."""
        return self.x.shape

    @property
    def by_stretch(self) -> Float[Array, "*nodes stretches length d"]:
        """The rows of every stretch."""
        *nodes, stretches, d = self.observed.shape
        return self.x.reshape(*nodes, stretches, -1, d)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, nodes: Any) -> GappyRows:
        """Those of some nodes."""
        return GappyRows(self.x[nodes], self.observed[nodes])


def log_joint_observed(mixture: Mixture, rows: GappyRows) -> Float[Array, "*nodes m k"]:
    r"""`log_joint` of the cells that were observed: the marginal of every row's own features."""
    joint = jnp.swapaxes(observed_terms(mixture, rows)[0], -1, -2)
    return joint.reshape(*rows.shape[:-1], joint.shape[-1])


def observed_terms(mixture: Mixture, rows: GappyRows) -> tuple[Array, Array, Array, Array]:
    r"""By stretch: the log joint of observed cells, $\delta$, $L^{-1}\delta$ and $L^{-1}$.

    For a row with observed features O, $LL^\top = \Sigma_{OO}$ in the rows and columns of O and the
    identity elsewhere, $\delta = x - \mu$ in O and zero elsewhere: determinant, quadratic form and
    inverse are those of $\Sigma_{OO}$, and all rows have one shape whatever their gaps.
    """
    x, observed = rows.by_stretch, rows.observed
    seen = observed[..., None, :].astype(x.dtype)  # (..., stretches, 1, d)
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    outer = seen[..., :, None] * seen[..., None, :]
    blank = eye.reshape(*(1,) * (seen.ndim - 1), *eye.shape) * (1 - seen)[..., None]
    masked = mixture.covariances[..., None, :, :, :] * outer + blank  # (..., stretches, k, d, d)
    inverse, log_determinant = inverse_cholesky(masked)
    delta = x[..., None, :, :] - mixture.means[..., None, :, None, :]
    delta = jnp.where(observed[..., None, None, :], delta, 0.0)  # (..., stretches, k, length, d)
    white = jnp.einsum("...ij,...mj->...mi", inverse, delta)
    cells = observed.sum(-1)[..., None].astype(x.dtype)
    constant = _log_weights(mixture)[..., None, :] - 0.5 * (
        log_determinant + cells * jnp.log(2 * jnp.pi)
    )
    return constant[..., None] - 0.5 * jnp.square(white).sum(-1), delta, white, inverse


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
