"""A method in rounds is a small program that every node runs; engines carry its messages.

The functions of a program see a *block* of nodes: every array has a leading node axis. A silo in a
federation is a block of one, a simulation runs blocks of hundreds, with the same code.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, NodeKeys, PerNode, PerSlot, RowWeights, SlotKeys
from fedmixtures.methods.base import Method
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.mixture import Mixture


class NodeRows(eqx.Module):
    """What the nodes of a block hold and never send; an engine stacks blocks in front."""

    rows: Float[Array, "*blocks nodes m d"] | IncompleteRows
    """Padded to a common length; padding has weight zero."""
    row_weights: Float[Array, "*blocks nodes m"]
    """Share of each row in its node: sums to one, or to zero where a block has no node."""
    total_weight: Float[Array, "*blocks nodes"]
    """Sum of the sample weights, the number of rows if none were given."""


class Inbox(eqx.Module):
    """What the nodes of a block have received: their neighbours' last messages."""

    broadcast: Any  # digested messages (nodes, slots, ...)
    weight: PerSlot  # edge weight; zero marks a slot without a neighbour


class Keys(eqx.Module):
    """Random keys of this round, folded from (seed, round, label of the node, of the neighbour)."""

    node: NodeKeys
    slot: SlotKeys


class Info(eqx.Module):
    """What a round shows and never reads back: one number per node; engines stack them."""

    fit: Float[Array, "*rounds nodes"]
    """The local loss, eq. (1), of the state the round began with."""
    pull: Float[Array, "*rounds nodes"]
    """What the neighbours add to it: alpha times the weighted sum of discrepancies."""
    moved: Float[Array, "*rounds nodes"]  # squared distance the parameters moved during the round
    at_bound: Float[Array, "*rounds nodes"]
    """One where a mean lies on the bound of the feasible set when the round began."""

    @classmethod
    def without_pull(cls, fit: PerNode, moved: PerNode) -> Info:
        """What a round of a method without pull and bounds shows."""
        nothing = jnp.zeros_like(fit)
        return cls(fit, nothing, moved, nothing)


class NodeProgram(Method):
    """A synchronous message-passing program: nodes talk to their neighbours alone."""

    kind: ClassVar = "neighbours"

    @abc.abstractmethod
    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> Any:
        """State before the first round, from the starting mixtures; nothing is sent."""

    @abc.abstractmethod
    def outgoing(self, state: Any) -> Any:
        """What leaves the nodes in this round, arrays (nodes, ...): the same to every neighbour."""

    def digest(self, broadcast: Any) -> Any:
        """What a receiver works out from one message alone (one node, no leading axis)."""
        return broadcast

    @abc.abstractmethod
    def step(self, state: Any, inbox: Inbox, data: NodeRows, keys: Keys) -> tuple[Any, Info]:
        """One round: neighbours' messages in, the new state and what can be seen of it out."""

    def result(self, state: Any, data: NodeRows) -> Mixture:
        """The nodes' mixtures, by default the state; nothing is sent."""
        return state


class HubProgram(Method):
    """A synchronous program with a hub: every node sends to it, and all receive its reply.

    The hub sees every node's messages in the clear, and `prepare` is its work too: it sees every
    node's starting mixture where a method begins with one.
    """

    kind: ClassVar = "hub"

    @abc.abstractmethod
    def start(self, theta: Mixture, shared: Any, data: NodeRows) -> Any:
        """State before the first round, from the own starting mixture and what the hub has sent."""

    @abc.abstractmethod
    def upload(self, state: Any, data: NodeRows) -> tuple[Any, Any]:
        """What leaves each node (nodes, ...), and what it keeps of that work for its `step`."""

    @abc.abstractmethod
    def hub(self, messages: Any, rows: PerNode, hub_state: Any) -> tuple[Any, Any]:
        """The reply to all nodes and the hub's new state, from the messages of all nodes.

        `rows` counts each node's rows (known from the first contact); zero where there is no node.
        """

    @abc.abstractmethod
    def step(self, state: Any, kept: Any, reply: Any, data: NodeRows) -> tuple[Any, Info]:
        """The hub's reply in, the new state and what can be seen of the old one out."""

    def result(self, state: Any, data: NodeRows) -> Mixture:
        """The nodes' mixtures, by default the state; nothing is sent."""
        return state


def counts(data: NodeRows) -> RowWeights:
    """Row weights that sum to the rows of each node."""
    return data.row_weights * data.total_weight[:, None]


def squared_distance(a: Mixture, b: Mixture) -> PerNode:
    """Squared Euclidean distance of the stacked parameters of each node, as they stand."""
    squares = jax.tree.map(lambda x, y: jnp.square(x - y).reshape(len(x), -1).sum(-1), a, b)
    return squares.weights + squares.means + squares.covariances
