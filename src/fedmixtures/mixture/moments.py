r"""Sums over rows that stand for all of them (E-step).

One pass over the rows gives the likelihood, its gradient (eq. 1 and, on drawn rows, eq. 4) and
what the M-step needs (`m_step`). First and second moments are taken about each component's own
mean, never as $E[xx^\top] - \mu\mu^\top$, so that means far from the origin lose no digits. These
are the definitions; `kernels.dispatch` has the same for few features several times as fast.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.mixture.density import IncompleteRows, log_joint, observed_terms
from fedmixtures.mixture.linear import cholesky, inverse_cholesky
from fedmixtures.mixture.mixture import Mixture

KAPPA = 1.0  # weight of the centre against the outer points; one keeps all weights positive


class Statistics(eqx.Module):
    r"""Weighted sums over rows, with responsibilities $r_c(x)$ and $\delta_c = x - \mu_c$."""

    log_likelihood: PerNode  # $\sum_x w \ln p(x)$
    mass: Float[Array, "nodes k"]  # $\sum_x w\, r_c$
    first: Float[Array, "nodes k d"]  # $\sum_x w\, r_c\, \delta_c$
    second: Float[Array, "nodes k g g"]  # $\sum_x w\, r_c\, \delta_c \delta_c^\top$


def plain_statistics(
    theta: Mixture, rows: Rows, row_weights: RowWeights, factor: tuple[Array, Array] | None = None
) -> Statistics:
    """E-step of every node of a block on its own weighted rows; `factor` as in `log_joint`."""
    delta = rows[:, None, :, :] - theta.means[:, :, None, :]  # (nodes, k, m, d)
    varying = delta[..., : theta.n_continuous]  # first moments are all there is to categories
    joint = jnp.swapaxes(log_joint(theta, rows, factor), 1, 2)
    log_density = jax.nn.logsumexp(joint, axis=1)
    share = jnp.exp(joint - log_density[:, None, :]) * row_weights[:, None, :]
    return Statistics(
        (row_weights * log_density).sum(-1),
        share.sum(-1),
        jnp.einsum("nkm,nkmi->nki", share, delta),
        jnp.einsum("nkmi,nkmj->nkij", share[..., None] * varying, varying),
    )


def observed_statistics(
    theta: Mixture, rows: IncompleteRows, row_weights: RowWeights
) -> Statistics:
    r"""The E-step where cells are missing at random: expectations given what was observed.

    `plain_gradient` of these sums is the gradient of the likelihood of what was observed.
    """
    joint, expected, left = observed_terms(theta, rows)  # by segment, then component
    log_density = jax.nn.logsumexp(joint, axis=2)
    weights = row_weights.reshape(log_density.shape)
    share = jnp.exp(joint - log_density[:, :, None]) * weights[:, :, None]
    varying = expected[..., : theta.n_continuous]
    second = jnp.einsum("ntkmi,ntkmj->nkij", share[..., None] * varying, varying)
    return Statistics(
        (weights * log_density).sum((1, 2)),
        share.sum((1, 3)),
        jnp.einsum("ntkm,ntkmi->nki", share, expected),
        second + jnp.einsum("ntk,ntkij->nkij", share.sum(3), left),
    )


def column_moments(
    rows: Float[np.ndarray, "m d"], row_weights: Float[np.ndarray, " m"] | None = None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Mean and variance of every column, of the cells that are there; zero where none is."""
    weights = np.ones(len(rows)) if row_weights is None else row_weights
    share = np.where(np.isnan(rows), 0.0, weights[:, None])
    share = share / np.maximum(share.sum(0), np.finfo(np.float64).tiny)
    rows = np.nan_to_num(rows)
    centre = (share * rows).sum(0)
    return centre, (share * np.square(rows - centre)).sum(0)


def plain_gradient(theta: Mixture, s: Statistics) -> Mixture:
    r"""Gradient of the negative log-likelihood, from statistics taken under `theta`.

    With $P_c = \Sigma_c^{-1}$, mass $N_c$, first and second moments $a_c, B_c$:
    $-\partial\pi_c = N_c/\pi_c$, $-\partial\mu_c = P_c a_c$,
    $-\partial\Sigma_c = \frac12 (P_c B_c P_c - N_c P_c)$, the plain symmetric matrix gradient.
    """
    inverse, _ = inverse_cholesky(theta.covariances)
    precision = jnp.einsum("nkpi,nkpj->nkij", inverse, inverse)
    sandwich = jnp.einsum("nkia,nkab,nkbj->nkij", precision, s.second, precision)
    return Mixture(
        weight_gradient(theta, s),
        -jnp.einsum("nkij,nkj->nki", precision, s.first),
        0.5 * (s.mass[..., None, None] * precision - sandwich),
    )


