"""The M-step of expectation maximisation, for all nodes of a block."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

EMPTY = 1e-8  # a component with less mass than this keeps its mean and covariance


class ShapePrior(eqx.Module):
    r"""Shrink every covariance to the average shape, and weights to each other.

    With mass $N_c$ and covariance $C_c$ of a component and $S_0 = \sum_c N_c C_c / \sum_c N_c$:
    $\Sigma_c = (N_c C_c + \nu S_0)/(N_c + \nu)$ and $\pi_c \propto N_c + a_0$, the maximum a
    posteriori step for the penalty $\nu \sum_c KL(N(0, S_0) \| N(0, \Sigma_c))$. It fades as rows
    grow and needs no tuning to the scale of the features.
    """

    strength: float | Array = 8.0
    r"""$\nu$, in rows; inside a program also one for each node, (nodes, 1, 1, 1)."""
    extra_mass: float = 1.0  # $a_0$, in rows

    def __check_init__(self):
        for name in ("strength", "extra_mass"):
            if isinstance(getattr(self, name), (int, float)):
                _checks.positive(name, getattr(self, name), allow_zero=True)


def m_step(
    theta: Mixture,
    s: Statistics,
    ridge: float | Array = 1e-6,
    prior: ShapePrior | None = None,
    covariance_type: str = "full",
) -> Mixture:
    """New mixtures from statistics taken under `theta` with rows counted (not normalised)."""
    present = theta.weights > 0
    kept = s.mass > EMPTY
    mass = jnp.where(kept, s.mass, 1.0)
    shift = s.first / mass[..., None]
    covariances = s.second / mass[..., None, None] - shift[..., :, None] * shift[..., None, :]
    covariances = TYPES[covariance_type].project(covariances, jnp.where(kept, s.mass, 0.0))
    masses, tied = s.mass, covariance_type == "tied"
    if prior is not None:
        masses = s.mass + prior.extra_mass
        if not tied:  # one matrix for all is the average already
            covariances = _shrunk(covariances, s.mass, kept, prior.strength)
    eye = jnp.eye(theta.n_features, dtype=theta.means.dtype)
    covariances = covariances + ridge * eye[None, None]
    masses = jnp.where(present, masses, 0.0)
    total = masses.sum(-1, keepdims=True)
    new = jnp.any(kept, -1, keepdims=True) if tied else kept
    return Mixture(
        jnp.where(total > 0, masses / jnp.where(total > 0, total, 1.0), theta.weights),
        jnp.where(kept[..., None], theta.means + shift, theta.means),
        jnp.where(new[..., None, None], covariances, theta.covariances),
    )


def _shrunk(
    covariances: Float[Array, "nodes k d d"], mass: Float[Array, "nodes k"], kept, strength
) -> Float[Array, "nodes k d d"]:
    """Covariances pulled to their average, by `strength` rows' worth."""
    share = jnp.where(kept, mass, 0.0)
    share = share / jnp.maximum(share.sum(-1, keepdims=True), EMPTY)
    average = jnp.einsum("nk,nkij->nij", share, covariances)[:, None]
    n = mass[..., None, None]
    return (n * covariances + strength * average) / (n + strength)
