"""One node's round, compiled: the engine's own step on a block of one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmixtures.engine import rounds
from fedmixtures.engine.blocks import Group
from fedmixtures.methods.base import Inbox, Info, NodeProgram, Outgoing
from fedmixtures.mixture.compiling import jit
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
    block = _without_block(group)
    digested = jax.vmap(program.digest)(broadcast)
    weight = jnp.where(heard[None], block.weight, 0.0)
    in_front = lambda tree: jax.tree.map(lambda part: part[None], tree)
    inbox = Inbox(in_front(digested), in_front(per_slot), weight)
    return rounds.step(program, state, inbox, block, t)


@jit
def node_result(program: NodeProgram, group: Group, state: Any) -> Mixture:
    """The node's mixture."""
    return _without_block(program.result(state, _without_block(group).data))


def _without_block(tree: Any) -> Any:
    return jax.tree.map(lambda part: part[0], tree)
