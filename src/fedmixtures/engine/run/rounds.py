"""The in-process engine: rounds of a node program over blocks, compiled once per shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures.engine.layout.blocks import Group, Layout, on_host
from fedmixtures.kernels.compiling import jit
from fedmixtures.methods.base import Inbox, Info, Keys, Method, NodeProgram
from fedmixtures.mixture.mixture import Mixture

Groups = tuple[Group, ...]
States = tuple[Any, ...]
M = TypeVar("M", bound=Method)


def dynamic(program: M, dtype: str) -> M:
    """The program with its numbers as arrays: another alpha is not another compilation."""
    leaves, structure = jax.tree.flatten(_floats(program))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, float)]
    # All in one call: it costs as much as one of them.
    numbers = jax.device_put([np.asarray(leaves[i], dtype) for i in places])
    for i, number in zip(places, numbers, strict=True):
        leaves[i] = number
    return jax.tree.unflatten(structure, leaves)


def _floats(module: eqx.Module) -> eqx.Module:
    """Whole numbers where a field takes floats, such as ``alpha=1``, as the floats they stand for.

    Other whole numbers (local steps, drawn points) are shapes of the program.
    """
    changed = {}
    for field in fields(module):
        value = getattr(module, field.name)
        if isinstance(value, eqx.Module):
            changed[field.name] = _floats(value)
        elif "float" in str(field.type):
            as_float = lambda x: float(x) if type(x) is int else x
            changed[field.name] = jax.tree.map(as_float, value)
    return replace(module, **changed) if changed else module


def scatter(theta: Mixture, layout: Layout, dtype: str) -> tuple[Mixture, ...]:
    """Starting mixtures of all nodes into the blocks; empty places get a harmless one."""
    k, d = theta.n_components, theta.n_features
    filler = (np.full(k, 1 / k), np.zeros((k, d)), np.broadcast_to(np.eye(d), (k, d, d)))

    def place(part, empty):
        places = np.broadcast_to(empty, (layout.n_places, *empty.shape)).astype(dtype)
        places[layout.position] = part
        return places

    parts = [place(part, empty) for part, empty in zip(theta.parts, filler, strict=True)]
    mixtures, first = [], 0
    for group in layout.groups:
        blocks, width = group.shape[:2]
        span = slice(first, first + blocks * width)
        pieces = (p[span].reshape(blocks, width, *p.shape[1:]) for p in parts)
        mixtures.append(Mixture(*map(layout.on_device, pieces)))
        first += blocks * width
    return tuple(mixtures)


def gather(per_group: tuple, layout: Layout) -> Any:
    """Arrays (blocks, nodes, ...) of every group back into the order of the nodes, as NumPy."""

    def join(*parts):
        flat = [on_host(part).reshape(-1, *part.shape[2:]) for part in parts]
        # Not by brackets, which take nine times as long for a million nodes.
        return np.concatenate(flat).take(layout.position, axis=0)

    return jax.tree.map(join, *per_group)


class Exchange(NamedTuple):
    """What is done to the tables of messages before nodes read them; here nothing."""

    broadcast: Callable[[Any], Any] = lambda table: table
    per_slot: Callable[[Any], Any] = lambda table: table


AS_SENT = Exchange()


@jit
def start(program: NodeProgram, groups: Groups, thetas: tuple) -> States:
    """States before the first round."""
    return starting_states(program, groups, thetas)


def starting_states(program: NodeProgram, groups: Groups, thetas: tuple) -> States:
    """As `start`, to be compiled."""

    def begin(theta, group: Group):
        state = program.start(theta, group.data, jr.wrap_key_data(group.node_key))
        return program.meet(state, group.weight)

    return tuple(
        over_blocks(begin, theta, group) for group, theta in zip(groups, thetas, strict=True)
    )


@jit
def run_rounds(
    program: NodeProgram,
    groups: Groups,
    states: States,
    first: jax.Array,
    n_rounds: jax.Array,
    capacity: int,
) -> tuple[States, tuple[Info, ...]]:
    """Run `n_rounds` (at most `capacity`) rounds; infos carry (capacity, blocks, nodes).

    Each info shows the states its round began with.

    The number of rounds is data, not shape: a shorter last chunk or a repeated one is the same
    compiled program.
    """
    return many_rounds(program, groups, states, first, n_rounds, capacity)


def many_rounds(
    program, groups: Groups, states: States, first, n_rounds, capacity: int, exchange=AS_SENT
):
    """As `run_rounds`, to be compiled."""
    one_round = lambda states, t: _round(program, groups, states, t, exchange)
    return repeated(one_round, groups, states, first, n_rounds, capacity)


def repeated(one_round, groups: Groups, states, first, n_rounds, capacity: int):
    """Round after round in one compiled loop, with a record of what each of them showed."""
    dtype = groups[0].weight.dtype
    per_node = [jnp.zeros((capacity, *group.weight.shape[:2]), dtype) for group in groups]
    infos = tuple(Info(*(blank,) * len(fields(Info))) for blank in per_node)

    def body(t, carry):
        states, infos = carry
        states, info = one_round(states, first + t)
        record = lambda all_, new: jax.lax.dynamic_update_index_in_dim(all_, new, t, 0)
        return states, jax.tree.map(record, infos, info)

    return jax.lax.fori_loop(0, n_rounds, body, (states, infos))


def results(program: NodeProgram, groups: Groups, states: States) -> tuple[Mixture, ...]:
    """The nodes' mixtures."""
    return ask("result", program, groups, states)


