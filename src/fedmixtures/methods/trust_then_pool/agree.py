r"""Phase 5: one order of components in a trusted group.

Every node carries a tag: (components, rows, trusted rows, a number drawn from its label), that of
the node whose mixture its own descends from. A node that sees a larger tag at a trusted neighbour
takes that mixture, adapts it to its own pool by a few EM steps, and keeps it with the tag, unless
its own rows speak against it. Largest tags spread one edge per round.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedmixtures._types import Array, PerNode, RowWeights
from fedmixtures.kernels.block_em import expectation_maximisation
from fedmixtures.methods.trust_then_pool.moments import like
from fedmixtures.methods.trust_then_pool.refit import Pool
from fedmixtures.methods.trust_then_pool.scores import log_densities, total_gain
from fedmixtures.methods.trust_then_pool.settings import FEW_STEPS, FitSettings
from fedmixtures.mixture.mixture import Mixture

Tags = Float[Array, "nodes t"]
Alone = Float[Array, "nodes m"]


def largest(
    tags: Float[Array, "nodes s t"], present: Bool[Array, "nodes s"]
) -> Int[Array, " nodes"]:
    """Slot of the largest tag, compared number by number from the left."""
    left = present
    for number in range(tags.shape[2]):
        value = jnp.where(left, tags[:, :, number], -jnp.inf)
        left = left & (value == value.max(-1, keepdims=True))
    return left.argmax(-1)


def exceeds(a: Tags, b: Tags) -> Bool[Array, " nodes"]:
    """Whether a comes after b, compared number by number from the left."""
    decided = jnp.zeros(len(a), bool)
    greater = jnp.zeros(len(a), bool)
    for number in range(a.shape[1]):
        greater = greater | (~decided & (a[:, number] > b[:, number]))
        decided = decided | (a[:, number] != b[:, number])
    return greater


def agree(
    theta: Mixture,
    tag: Tags,
    offered: Mixture,
    offered_tag: Tags,
    on_offer: Bool[Array, " nodes"],
    pool: Pool,
    held: Alone,
    prior_odds: float | Array,
    settings: FitSettings,
) -> tuple[Mixture, Tags]:
    """Take over what was offered where its tag is larger and the own rows allow it.

    `held` are the rows' log-densities under the node's own refit, out of fold. The sum of
    differences is a log Bayes factor; it must not fall below minus `prior_odds`.
    """
    better = on_offer & exceeds(offered_tag, tag)

    def look():
        start = _where(better, offered, theta)
        how = FEW_STEPS, 1e-7, settings.ridge, settings.prior
        adapted = expectation_maximisation(start, *pool, *how).theta
        m = held.shape[1]
        rows, counts = pool[0][:, :m], pool[1][:, :m]
        taken = better & acceptable(adapted, rows, counts, held, prior_odds)
        return _where(taken, adapted, theta), jnp.where(taken[:, None], offered_tag, tag)

    # Most rounds find every node of a block where it is to be.
    return jax.lax.cond(better.any(), look, lambda: (theta, tag))


def acceptable(
    theta: Mixture, rows: Array, counts: RowWeights, held: Alone, prior_odds: float | Array
) -> Bool[Array, " nodes"]:
    """Whether the own rows leave the mixture standing; one that is not finite never is."""
    gain: PerNode = total_gain(log_densities(theta, rows) - held, counts)
    return gain + prior_odds >= 0


def _where(chosen: Bool[Array, " nodes"], a: Mixture, b: Mixture) -> Mixture:
    return Mixture(
        *(jnp.where(like(chosen, x), x, y) for x, y in zip(a.parts, b.parts, strict=True))
    )