def weight_gradient(theta: Mixture, s: Statistics) -> Float[Array, "nodes k"]:
    """The part of `plain_gradient` for the weights; zero where a component is absent."""
    present = theta.weights > 0
    return jnp.where(present, -s.mass / jnp.where(present, theta.weights, 1.0), 0.0)


def sigma_points(
    mixture: Mixture, kappa: float = KAPPA
) -> tuple[Float[Array, "*nodes k p d"], Float[Array, "*nodes k p"]]:
    r"""$2d+1$ points per component, and weights that sum to one over the mixture.

    With $\Sigma_c = LL^\top$: $\mu_c$ and $\mu_c \pm \sqrt{d+\kappa}\, L_i$, weighing
    $\pi_c \kappa/(d+\kappa)$ and $\pi_c / (2(d+\kappa))$. Mean and covariance of every component
    are those of its points, so a quadratic is averaged over the mixture without error.
    """
    if mixture.is_mixed:  # categories have no spread: their shares stand in every point
        points, weights = sigma_points(mixture.continuous, kappa)
        shares = jnp.asarray(mixture.tables)[..., None, :]
        shares = jnp.broadcast_to(shares, (*points.shape[:-1], shares.shape[-1]))
        return jnp.concatenate([points, shares], -1), weights
    d = mixture.n_features
    steps = jnp.concatenate([jnp.zeros((1, d)), jnp.eye(d), -jnp.eye(d)]) * jnp.sqrt(d + kappa)
    share = jnp.full(2 * d + 1, 0.5 / (d + kappa)).at[0].set(kappa / (d + kappa))
    dtype = mixture.means.dtype
    factor = cholesky(mixture.covariances)
    offsets = jnp.einsum("...kij,pj->...kpi", factor, steps.astype(dtype))
    one = (1,) * mixture.weights.ndim
    weights = mixture.weights[..., None] * share.astype(dtype).reshape(*one, -1)
    return mixture.means[..., None, :] + offsets, weights


AT_ONCE = 1 << 14  # stacks of covariances in one call of a solver
THINNEST = 1e-3
"""The least eigenvalue of a covariance that `project_psd` makes, as a share of their mean."""


def project_psd(s: Statistics, few: float = np.inf, least: float = 0.0) -> Statistics:
    """Sums as rows could have them, of components of a mass above `least` and below `few`.

    Totals that were rounded, and what is left of them without a part, can have a covariance that no
    rows have: its eigenvalues are raised to a share of their mean.
    """
    if isinstance(s.mass, jax.Array):  # all of them: every other number would be a new program
        if not _some_thin(s.mass, least, few):
            return s
        second = _raised_by_jax(s.mass, s.first, s.second, least, few)
    else:
        thin = (s.mass > least) & (s.mass < few)
        if not thin.any():
            return s
        second = np.array(s.second)
        second[thin] = _raised(s.mass[thin], s.first[thin], s.second[thin])
    return eqx.tree_at(lambda sums: sums.second, s, second)


def _raised(mass: Any, first: Any, second: Any, xp: Any = np) -> Any:
    """Second moments (..., d, d) of covariances without eigenvalues that are too small."""
    mass = mass[..., None, None]
    shift = (first / mass[..., 0])[..., : second.shape[-1]]
    square = shift[..., :, None] * shift[..., None, :]
    values, vectors = xp.linalg.eigh(xp.nan_to_num(second / mass - square))
    least = THINNEST * xp.maximum(abs(values).mean(-1, keepdims=True), 1e-6)
    raised = (vectors * xp.maximum(values, least)[..., None, :]) @ xp.swapaxes(vectors, -1, -2)
    wrong = (values < least).any(-1)[..., None, None]
    return xp.where(wrong, mass * (raised + square), second)


@jax.jit
def _some_thin(mass, least, few) -> jax.Array:
    return ((mass > least) & (mass < few)).any()


@jax.jit
def _raised_by_jax(mass, first, second, least, few) -> jax.Array:
    """Some at a time: the solver of a GPU takes no batch of millions."""
    one = lambda sums: _raised(*sums, xp=jnp)
    raised = jax.lax.map(one, (mass, first, second), batch_size=AT_ONCE)
    return jnp.where(((mass > least) & (mass < few))[..., None, None], raised, second)
