"""Step 5, communities: which of the nodes that listen to each other belong together."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedmixtures._types import Array
from fedmixtures.kernels.arrays import at, jit_on_gpu, most_voted, tally, xp
from fedmixtures.methods.protocol import Block, PerNeighbour, Request, Walk
from fedmixtures.methods.trust_then_pool.constants import C


def communities(block: Block, live: Array, gain: Array) -> Generator[Request, Any, Any]:
    """Which live edges lie inside a community, by label propagation.

    Every node begins with a label of its own and takes that for which most speaks among its live
    neighbours (each by the root of what it gains from them), half of the nodes at a time. An edge
    between two labels is cut if one of its ends has two neighbours of its own label, so that one
    edge that is live by chance does not join two groups; chains and stars, where nobody has two,
    stay whole.

    In a network of many nodes large groups have many labels, and of thousands of chance edges some
    pass. There an edge has to be one of many ways between its ends, too, and a node that is left
    alone has a second look.
    """
    hashes, receiver = xp.asarray(block.data.label_hashes), xp.asarray(block.receiver)
    label, weight = _votes(hashes, live, gain)
    for t in range(C.vote_rounds):
        received = yield PerNeighbour(at(label, receiver))
        label = _in_turn(t, hashes, most_voted(receiver, received, weight, label), label)
    received = yield PerNeighbour(at(label, receiver))
    same, firm = _firm(live, received, label, receiver)
    kept = _kept(live, same, firm, (yield PerNeighbour(firm)))
    if block.n_network < C.many:
        return kept
    kept = kept & ((yield Walk(live)) >= C.alike)
    return (yield from _second_look(block, live, gain, kept))


def _second_look(
    block: Block, live: Array, gain: Array, kept: Array
) -> Generator[Request, Any, Array]:
    """A node that kept none of its live edges keeps the one to a community that it gains most by.

    The one edge of a node joins no two communities.
    """
    receiver, neighbour = xp.asarray(block.receiver), xp.asarray(block.neighbour)
    alone = tally(kept, receiver, block.data.n_nodes) == 0
    weight = _offered(live, gain, alone[receiver], (yield PerNeighbour(alone[receiver])))
    name = (neighbour >> np.uint64(1)).astype(np.int64)
    chosen = most_voted(receiver, name, weight, np.full(len(alone), -1))[receiver] == name
    chosen = chosen & (weight > 0)
    return kept | chosen | (yield PerNeighbour(chosen))


@jit_on_gpu
def _offered(live: Array, gain: Array, alone: Array, there: Array) -> Any:
    """What an edge from a node alone to one in a community is worth to it."""
    return xp.where(live & alone & ~there, xp.maximum(gain, 0.0), 0.0)


@jit_on_gpu
def _votes(hashes: Array, live: Array, gain: Array) -> tuple[Any, Any]:
    """The label that each node begins with; what each neighbour's vote weighs."""
    weight = xp.where(live, xp.sqrt(xp.maximum(gain, 0.0)), 0.0)
    return (hashes >> np.uint64(1)).astype(np.int64), weight


@jit_on_gpu
def _firm(live: Array, received: Array, label: Array, receiver: Array) -> tuple[Any, Any]:
    """Which live edges join equal labels; at which the receiver has two of those."""
    same = live & (received == label[receiver])
    return same, (tally(same, receiver, len(label)) >= 2)[receiver]


@jit_on_gpu
def _kept(live: Array, same: Array, firm: Array, there: Array) -> Any:
    """Live edges but those between two labels of which one end has two neighbours of its own."""
    return live & (same | ~(firm | there))


@jit_on_gpu
def _in_turn(t: Any, hashes: Array, new: Array, label: Array) -> Any:
    """New labels at the half of the nodes whose turn it is."""
    bit = xp.asarray(1 + t).astype(np.uint64)
    return xp.where((hashes >> bit) & np.uint64(1) == t % 2, new, label)
