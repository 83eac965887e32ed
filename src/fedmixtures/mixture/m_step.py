r"""The M-step: mixtures made of sums over rows, with a prior and with rows of others.

With masses $N_c$ of the rows, and masses $M_c$, means and covariances $C_c$ of these rows and the
rows of others (`PseudoData`) together:
$\pi_c \propto N_c + a_c$ and $\Sigma_c = (M_c C_c + \nu S_0)/(M_c + \nu) + \rho I$, where
$S_0 = \sum_c M_c C_c / \sum_c M_c$. Without prior $a$ and $\nu$ are zero.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.density import SMALLEST_SHARE, log_tables
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

EMPTY = 1e-8
"""A component with no more mass than this keeps its mean and covariance."""


class ShapePrior(eqx.Module):
    r"""Shrink every covariance to the average shape, and weights to each other.

    With mass $N_c$ and covariance $C_c$ of a component and $S_0 = \sum_c N_c C_c / \sum_c N_c$:
    $\Sigma_c = (N_c C_c + \nu S_0)/(N_c + \nu)$ and $\pi_c \propto N_c + a_0$, the maximum a
    posteriori step for the penalty $\nu \sum_c KL(N(0, S_0) \| N(0, \Sigma_c))$. It fades as rows
    grow and needs no tuning to the scale of the features. Shares of categories are pulled to their
    average by as many rows, as by a Dirichlet prior.
    """

    strength: float | Array = 8.0
    r"""$\nu$, in rows; inside a program also one for each node, (nodes, 1, 1, 1)."""
    extra_mass: float | Array = 1.0
    """$a_0$, in rows; inside a program also one for each component, (nodes, k)."""

    def __check_init__(self):
        for name in ("strength", "extra_mass"):
            if isinstance(getattr(self, name), (int, float)):
                _checks.positive(name, getattr(self, name), allow_zero=True)


class PseudoData(eqx.Module):
    """Rows of others that count beside a node's own: mass, mean and covariance by component."""

    mass: Any
    means: Any
    covariances: Any

    def added(self, theta: Mixture, s: Statistics) -> Statistics:
        """Statistics with these rows added, about the means of `theta`."""
        off = self.means - theta.means
        q = self.mass[..., None]
        varying = off[..., : theta.n_continuous]
        spread = self.covariances + varying[..., :, None] * varying[..., None, :]
        second = s.second + q[..., None] * spread
        return Statistics(s.log_likelihood, s.mass + self.mass, s.first + q * off, second)


def m_step(
    theta: Mixture,
    s: Statistics,
    reg_covar: float | Array = 1e-6,
    prior: ShapePrior | None = None,
    covariance_type: str = "full",
    pseudo_data: PseudoData | None = None,
    least_mass: float = EMPTY,
) -> Mixture:
    """New mixtures from statistics taken under `theta` with rows counted (not normalised).

    Weights are those of the rows (and the prior's extra mass) alone; pseudo-data count for means
    and covariances. Components of weight zero stay absent; one of no more than `least_mass` keeps
    its mean and covariance.
    """
    whole = s if pseudo_data is None else pseudo_data.added(theta, s)
    kept, means, covariances = component_moments(theta, whole, least_mass)
    mass = jnp.where(kept, whole.mass, 0.0)
    tied = covariance_type == "tied"  # one matrix for all is the average already
    covariances = TYPES[covariance_type].project(covariances, mass)
    if prior is not None and not tied:
        covariances = _shrunk(covariances, mass, prior.strength)
    if prior is not None and theta.is_mixed:
        g, strength = theta.n_continuous, jnp.asarray(prior.strength)
        strength = strength[..., 0] if strength.ndim else strength
        tables = _drawn_together(means[..., g:], mass, strength)
        means = jnp.concatenate([means[..., :g], tables], -1)
    eye = jnp.eye(theta.n_continuous, dtype=theta.means.dtype)
    covariances = covariances + reg_covar * eye[None, None]
    new = jnp.any(kept, -1, keepdims=True) if tied else kept
    return Mixture(
        _new_weights(theta, s.mass, 0.0 if prior is None else prior.extra_mass),
        means,
        jnp.where(new[..., None, None], covariances, theta.covariances),
    )


