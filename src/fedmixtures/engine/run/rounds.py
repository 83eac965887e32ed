"""Rounds of a program over blocks on one device, compiled once per shape.

From neighbour to neighbour, or to a hub that hears all nodes and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr

from fedmixtures.engine.layout.filling import Group
from fedmixtures.engine.run.runner import (
    BlockGroups,
    Runner,
    over_blocks,
    repeated,
    table,
    tree_bytes,
)
from fedmixtures.engine.solution import Traffic
from fedmixtures.kernels.compiling import jit, jit_in_order
from fedmixtures.methods.programs import HubProgram, Inbox, Info, Keys, NodeProgram
from fedmixtures.mixture.mixture import Mixture

States = tuple[Any, ...]


Relay = Callable[[Any], Any]
"""What is done to the table of messages before nodes read it."""


def as_sent(messages: Any) -> Any:
    """Return messages as they are: nothing is rounded on the way within one process."""
    return messages


class NeighbourRunner(Runner[NodeProgram]):
    """From neighbour to neighbour, all on one device."""

    def start(self, program, prepared):
        """Every node by itself."""
        return start(program, self.groups, self.thetas(prepared))

    def run(self, program, states, first, n, capacity):
        """In each round every node sends, then every node takes a step."""
        span = jnp.int32(first), jnp.int32(n)
        return run_rounds(program, self.groups, states, *span, capacity)

    def results(self, program, states):
        """Every node's own."""
        return results(program, self.groups, states)

    def traffic(self, program, states, n_rounds, prepared):
        """One message to each neighbour in a round."""
        size = message_bytes(program, self.groups, states)
        setup = self.bytes_before(prepared.sent)
        sent = setup + n_rounds * size * self.network.degree
        return Traffic(size, self.by_label(sent), "neighbours", n_rounds, self.by_label(setup))


@jit
def start(program: NodeProgram, groups: BlockGroups, thetas: tuple) -> States:
    """States before the first round."""

    def begin(theta, group: Group):
        return program.start(theta, group.data, jr.wrap_key_data(group.node_key))

    return tuple(
        over_blocks(begin, theta, group) for group, theta in zip(groups, thetas, strict=True)
    )


@jit
def run_rounds(
    program: NodeProgram,
    groups: BlockGroups,
    states: States,
    first: jax.Array,
    n_rounds: jax.Array,
    capacity: int,
    relay: Relay = as_sent,
) -> tuple[States, tuple[Info, ...]]:
    """Rounds as `Runner.run` has them, all on one device."""
    one_round = lambda states, t: _round(program, groups, states, t, relay)
    return repeated(one_round, groups, states, first, n_rounds, capacity)


@jit
def results(program: NodeProgram, groups: BlockGroups, states: States) -> tuple[Mixture, ...]:
    """The mixtures of the nodes of every group."""
    return tuple(
        over_blocks(program.result, state, group.data)
        for group, state in zip(groups, states, strict=True)
    )


def _round(program: NodeProgram, groups: BlockGroups, states: States, t: jax.Array, relay: Relay):
    """Exchange messages, then one step of every block."""
    send = lambda state: jax.vmap(program.digest)(program.outgoing(state))
    messages = relay(table([over_blocks(send, state) for state in states], axes=2))

    def receive(state, group: Group):
        heard = jax.tree.map(lambda table: table[group.sender], messages)
        return step(program, state, Inbox(heard, group.weight), group, t)

    stepped = [over_blocks(receive, s, group) for s, group in zip(states, groups, strict=True)]
    return tuple(state for state, _ in stepped), tuple(info for _, info in stepped)


def step(program: NodeProgram, state: Any, inbox: Inbox, group: Group, t: jax.Array):
    """Round `t` of one block, with the keys of that round: simulation and silo alike."""
    keys = Keys(keys_of_round(group.node_key, t), keys_of_round(group.slot_key, t))
    return program.step(state, inbox, group.data, keys)


def message_bytes(program: NodeProgram, groups: BlockGroups, states: States) -> int:
    """Bytes of what one node sends to one neighbour in a round."""
    one_block = lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype)
    message = jax.eval_shape(program.outgoing, jax.tree.map(one_block, states[0]))
    return tree_bytes(message) // groups[0].weight.shape[1]


