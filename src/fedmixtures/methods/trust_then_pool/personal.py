"""The end, nothing is sent: keep what the own rows do not contradict, with personal weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.methods.trust_then_pool.agree import acceptable
from fedmixtures.methods.trust_then_pool.moments import like
from fedmixtures.methods.trust_then_pool.scores import log_joint
from fedmixtures.mixture.mixture import Mixture

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Rows that the pooled weights may count as."""
WEIGHT_STEPS = 15
WEIGHT_ODDS = 2.0
"""Nats of evidence a node needs to leave the group's mixture weights for its own."""


def safeguarded(
    choices: list[tuple[Mixture, Float[Array, "nodes m"]]],
    last: Mixture,
    rows: Rows,
    counts: RowWeights,
    prior_odds: float | Array,
) -> tuple[Mixture, PerNode]:
    """The first mixture whose rows' evidence against its alternative stays within the odds.

    Each choice comes with the out-of-fold log-densities of the alternative that stands behind it.
    Also says which was taken: 0 for the first choice, and so on.
    """
    theta, which = last, jnp.full(len(rows), float(len(choices)), rows.dtype)
    for number, (choice, alternative) in reversed(list(enumerate(choices))):
        stands = acceptable(choice, rows, counts, alternative, prior_odds)
        theta = Mixture(
            *(
                jnp.where(like(stands, a), a, b)
                for a, b in zip(choice.parts, theta.parts, strict=True)
            )
        )
        which = jnp.where(stands, float(number), which)
    return theta, which


def personal_weights(theta: Mixture, rows: Rows, counts: RowWeights) -> Mixture:
    r"""Mixture weights of the node's own rows, shrunk to the pooled ones.

    $\pi_i = (N_i + a \pi)/(m_i + a)$ at its fixed point. Of several strengths a the one under
    which a Dirichlet distribution with parameters $a\pi$ explains the counts $N_i$ best is taken,
    and none unless its log Bayes factor against $\pi$ itself exceeds `WEIGHT_ODDS` nats.
    """
    joint = log_joint(theta, rows)
    density = jnp.exp(joint - joint.max(1)[:, None, :])  # weight times density, up to a factor
    present = theta.weights > 0
    density = density / jnp.where(present, theta.weights, 1.0)[:, :, None]
    total = counts.sum(-1)

    def one(strength):
        def mass_under(weights):
            share = density * weights[:, :, None]
            share = share / share.sum(1, keepdims=True)
            return (share * counts[:, None, :]).sum(-1)

        def step(_, weights):
            mass = mass_under(weights)
            return (mass + strength * theta.weights) / (total[:, None] + strength)

        weights = jax.lax.fori_loop(0, WEIGHT_STEPS, step, theta.weights)
        return weights, log_bayes_factor(mass_under(weights), theta.weights, strength)

    weights, gains = jax.lax.map(one, jnp.asarray(STRENGTHS, rows.dtype))
    best = gains.argmax(0)
    nodes = jnp.arange(len(best))
    evident = gains[best, nodes] > WEIGHT_ODDS
    chosen = jnp.where(evident[:, None], weights[best, nodes], theta.weights)
    return Mixture(chosen / chosen.sum(-1, keepdims=True), theta.means, theta.covariances)


def log_bayes_factor(
    mass: Float[Array, "nodes k"], weights: Float[Array, "nodes k"], strength: float | Array
) -> PerNode:
    r"""Counts under weights drawn from Dirichlet($a\pi$), against counts under $\pi$ itself.

    $\sum_c [\ln\Gamma(N_c + a\pi_c) - \ln\Gamma(a\pi_c) - N_c \ln\pi_c]
    - \ln\Gamma(m + a) + \ln\Gamma(a)$
    """
    present = weights > 0
    pseudo = jnp.where(present, strength * weights, 1.0)
    mass = jnp.where(present, mass, 0.0)
    per_component = gammaln(mass + pseudo) - gammaln(pseudo)
    per_component = per_component - mass * jnp.log(jnp.where(present, weights, 1.0))
    strength = jnp.asarray(strength, mass.dtype)
    return per_component.sum(-1) - gammaln(mass.sum(-1) + strength) + gammaln(strength)
