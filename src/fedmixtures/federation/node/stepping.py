"""One node's round, compiled: the engine's own step on a block of one."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from fedmixtures.engine.layout.blocks import Group
from fedmixtures.engine.run import rounds
from fedmixtures.kernels.compiling import jit
from fedmixtures.methods.base import Inbox, Info, NodeProgram, Outgoing
from fedmixtures.mixture.mixture import Mixture


def node_start(program: NodeProgram, group: Group, theta: Mixture) -> Any:
    """The state before the first round, from the starting mixture (one node in front)."""
    leading = jax.tree.map(lambda part: part[None], theta)
    (state,) = rounds.start(program, (group,), (leading,))
    return _without_block(state)


@jit
def node_outgoing(program: NodeProgram, group: Group, state: Any) -> Outgoing:
    """What the node has to say after some round."""
    return program.outgoing(state, group.weight[0])


@jit
def node_round(
    program: NodeProgram,
    group: Group,
    state: Any,
    broadcast: Any,
    per_slot: Any,
    heard: jax.Array,
    t: jax.Array,
) -> tuple[Any, Info]:
    """Round `t`: messages (slots, ...) as they came, and which of the slots were heard.

    A slot that was not heard holds what the engine puts into an empty one, the node's own message,
    at weight zero.
    """
    in_front = lambda tree, axes: jax.tree.map(lambda p: p.reshape((1,) * axes + p.shape), tree)
    # As in the engine, where the sender's block digests what it sends, a node at a time.
    one_by_one = jax.tree.map(lambda part: part[:, None], broadcast)
    digested = rounds.over_blocks(jax.vmap(program.digest), one_by_one)
    digested = jax.tree.map(lambda part: part[:, 0], digested)
    group = eqx.tree_at(lambda g: g.weight, group, jnp.where(heard[None, None], group.weight, 0.0))

    def receive(state, group: Group, digested, per_slot):
        inbox = Inbox(digested, per_slot, group.weight)
        return rounds.step(program, state, inbox, group, t)

    stepped = rounds.over_blocks(
        receive, in_front(state, 1), group, in_front(digested, 2), in_front(per_slot, 2)
    )
    return _without_block(stepped)


@jit
def node_result(program: NodeProgram, group: Group, state: Any) -> Mixture:
    """The node's mixture."""
    return _without_block(program.result(state, _without_block(group).data))


def _without_block(tree: Any) -> Any:
    return jax.tree.map(lambda part: part[0], tree)
