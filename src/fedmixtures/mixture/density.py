"""Density of one mixture: the plain definitions that the fast kernels are tested against."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedmixtures._types import Array, Scalar
from fedmixtures.mixture.linear import inverse_cholesky, swept
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


class GappyRows(eqx.Module):
    """Rows with missing cells, in stretches of one length whose rows lack the same cells."""

    x: Float[Array, "*nodes m d"]  # any number where a cell is missing
    observed: Bool[Array, "*nodes stretches d"]  # which cells the rows of every stretch have

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


def observed_terms(mixture: Mixture, rows: GappyRows) -> tuple[Array, Array, Array]:
    r"""By stretch and component: the log joint of observed cells, $E[x - \mu]$, and $Cov[x]$.

    Expectations given the observed cells O of a row: $\delta_O$ and $\Sigma_{MO} \Sigma_{OO}^{-1}
    \delta_O$ for what is missing, whose covariance is $\Sigma_{MM} - \Sigma_{MO} \Sigma_{OO}^{-1}
    \Sigma_{OM}$. All rows have one shape, whatever their gaps.
    """
    x, observed = rows.by_stretch, rows.observed[..., None, :]  # (..., stretches, 1, d)
    means = mixture.means[..., None, :, :]
    shape = *jnp.broadcast_shapes(observed.shape, means.shape), x.shape[-1]
    covariances = jnp.broadcast_to(mixture.covariances[..., None, :, :, :], shape)
    conditional, log_determinant = swept(covariances, jnp.broadcast_to(observed, shape[:-1]))
    delta = x[..., None, :, :] - means[..., None, :]  # (..., stretches, k, length, d)
    delta = jnp.where(observed[..., None, :], delta, 0.0)
    solved = jnp.einsum("...ij,...mj->...mi", conditional, delta)
    cells = observed.sum(-1).astype(x.dtype)
    constant = log_determinant + cells * jnp.log(2 * jnp.pi)
    joint = _log_weights(mixture)[..., None, :, None] - 0.5 * (
        constant[..., None] - (delta * solved).sum(-1)
    )
    gone = (~observed).astype(x.dtype)
    left = conditional * gone[..., :, None] * gone[..., None, :]
    return joint, jnp.where(observed[..., None, :], delta, solved), left


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