def component_moments(
    theta: Mixture, s: Statistics, least_mass: float = EMPTY, xp: Any = jnp
) -> tuple[Any, Any, Any]:
    """Which components have a mass above `least_mass`; means and covariances of what they explain.

    The others keep those of `theta`, under which the sums were taken.
    """
    kept = s.mass > least_mass
    mass = xp.where(kept, s.mass, 1.0)
    shift = s.first / mass[..., None]
    varying = shift[..., : s.second.shape[-1]]
    spread = s.second / mass[..., None, None] - varying[..., :, None] * varying[..., None, :]
    means = xp.where(kept[..., None], theta.means + shift, theta.means)
    return kept, means, xp.where(kept[..., None, None], spread, theta.covariances)


def _new_weights(theta: Mixture, mass: Array, extra: float | Array) -> jax.Array:
    """Shares of the mass among the components there are; those of `theta` if there is none."""
    mass = jnp.where(theta.weights > 0, jnp.maximum(mass, 0.0) + extra, 0.0)
    total = mass.sum(-1, keepdims=True)
    return jnp.where(total == 0, theta.weights, mass / jnp.where(total == 0, 1.0, total))


def _shrunk(
    covariances: Float[Array, "nodes k g g"], mass: Float[Array, "nodes k"], strength
) -> Float[Array, "nodes k g g"]:
    """Covariances pulled to their average, by `strength` rows' worth."""
    share = mass / jnp.maximum(mass.sum(-1, keepdims=True), EMPTY)
    average = jnp.einsum("nk,nkij->nij", share, covariances)[:, None]
    n = mass[..., None, None]
    return (n * covariances + strength * average) / (n + strength)


def _drawn_together(tables: Array, mass: Array, strength: float | Array) -> Array:
    """Shares of categories (nodes, k, columns) pulled to their average as covariances are."""
    share = mass / jnp.maximum(mass.sum(-1, keepdims=True), EMPTY)
    average = jnp.einsum("nk,nkj->nj", share, tables)[:, None]
    pulled = (mass[..., None] * tables + strength * average) / (mass[..., None] + strength)
    return jnp.where(mass[..., None] > 0, pulled, tables)


def shape_penalty(theta: Mixture, strength: PerNode) -> PerNode:
    r"""$\nu \sum_c KL(N(0, S_0) \| N(0, \Sigma_c))$ with the average covariance $S_0$.

    With categories also $\nu \sum_c KL(t_0 \| t_c)$ with the average shares $t_0$.
    """
    if theta.is_mixed:
        logs = log_tables(theta)
        average = jnp.einsum("nk,nkj->nj", theta.weights, theta.tables)[:, None]
        by_cell = average * (jnp.log(jnp.maximum(average, SMALLEST_SHARE)) - logs)
        apart = jnp.where(theta.weights > 0, by_cell.sum(-1), 0.0).sum(-1)
        return shape_penalty(theta.continuous, strength) + strength * apart
    average = jnp.einsum("nk,nkij->nij", theta.weights, theta.covariances)
    constant = theta.n_features + inverse_cholesky(average)[1]
    divergence = 0.5 * (against_shape(theta, average) - constant[:, None])
    return strength * jnp.where(theta.weights > 0, divergence, 0.0).sum(-1)


def against_shape(theta: Mixture, shape: Float[Array, "nodes d d"]) -> Float[Array, "nodes k"]:
    r"""$\mathrm{tr}(\Sigma_c^{-1} S_0) + \ln|\Sigma_c|$: twice a divergence, but for constants."""
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    white = jnp.einsum("nkij,njl->nkil", inverse, shape)
    return jnp.einsum("nkij,nkij->nk", white, inverse) + log_determinant
