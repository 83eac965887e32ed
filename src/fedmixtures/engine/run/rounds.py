"""Rounds of a node program over blocks on one device, compiled once per shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr

from fedmixtures.engine.layout.filling import Group
from fedmixtures.engine.run.accounts import account_of_groups
from fedmixtures.engine.run.runner import (
    BlockGroups,
    Runner,
    over_blocks,
    repeated,
    table,
    tree_bytes,
)
from fedmixtures.engine.solution import Traffic
from fedmixtures.kernels.compiling import jit
from fedmixtures.methods.programs import Inbox, Info, Keys, NodeProgram

States = tuple[Any, ...]


class Relay(NamedTuple):
    """What is done to the tables of messages before nodes read them; here nothing."""

    broadcast: Callable[[Any], Any] = lambda table: table
    per_slot: Callable[[Any], Any] = lambda table: table


AS_SENT = Relay()


class NeighbourRunner(Runner[NodeProgram]):
    """From neighbour to neighbour, all on one device."""

    def start(self, program, prepared):
        """Every node by itself, then with room for what it keeps of its neighbours."""
        return start(program, self.groups, self.thetas(prepared))

    def run(self, program, states, first, n, capacity):
        """In each round every node sends, then every node takes a step."""
        span = jnp.int32(first), jnp.int32(n)
        return run_rounds(program, self.groups, states, *span, capacity)

    def results(self, program, states):
        """Every node's own."""
        return self.ask("result", program, states)

    def account(self, program, states):
        """By node and by edge, as the program tells."""
        answers = self.ask("account", program, states)
        return account_of_groups(answers, self.layout, self.network)

    def traffic(self, program, states, n_rounds, prepared):
        """One message to each neighbour in a round."""
        size = message_bytes(program, self.groups, states)
        setup = self.bytes_before(prepared.sent)
        sent = setup + n_rounds * size * self.network.degree
        return Traffic(size, self.by_label(sent), "neighbours", n_rounds, self.by_label(setup))

    def ask(self, question: str, program, states):
        """What the program answers, by its method of that name, for the nodes of every group."""
        return ask(question, program, self.groups, states)


@jit
def start(program: NodeProgram, groups: BlockGroups, thetas: tuple) -> States:
    """States before the first round."""
    return starting_states(program, groups, thetas)


def starting_states(program: NodeProgram, groups: BlockGroups, thetas: tuple) -> States:
    """The same, for whoever compiles it with more."""

    def begin(theta, group: Group):
        state = program.start(theta, group.data, jr.wrap_key_data(group.node_key))
        return program.meet(state, group.weight)

    return tuple(
        over_blocks(begin, theta, group) for group, theta in zip(groups, thetas, strict=True)
    )


@jit
def run_rounds(program, groups: BlockGroups, states: States, first, n_rounds, capacity: int):
    """Rounds as `Runner.run` has them, all on one device."""
    return many_rounds(program, groups, states, first, n_rounds, capacity)


def many_rounds(
    program: NodeProgram,
    groups: BlockGroups,
    states: States,
    first: jax.Array,
    n_rounds: jax.Array,
    capacity: int,
    relay: Relay = AS_SENT,
) -> tuple[States, tuple[Info, ...]]:
    """The same, for whoever compiles it with more."""
    one_round = lambda states, t: _round(program, groups, states, t, relay)
    return repeated(one_round, groups, states, first, n_rounds, capacity)


@jit
def ask(
    question: str, program: NodeProgram, groups: BlockGroups, states: States
) -> tuple[Any, ...]:
    """What the program answers, by its method of that name, for the nodes of every group."""
    return answers(question, program, groups, states)


def answers(question: str, program: NodeProgram, groups: BlockGroups, states: States):
    """The same, for whoever compiles it with more."""
    return tuple(
        over_blocks(getattr(program, question), state, group.data)
        for group, state in zip(groups, states, strict=True)
    )


def _round(program: NodeProgram, groups: BlockGroups, states: States, t: jax.Array, relay: Relay):
    """Exchange messages, then one step of every block."""

    def send(state, weight):
        out = program.outgoing(state, weight)
        return jax.vmap(program.digest)(out.broadcast), out.per_slot

    sent = [over_blocks(send, s, g.weight) for s, g in zip(states, groups, strict=True)]
    broadcast = relay.broadcast(table([message for message, _ in sent], axes=2))
    per_slot = relay.per_slot(table([message for _, message in sent], axes=3))

    def receive(state, group: Group):
        inbox = Inbox(
            jax.tree.map(lambda table: table[group.sender], broadcast),
            jax.tree.map(lambda table: table[group.reverse], per_slot),
            group.weight,
        )
        return step(program, state, inbox, group, t)

    stepped = [over_blocks(receive, s, group) for s, group in zip(states, groups, strict=True)]
    return tuple(state for state, _ in stepped), tuple(info for _, info in stepped)


def step(program: NodeProgram, state: Any, inbox: Inbox, group: Group, t: jax.Array):
    """Round `t` of one block, with the keys of that round: simulation and silo alike."""
    keys = Keys(keys_of_round(group.node_key, t), keys_of_round(group.slot_key, t))
    return program.step(state, inbox, group.data, keys)


def message_bytes(program: NodeProgram, groups: BlockGroups, states: States) -> int:
    """Bytes of what one node sends to one neighbour in a round."""
    state, group = states[0], groups[0]
    first = lambda tree: jax.tree.map(
        lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), tree
    )
    out = jax.eval_shape(program.outgoing, first(state), first(group.weight))
    width, slots = group.weight.shape[1:]
    return tree_bytes(out.broadcast) // width + tree_bytes(out.per_slot) // (width * slots)


def keys_of_round(key_data: jax.Array, t: jax.Array) -> jax.Array:
    """Keys of round `t` from the bits that stand for seed and labels."""
    fold = lambda bits: jr.fold_in(jr.wrap_key_data(bits), t)
    for _ in range(key_data.ndim - 1):
        fold = jax.vmap(fold)
    return fold(key_data)
