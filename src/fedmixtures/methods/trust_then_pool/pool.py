r"""Phase 6: exact pooled EM over a trusted group, by flows along its edges.

Node i holds $s_i = \tilde S_i + \sum_j F_{ij}$ with $F_{ij} = -F_{ji}$, so that the sum of $s_i$
over a group is the sum of its members' own statistics: every row counts once. In each round, from
the $s_i$ and $s_j$ in the two messages of that round,

$$F_{ij} \leftarrow F_{ij} + \beta (F_{ij} - F^{old}_{ij})
  + \frac{s_j - s_i}{1 + \max(\deg_i, \deg_j)}, \qquad
  \theta_i = M\Big(\tilde S_i + \sum_j F_{ij}\Big), \qquad
  \tilde S_i \leftarrow (1-\gamma) \tilde S_i + \gamma S_i(\theta_i).$$

At rest all $s_i$ of a group are equal and $\theta = M(\sum_j S_j(\theta))$: a stationary point of
the group's pooled likelihood (each node scales the prior by the rows it trusts).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from fedmixtures._types import Array, PerNode, PerSlot
from fedmixtures.methods.trust_then_pool.moments import Moments, like

MOMENTUM = 0.5
"""Beta: reaches agreement in about the square root of the rounds on stars and rings."""
FRESHNESS = 0.3
"""Gamma: the E-step must not outrun the flows, or nodes far apart oscillate."""


def pushed(
    flow: Moments,
    before: Moments,
    own: Moments,
    received: Moments,
    open_: Bool[Array, "nodes s"],
    degree: PerNode,
    degrees: PerSlot,
) -> Moments:
    """The next flows into every node; a closed edge carries nothing, at either end."""
    share = jnp.where(open_, 1.0 / (1.0 + jnp.maximum(degree[:, None], degrees)), 0.0)

    def one(f, old, mine, theirs):
        new = f + MOMENTUM * (f - old) + like(share, theirs) * (theirs - mine[:, None])
        return jnp.where(like(open_, new), new, 0.0)

    return jax.tree.map(one, flow, before, own, received)


def pooled(own: Moments, flow: Moments) -> Moments:
    r"""$s_i = \tilde S_i + \sum_j F_{ij}$."""
    return jax.tree.map(lambda s, f: s + f.sum(1), own, flow)


def refreshed(own: Moments, new: Moments, pooling: Bool[Array, ""]) -> Moments:
    """Own statistics under the new mixture; while pooling, only part of the way to them."""
    share = jnp.where(pooling, FRESHNESS, 1.0)
    return jax.tree.map(lambda old, s: old + share.astype(s.dtype) * (s - old), own, new)
