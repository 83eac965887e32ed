r"""Local steps of EM's kind for a coupled node: EM's own matrix times the gradient, never uphill.

For the local loss alone EM is a gradient step with the matrix of its M-step (Xu and Jordan, 1996):
with masses $N_c$ of rows that sum to one and gradient g,

$$\pi \leftarrow \pi - \pi (g_\pi - \langle\pi, g_\pi\rangle), \quad
  \mu_c \leftarrow \mu_c - \Sigma_c\, g_{\mu_c} / N_c, \quad
  \Sigma_c \leftarrow \Sigma_c - 2\, \Sigma_c\, g_{\Sigma_c} \Sigma_c / N_c.$$

A step of length one is `mixture.m_step` but for the place that covariances are taken about; it has
no units: thin components move by their own width, where a plain gradient step of fixed length
throws them far away. With neighbours g is the gradient of the whole objective of line 5, and
the step is halved until that falls.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode
from fedmixtures.kernels.dispatch import nll_of_statistics, statistics
from fedmixtures.methods.programs import NodeRows
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.m_step import EMPTY, ShapePrior, against_shape
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

HALVINGS = 20  # a node that finds no lower value within so many halvings stays where it is
ROUNDING = 1e-10  # values this close are equal, relative to their size


class Pseudorows(eqx.Module):
    r"""A `ShapePrior` as rows that a node adds to its own, in units of its rows.

    $\nu$ rows of the average covariance $S_0$ for every component and $a_0$ for its weight. $S_0$
    is that of the state a step begins with, and stands still during the step.
    """

    shape: Float[Array, "nodes d d"]
    strength: PerNode
    extra_mass: PerNode

    @staticmethod
    def of(s: Statistics, data: NodeRows, prior: ShapePrior) -> Pseudorows:
        """The average covariance within components, and strengths per row of the node."""
        mass = jnp.maximum(s.mass, EMPTY)[..., None, None]
        outer = s.first[..., :, None] * s.first[..., None, :]
        total = jnp.maximum(s.mass.sum(-1), EMPTY)[:, None, None]
        rows = jnp.where(data.total_weight > 0, data.total_weight, 1.0)
        shape = (s.second - outer / mass).sum(1) / total
        return Pseudorows(shape, prior.strength / rows, prior.extra_mass / rows)

    def loss(self, theta: Mixture) -> tuple[PerNode, Mixture]:
        r"""$\nu \sum_c KL(N(0, S_0) \| N(0, \Sigma_c)) - a_0 \sum_c \ln \pi_c$ and its gradient.

        Without the constants; absent components count nothing.
        """
        present = theta.weights > 0
        inverse, _ = inverse_cholesky(theta.covariances)
        nu, extra = self.strength[:, None], self.extra_mass[:, None]
        weights = jnp.where(present, theta.weights, 1.0)
        each = 0.5 * nu * against_shape(theta, self.shape) - extra * jnp.log(weights)
        precision = jnp.einsum("ncpi,ncpj->ncij", inverse, inverse)
        sandwich = jnp.einsum("ncij,njk,nckl->ncil", precision, self.shape, precision)
        gradient = 0.5 * nu[..., None, None] * (precision - sandwich)
        there = jnp.where(present, 1.0, 0.0)
        return (each * there).sum(-1), Mixture(
            -extra * there / weights, jnp.zeros_like(theta.means), gradient * there[..., None, None]
        )


def loss_of_statistics(
    theta: Mixture, s: Statistics, prior: Pseudorows | None
) -> tuple[PerNode, Mixture]:
    """Eq. (1), with a prior the loss of the maximum a posteriori, and its gradient."""
    loss, gradient = nll_of_statistics(theta, s)
    if prior is None:
        return loss, gradient
    penalty, pull = prior.loss(theta)
    return loss + penalty, jax.tree.map(jnp.add, gradient, pull)


def local_loss(theta: Mixture, data: NodeRows, prior: Pseudorows | None) -> tuple[PerNode, Mixture]:
    """Local loss and its gradient, from the rows of the nodes."""
    return loss_of_statistics(theta, statistics(theta, data.rows, data.row_weights), prior)


def em_direction(
    theta: Mixture,
    gradient: Mixture,
    s: Statistics,
    prior: Pseudorows | None,
    covariance_type: str = "full",
) -> Mixture:
    """What to subtract for a step of length one: EM itself where nothing but rows pulls.

    As in an M-step, covariances that are tied move together, by mass.
    """
    nothing = jnp.zeros(len(theta.weights), theta.means.dtype)
    strength = nothing if prior is None else prior.strength
    extra = nothing if prior is None else prior.extra_mass
    present = jnp.where(theta.weights > 0, 1.0, 0.0)
    whole = 1 + (extra[:, None] * present).sum(-1, keepdims=True)
    mean = (theta.weights * gradient.weights).sum(-1, keepdims=True)
    mass = jnp.maximum(s.mass, EMPTY)
    cov = theta.covariances
    scale = mass + strength[:, None]
    change = jnp.einsum("ncij,ncjk,nckl->ncil", cov, gradient.covariances, cov)
    change = 2 * change / scale[..., None, None]
    return Mixture(
        theta.weights * (gradient.weights - mean) / whole,
        jnp.einsum("ncij,ncj->nci", cov, gradient.means) / mass[..., None],
        TYPES[covariance_type].project(change, scale * present),
    )


def descend(
    theta: Mixture,
    direction: Mixture,
    value: PerNode,
    rate: PerNode,
    objective: Callable[[Mixture], PerNode],
    project: Callable[[Mixture], Mixture],
) -> tuple[Mixture, PerNode]:
    """The first point along the direction that is not above `value`, halving every node's step.

    Returns the new mixtures and the step each node took; it may try twice that next time.
    """
    per = lambda flags, part: flags.reshape(-1, *(1,) * (part.ndim - 1))
    limit = value + ROUNDING * (1 + jnp.abs(value))

    def at(rate: PerNode) -> Mixture:
        return project(jax.tree.map(lambda x, g: x - per(rate, x) * g, theta, direction))

    def halve(carry):
        rate, _, _, t = carry
        found = at(rate)
        fine = objective(found) <= limit  # false where it is not a number
        return jnp.where(fine, rate, rate / 2), fine, found, t + 1

    def unfinished(carry):
        _, fine, _, t = carry
        return (t < HALVINGS) & ~fine.all()

    begin = (rate, jnp.zeros(len(rate), bool), theta, jnp.int32(0))
    rate, fine, found, _ = jax.lax.while_loop(unfinished, halve, begin)
    chosen = jax.tree.map(lambda new, old: jnp.where(per(fine, new), new, old), found, theta)
    return chosen, rate
