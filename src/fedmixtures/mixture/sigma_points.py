"""A mixture as a few weighted points with its exact first and second moments."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array
from fedmixtures.mixture.linear import cholesky
from fedmixtures.mixture.mixture import Mixture

KAPPA = 1.0
"""Weight of the centre against the outer points; one keeps all weights positive."""


def sigma_points(
    mixture: Mixture, kappa: float = KAPPA
) -> tuple[Float[Array, "*nodes k p d"], Float[Array, "*nodes k p"]]:
    r"""$2d+1$ points per component, and weights that sum to one over the mixture.

    With $\Sigma_c = LL^\top$: $\mu_c$ and $\mu_c \pm \sqrt{d+\kappa}\, L_i$, weighing
    $\pi_c \kappa/(d+\kappa)$ and $\pi_c / (2(d+\kappa))$. Mean and covariance of every component
    are those of its points, so a quadratic is averaged over the mixture without error.
    """
    d = mixture.n_features
    steps = jnp.concatenate([jnp.zeros((1, d)), jnp.eye(d), -jnp.eye(d)]) * jnp.sqrt(d + kappa)
    share = jnp.full(2 * d + 1, 0.5 / (d + kappa)).at[0].set(kappa / (d + kappa))
    dtype = mixture.means.dtype
    factor = cholesky(mixture.covariances)
    offsets = jnp.einsum("...kij,pj->...kpi", factor, steps.astype(dtype))
    one = (1,) * mixture.weights.ndim
    weights = mixture.weights[..., None] * share.astype(dtype).reshape(*one, -1)
    return mixture.means[..., None, :] + offsets, weights