@jit
def ask(question: str, program: NodeProgram, groups: Groups, states: States) -> tuple[Any, ...]:
    """What the program answers, by its method of that name, for the nodes of every group."""
    return answers(question, program, groups, states)


def answers(question: str, program: NodeProgram, groups: Groups, states: States):
    """As `ask`, to be compiled."""
    return tuple(
        over_blocks(getattr(program, question), state, group.data)
        for group, state in zip(groups, states, strict=True)
    )


def _round(program: NodeProgram, groups: Groups, states: States, t: jax.Array, exchange: Exchange):
    """Exchange messages, then one step of every block."""

    def send(state, weight):
        out = program.outgoing(state, weight)
        return jax.vmap(program.digest)(out.broadcast), out.per_slot

    sent = [over_blocks(send, s, g.weight) for s, g in zip(states, groups, strict=True)]
    broadcast = exchange.broadcast(table([message for message, _ in sent], axes=2))
    per_slot = exchange.per_slot(table([message for _, message in sent], axes=3))

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
    keys = Keys(_of_round(group.node_key, t), _of_round(group.slot_key, t))
    return program.step(state, inbox, group.data, keys)


def message_bytes(program: NodeProgram, groups: Groups, states: States) -> int:
    """Bytes of what one node sends to one neighbour in a round."""
    state, group = states[0], groups[0]
    first = lambda tree: jax.tree.map(
        lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), tree
    )
    out = jax.eval_shape(program.outgoing, first(state), first(group.weight))
    width, slots = group.weight.shape[1:]
    return tree_bytes(out.broadcast) // width + tree_bytes(out.per_slot) // (width * slots)


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays of a message."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def over_blocks(function, *trees):
    """Apply `function` to block after block; a single block runs without a loop.

    A lone node loops over itself twice: the compiler gives it other bits outside a loop than the
    nodes of an engine with `block_size=1` get inside theirs, and silos are to get the same.
    """
    blocks, width = jax.tree.leaves(trees)[0].shape[:2]
    if blocks == 1 and width == 1:
        twice = jax.tree.map(lambda part: jnp.concatenate([part, part]), trees)
        both = jax.lax.map(lambda args: function(*args), twice)
        return jax.tree.map(lambda part: part[:1], both)
    if blocks == 1:
        one = function(*jax.tree.map(lambda part: part[0], trees))
        return jax.tree.map(lambda part: part[None], one)
    return jax.lax.map(lambda args: function(*args), trees)


def table(messages: list, axes: int):
    """Messages of all groups in one table, a line per place (or per slot)."""
    flat = lambda part: part.reshape(-1, *part.shape[axes:])
    return jax.tree.map(lambda *parts: jnp.concatenate([flat(p) for p in parts]), *messages)


def _of_round(key_data: jax.Array, t: jax.Array) -> jax.Array:
    """Keys of round `t` from the bits that stand for seed and labels."""
    fold = lambda bits: jr.fold_in(jr.wrap_key_data(bits), t)
    for _ in range(key_data.ndim - 1):
        fold = jax.vmap(fold)
    return fold(key_data)
