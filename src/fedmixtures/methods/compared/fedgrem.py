r"""FedGrEM: mixtures of all nodes shrunk to a common centre per component (Tian et al., 2024).

A round at node i, with responsibilities $g_{irc}$ under its own mixture:

$$\tilde\mu_{ic} = \mu_{ic} + \frac{\eta}{w^0_{ic}} \frac1{m_i} \sum_r g_{irc} (x_{ir} - \mu_{ic}),
  \quad \tilde\Sigma_{ic} = \Sigma_{ic} + \frac{\eta}{w^0_{ic}} \frac1{m_i}
  \sum_r g_{irc} [(x_{ir} - \mu_{ic})(x_{ir} - \mu_{ic})^\top - \Sigma_{ic}],$$

a gradient step that would be an EM step for $\eta/w^0 = 1/\pi$. The hub then minimises, for means
and covariances (Frobenius norm) of every component apart, over a centre and deviations,

$$\sum_i m_i \Big[ \frac12 \|\tilde\mu_{ic} - \bar\mu_c - \delta_{ic}\|^2
  + \frac{\lambda}{\sqrt{m_i}} \|\delta_{ic}\| \Big],
  \quad \mu_{ic} \leftarrow \bar\mu_c + \delta_{ic},$$

so that deviations shorter than $\lambda/\sqrt{m_i}$ vanish, while a node far away keeps its own
model, shortened by that much. $\lambda \leftarrow \kappa\lambda + C_\lambda\sqrt{d + \ln n}$ in
every round, from $\lambda = 1$.

The published code is for spherical unit covariances, where $\Sigma$ has no step; the covariance
part is an extension, as the paper that compares the method needed one too.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode, Weights
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.methods.base import Participants, Prepared
from fedmixtures.methods.compared.pooling import (
    aligned_start,
    check_prior,
    clustered_start,
    weights_of,
)
from fedmixtures.methods.programs import HubProgram, Info, NodeRows, squared_distance
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.feasible import project_covariances
from fedmixtures.mixture.linear import lower_triangle, symmetric
from fedmixtures.mixture.m_step import EMPTY, ShapePrior
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

SMALLEST_START_WEIGHT = 0.02  # steps are divided by the starting weight: a tiny one would overshoot
SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-3, 1e30


class Shrunk(eqx.Module):
    """State of a node."""

    theta: Mixture
    start_weights: Weights


class FedGrEM(HubProgram):
    """Gradient EM at every node, group shrinkage to a common centre at the hub.

    Weights stay at their nodes. The hub sees every node's means and covariances. Components are
    given one numbering at the start, by the hub, and keep it.

    Parameters
    ----------
    eta
        Step, relative to the EM step at the starting weights. Above 0.5 it may overshoot once a
        weight grows (the reference code has 0.95, for known covariances).
    C_lambda, kappa
        How strongly models are drawn to the centre. The paper chooses `eta` and `C_lambda` by
        validation likelihood on homogeneous nodes; ``python -m reproduction alpha-grid`` prints
        that grid. It favours eta = 0.1, and is flat from C_lambda = 1 on, so that the default is
        the least shrinkage among equals and another start may favour a larger one. On nodes in
        blocks the outcome is not flat: look at both.
    init
        ``"local"``: the nodes' own starts, numbered alike (reference). ``"shared"``: one start for
        all, from the hub's k-means of all local centres, as in `FedEM`.
    inner_iterations
        Refinements of centre and deviations per round; the reference code makes 1. A refinement
        moves the centre by at most the shrinkage, so that 1 is not enough to free it from a node
        very far away.
    n_orders
        Random orders tried to find the common numbering.
    prior
        Draw covariances to a common shape as well; None is plain maximum likelihood.
    """

    supports_missing: ClassVar[bool] = True
    needs_equal_components: ClassVar[bool] = True

    eta: float = 0.1
    C_lambda: float = 1.0
    kappa: float = 0.1
    init: Literal["local", "shared"] = "local"
    inner_iterations: int = 1
    n_orders: int = 50
    prior: ShapePrior | None = None

    def __check_init__(self):
        _checks.positive("eta", self.eta)
        _checks.positive("C_lambda", self.C_lambda, allow_zero=True)
        _checks.positive("kappa", self.kappa, allow_zero=True)
        if self.kappa >= 1:
            raise ValueError(f"`kappa` is {self.kappa:g}. Give a number below 1.")
        _checks.one_of("init", self.init, ("local", "shared"))
        _checks.whole("inner_iterations", self.inner_iterations)
        _checks.whole("n_orders", self.n_orders)
        check_prior(self.prior)

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """Nodes send their start (and their number of rows); the hub sends it back, numbered."""
        n, k, d = theta.means.shape
        if self.init == "shared":
            one = clustered_start(theta, participants)
            begun = jax.tree.map(lambda new, old: np.broadcast_to(new, old.shape), one, theta)
            sent = received = k * (d + d * d)
        else:
            begun = aligned_start(theta, participants, self.n_orders)
            sent, received = k * d, k  # centres there, the new numbers of components back
        growth = np.sqrt(d + np.log(n))
        return Prepared(begun, None, (np.ones(()), growth), sent + 1, received)

    def start(self, theta: Mixture, shared: Any, data: NodeRows) -> Shrunk:
        """The common numbering is the only thing agreed upon."""
        return Shrunk(theta, jnp.maximum(theta.weights, SMALLEST_START_WEIGHT))

    def upload(self, state: Shrunk, data: NodeRows) -> tuple[tuple, tuple]:
        """The gradient step; means and covariances leave, weights stay."""
        theta = state.theta
        s = statistics(theta, data.rows, data.row_weights)
        stepped = self._gradient_step(state, s, data)
        weights = weights_of(self._counted(s.mass, data))
        return stepped, (stepped, weights, -s.log_likelihood)

    def hub(self, messages: tuple, rows: PerNode, hub_state: tuple) -> tuple[tuple, tuple]:
        """The common centres and how strongly to shrink; nodes work out their deviations."""
        strength, growth = hub_state
        strength = self.kappa * strength + self.C_lambda * growth
        reach = jnp.where(rows > 0, strength / jnp.sqrt(jnp.maximum(rows, 1e-30)), 0.0)
        centres = tuple(self._centre(part, rows, reach) for part in messages)
        return (centres, strength), (strength, growth)

    def step(self, state: Shrunk, kept: tuple, reply: tuple, data: NodeRows) -> tuple[Shrunk, Info]:
        """Shrink the own step to the centres; covariances stay positive definite."""
        stepped, weights, loss = kept
        centres, strength = reply
        rows = jnp.where(data.total_weight > 0, data.total_weight, 1.0)
        means, covariances = (
            centre[None] + shrunk(part - centre[None], strength / jnp.sqrt(rows))
            for part, centre in zip(stepped, centres, strict=True)
        )
        covariances = symmetric(lower_triangle(covariances))
        covariances = project_covariances(covariances, SMALLEST_VARIANCE, LARGEST_VARIANCE)
        theta = Mixture(weights, means, covariances)
        after = Shrunk(theta, state.start_weights)
        return after, Info.without_pull(loss, squared_distance(state.theta, theta))

    def result(self, state: Shrunk, data: NodeRows) -> Mixture:
        """The node's own mixture."""
        return state.theta

    def remedy(self, weighted_degree: float) -> str:
        """Name the step."""
        return f"Lower eta (it is {self.eta:g}); steps above 0.5 may overshoot."

    def _gradient_step(self, state: Shrunk, s: Statistics, data: NodeRows) -> tuple[Array, Array]:
        """Means and covariances after the step; a component without mass takes none."""
        theta, w0 = state.theta, state.start_weights
        used = s.mass * data.total_weight[:, None] > EMPTY
        toward = s.second - s.mass[..., None, None] * theta.covariances
        share = w0
        if self.prior is not None:
            rows = jnp.where(data.total_weight > 0, data.total_weight, 1.0)
            pull = (self.prior.strength / rows)[:, None]
            shape = s.second.sum(1) / jnp.maximum(s.mass.sum(1), EMPTY)[:, None, None]
            toward = toward + pull[..., None, None] * (shape[:, None] - theta.covariances)
            share = w0 + pull  # the prior's rows count in the length of the step too
        rate = lambda share: jnp.where(used, self.eta / share, 0.0)
        means = theta.means + rate(w0)[..., None] * s.first
        covariances = theta.covariances + rate(share)[..., None, None] * toward
        return means, TYPES[self.covariance_type].project(covariances, s.mass)

    def _counted(self, mass: Array, data: NodeRows) -> Array:
        """Masses per row, with the prior's extra rows."""
        if self.prior is None:
            return mass
        rows = jnp.where(data.total_weight > 0, data.total_weight, 1.0)
        return mass + (self.prior.extra_mass / rows)[:, None]

    def _centre(self, parts: Array, rows: PerNode, reach: PerNode) -> Array:
        """The common centre of every component: mean of what the deviations leave."""
        share = rows / rows.sum()
        mean = lambda values: jnp.einsum("n,n...->...", share, values)
        refined = lambda _, centre: mean(parts - shrunk(parts - centre[None], reach))
        return jax.lax.fori_loop(0, self.inner_iterations, refined, mean(parts))


def shrunk(deviations: Array, reach: PerNode) -> Array:
    """Deviations (nodes, k, ...) shortened by `reach`; those shorter than that become zero."""
    axes = tuple(range(2, deviations.ndim))
    length = jnp.sqrt(jnp.square(deviations).sum(axes, keepdims=True))
    reach = reach.reshape(-1, *(1,) * (deviations.ndim - 1))
    factor = 1 - reach / jnp.where(length > 0, length, 1.0)
    return jnp.where(length > reach, factor, 0.0) * deviations
