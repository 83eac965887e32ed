"""What a node keeps between rounds."""

from __future__ import annotations

import equinox as eqx
from jaxtyping import Bool, Float, Int

from fedmixtures._types import Array, PerNode, PerSlot
from fedmixtures.methods.trust_then_pool.agree import Tags
from fedmixtures.methods.trust_then_pool.moments import Moments
from fedmixtures.mixture.mixture import Mixture


class Fits(eqx.Module):
    """What a node has worked out on its own rows."""

    wanted: Bool[Array, "nodes k"]
    """The components the node was given."""
    rows: PerNode
    """How many rows it has."""
    local: Mixture
    anchor: Mixture
    """The last refit on own rows and trusted summaries: what it can do without pooling."""
    fold: Int[Array, "nodes m"]
    fold_models: Mixture
    """Local fits that have not seen a fold (nodes, folds, ...)."""
    alone: Float[Array, "nodes m"]
    """Out-of-fold log-densities of the local fits."""
    held: Float[Array, "nodes m"]
    """Out-of-fold log-densities of the refit."""


class Neighbours(eqx.Module):
    """What a node keeps of each neighbour."""

    summary: Mixture
    """Their local mixtures."""
    rows: PerSlot
    listens: Bool[Array, "nodes s"]
    trusted: Bool[Array, "nodes s"]
    """Both ends listened, by the last two messages."""
    answer: Moments
    """Own statistics under the neighbour's mixture, to be sent."""
    flow: Moments
    flow_before: Moments
    tests: Float[Array, "nodes s 4"]
    """Gain and error of the substitute and the harmless test."""
    p_value: PerSlot
    """Of the evidence round; one before it."""
    same_tag: Bool[Array, "nodes s"]


class Alone(eqx.Module):
    """State of the nodes of a block before they have met their neighbours."""

    round: Int[Array, " nodes"]
    theta: Mixture
    fits: Fits
    order: PerNode
    """A number drawn from the label, the last word between tags."""
    tag: Tags
    own: Moments
    """The node's own statistics that take part in pooling."""


class State(Alone):
    """State of the nodes of a block."""

    slots: Neighbours