def keys_of_round(key_data: jax.Array, t: jax.Array) -> jax.Array:
    """Keys of round `t` from the bits that stand for seed and labels."""
    fold = lambda bits: jr.fold_in(jr.wrap_key_data(bits), t)
    for _ in range(key_data.ndim - 1):
        fold = jax.vmap(fold)
    return fold(key_data)


HubStates = tuple[tuple[Any, ...], Any]
"""The states of the nodes, group by group, and the hub's own."""


class HubRunner(Runner[HubProgram]):
    """To a hub that hears all nodes, and back."""

    def start(self, program, prepared):
        """From the starting mixtures and what the hub has agreed on with all nodes."""
        agreed = prepared.shared, prepared.hub_state
        agreed = jax.tree.map(lambda part: jnp.asarray(part, self.dtype), agreed)
        return _hub_start(program, self.groups, self.thetas(prepared), *agreed)

    def run(self, program, states, first, n, capacity):
        """In each round all nodes send to the hub, and the hub to all nodes."""
        span = jnp.int32(first), jnp.int32(n)
        return _hub_rounds(program, self.groups, states, *span, capacity)

    def results(self, program, states):
        """Every node's own."""
        return _hub_results(program, self.groups, states)

    def traffic(self, program, states, n_rounds, prepared):
        """One message to the hub and one reply in a round."""
        size, reply = hub_message_bytes(program, self.groups, states)
        setup = self.bytes_before(prepared.sent)
        received = self.bytes_before(prepared.received) + n_rounds * reply
        parts = self.by_label(setup + n_rounds * size), "hub", n_rounds, self.by_label(setup)
        return Traffic(size, *parts, self.by_label(received))


@jit_in_order
def _hub_start(
    program: HubProgram, groups: BlockGroups, thetas: tuple, shared: Any, hub_state: Any
):
    states = tuple(
        over_blocks(lambda theta, data: program.start(theta, shared, data), theta, group.data)
        for group, theta in zip(groups, thetas, strict=True)
    )
    return states, jax.tree.map(jnp.asarray, hub_state)


@jit_in_order
def _hub_rounds(program, groups: BlockGroups, states: HubStates, first, n_rounds, capacity: int):
    # Nothing here is random, so the number of a round plays no part.
    one_round = lambda states, t: _hub_round(program, groups, states)
    return repeated(one_round, groups, states, first, n_rounds, capacity)


@jit_in_order
def _hub_results(
    program: HubProgram, groups: BlockGroups, states: HubStates
) -> tuple[Mixture, ...]:
    return tuple(
        over_blocks(program.result, state, group.data)
        for group, state in zip(groups, states[0], strict=True)
    )


def _hub_round(program: HubProgram, groups: BlockGroups, states: HubStates):
    """All nodes to the hub, the hub to all nodes."""
    nodes, hub_state = states
    uploads = [
        over_blocks(program.upload, state, group.data)
        for state, group in zip(nodes, groups, strict=True)
    ]
    messages = table([message for message, _ in uploads], axes=2)
    rows = table([group.data.total_weight for group in groups], axes=2)
    reply, hub_state = program.hub(messages, rows, hub_state)

    def receive(state, kept, data):
        return program.step(state, kept, reply, data)

    stepped = [
        over_blocks(receive, state, kept, group.data)
        for state, (_, kept), group in zip(nodes, uploads, groups, strict=True)
    ]
    after = tuple(state for state, _ in stepped), hub_state
    return after, tuple(info for _, info in stepped)


def hub_message_bytes(
    program: HubProgram, groups: BlockGroups, states: HubStates
) -> tuple[int, int]:
    """Bytes of what one node sends in a round, and of the hub's reply to it."""
    first = lambda tree: jax.tree.map(lambda part: part[0], tree)
    state, data = first(states[0][0]), first(groups[0].data)
    message, _ = jax.eval_shape(program.upload, state, data)
    reply, _ = jax.eval_shape(program.hub, message, data.total_weight, states[1])
    return tree_bytes(message) // len(data.total_weight), tree_bytes(reply)
