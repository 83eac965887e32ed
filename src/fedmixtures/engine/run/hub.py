"""Rounds of a program with a hub, all nodes in one process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmixtures.engine.run.runner import (
    BlockGroups,
    Runner,
    over_blocks,
    repeated,
    table,
    tree_bytes,
)
from fedmixtures.engine.solution import Traffic
from fedmixtures.kernels.compiling import jit_in_order
from fedmixtures.methods.programs import HubProgram
from fedmixtures.mixture.mixture import Mixture

HubStates = tuple[tuple[Any, ...], Any]
"""The states of the nodes, group by group, and the hub's own."""


class HubRunner(Runner[HubProgram]):
    """To a hub that hears all nodes, and back."""

    def start(self, program, prepared):
        """From the starting mixtures and what the hub has agreed on with all nodes."""
        agreed = prepared.shared, prepared.hub_state
        agreed = jax.tree.map(lambda part: jnp.asarray(part, self.dtype), agreed)
        return _start(program, self.groups, self.thetas(prepared), *agreed)

    def run(self, program, states, first, n, capacity):
        """In each round all nodes send to the hub, and the hub to all nodes."""
        span = jnp.int32(first), jnp.int32(n)
        return _run_rounds(program, self.groups, states, *span, capacity)

    def results(self, program, states):
        """Every node's own."""
        return _results(program, self.groups, states)

    def traffic(self, program, states, n_rounds, prepared):
        """One message to the hub and one reply in a round."""
        size, reply = message_bytes(program, self.groups, states)
        setup = self.bytes_before(prepared.sent)
        received = self.bytes_before(prepared.received) + n_rounds * reply
        parts = self.by_label(setup + n_rounds * size), "hub", n_rounds, self.by_label(setup)
        return Traffic(size, *parts, self.by_label(received))


@jit_in_order
def _start(program: HubProgram, groups: BlockGroups, thetas: tuple, shared: Any, hub_state: Any):
    states = tuple(
        over_blocks(lambda theta, data: program.start(theta, shared, data), theta, group.data)
        for group, theta in zip(groups, thetas, strict=True)
    )
    return states, jax.tree.map(jnp.asarray, hub_state)


@jit_in_order
def _run_rounds(program, groups: BlockGroups, states: HubStates, first, n_rounds, capacity: int):
    # Nothing here is random, so the number of a round plays no part.
    one_round = lambda states, t: _round(program, groups, states)
    return repeated(one_round, groups, states, first, n_rounds, capacity)


@jit_in_order
def _results(program: HubProgram, groups: BlockGroups, states: HubStates) -> tuple[Mixture, ...]:
    return tuple(
        over_blocks(program.result, state, group.data)
        for group, state in zip(groups, states[0], strict=True)
    )


def _round(program: HubProgram, groups: BlockGroups, states: HubStates):
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


def message_bytes(program: HubProgram, groups: BlockGroups, states: HubStates) -> tuple[int, int]:
    """Bytes of what one node sends in a round, and of the hub's reply to it."""
    first = lambda tree: jax.tree.map(lambda part: part[0], tree)
    state, data = first(states[0][0]), first(groups[0].data)
    message, _ = jax.eval_shape(program.upload, state, data)
    reply, _ = jax.eval_shape(program.hub, message, data.total_weight, states[1])
    return tree_bytes(message) // len(data.total_weight), tree_bytes(reply)
