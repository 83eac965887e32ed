"""The end, nothing is sent: keep what the own rows do not contradict, with personal weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.methods.trust_then_pool.agree import acceptable
from fedmixtures.methods.trust_then_pool.moments import like
from fedmixtures.methods.trust_then_pool.scores import log_joint, total_gain
from fedmixtures.mixture.mixture import Mixture

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Rows that the pooled weights may count as."""
WEIGHT_STEPS = 15


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


def personal_weights(
    theta: Mixture, rows: Rows, counts: RowWeights, prior_odds: float | Array
) -> Mixture:
    r"""Mixture weights of the node's own rows, shrunk to the pooled ones.

    $\pi_i = (N_i + a \pi)/(m_i + a)$ at its fixed point. The strength a with the largest
    leave-one-out gain is taken, and none unless that gain exceeds `prior_odds` nats.
    """
    joint = log_joint(theta, rows)
    top = joint.max(1)
    ratio = jnp.exp(joint - top[:, None, :])  # weight times density, up to a factor per row
    present = theta.weights > 0
    density = ratio / jnp.where(present, theta.weights, 1.0)[:, :, None]
    base = jnp.log(ratio.sum(1))
    total = jnp.maximum(counts.sum(-1), 1e-9)[:, None]

    def one(strength):
        def step(_, weights):
            share = density * weights[:, :, None]
            share = share / share.sum(1, keepdims=True)
            mass = (share * counts[:, None, :]).sum(-1)
            return (mass + strength * theta.weights) / (total + strength)

        weights = jax.lax.fori_loop(0, WEIGHT_STEPS, step, theta.weights)
        share = density * weights[:, :, None]
        share = share / share.sum(1, keepdims=True)
        mass = (share * counts[:, None, :]).sum(-1)[:, :, None]
        others = jnp.maximum(mass - share, 0.0) + strength * theta.weights[:, :, None]
        left_out = others / jnp.maximum(total - 1 + strength, strength)[:, :, None]
        gain = jnp.log((density * left_out).sum(1)) - base
        return weights, total_gain(gain, counts)

    weights, gains = jax.lax.map(one, jnp.asarray(STRENGTHS, rows.dtype))
    best = gains.argmax(0)
    nodes = jnp.arange(len(best))
    chosen = jnp.where(
        (gains[best, nodes] > prior_odds)[:, None], weights[best, nodes], theta.weights
    )
    return Mixture(chosen / chosen.sum(-1, keepdims=True), theta.means, theta.covariances)
