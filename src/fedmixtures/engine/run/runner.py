"""What all runners of programs share: arrays in blocks, loops over blocks and rounds."""

from __future__ import annotations

import abc
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.engine.layout.blocks import Layout, on_host
from fedmixtures.engine.layout.filling import Group
from fedmixtures.engine.solution import Traffic
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Method, Prepared
from fedmixtures.methods.programs import HubProgram, Info, NodeProgram
from fedmixtures.mixture.mixture import Mixture

BlockGroups = tuple[Group, ...]
M = TypeVar("M", bound=Method)
P = TypeVar("P", NodeProgram, HubProgram)


class Runner(abc.ABC, Generic[P]):
    """Runs a program on a layout; what `states` are is its own matter."""

    def __init__(self, layout: Layout, network: Network, dtype: str):
        self.layout, self.groups = layout, layout.groups
        self.network, self.dtype = network, dtype

    @abc.abstractmethod
    def start(self, program: P, prepared: Prepared) -> Any:
        """States before the first round."""

    @abc.abstractmethod
    def run(
        self, program: P, states: Any, first: int, n: int, capacity: int
    ) -> tuple[Any, tuple[Info, ...]]:
        """`n` rounds (at most `capacity`) from round `first` on: states after them, and infos.

        Infos carry (capacity, blocks, nodes); each shows the states its round began with. The
        number of rounds is data, not shape: a shorter last chunk or a repeated one is the same
        compiled program.
        """

    @abc.abstractmethod
    def results(self, program: P, states: Any) -> Any:
        """The mixtures, group by group."""

    @abc.abstractmethod
    def traffic(self, program: P, states: Any, n_rounds: int, prepared: Prepared) -> Traffic:
        """Bytes that left each node, before the rounds and in them, and what came back."""

    def thetas(self, prepared: Prepared) -> tuple[Mixture, ...]:
        """The starting mixtures, group by group."""
        return scatter(prepared.theta, self.layout, self.dtype)

    def bytes_before(self, numbers: int | np.ndarray) -> np.ndarray:
        """Of each node, before the first round."""
        size = np.dtype(self.dtype).itemsize
        return np.full(self.network.n_nodes, numbers * size, dtype=np.int64)

    def by_label(self, values: np.ndarray) -> dict:
        """Numbers of all nodes by their labels."""
        if not values.any():  # of a million nodes in a third of the time
            return dict.fromkeys(self.network.labels, 0)
        return dict(zip(self.network.labels, values.tolist(), strict=True))


def as_traced(program: M, dtype: str) -> M:
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
    k, d, g = theta.n_components, theta.n_features, theta.n_continuous
    filler = (np.full(k, 1 / k), np.zeros((k, d)), np.broadcast_to(np.eye(g), (k, g, g)))

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


def repeated(one_round, groups: BlockGroups, states, first, n_rounds, capacity: int):
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
