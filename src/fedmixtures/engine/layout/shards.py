"""Blocks over several devices: every device holds a part of the network and all rows of its nodes.

All devices hold groups of the same shapes, so that one program runs on each of them. What a node
hears from another device stands behind the places of its own, device after device (the halo).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedmixtures._types import Array, Device
from fedmixtures.data.gaps import by_pattern
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import SLOT_COST, Layout, places_of, plan_groups
from fedmixtures.engine.layout.filling import Group, Plan, fill
from fedmixtures.engine.layout.slots import Slots
from fedmixtures.engine.solution import Shards
from fedmixtures.graph.network import Network
from fedmixtures.graph.parts import cut_into_parts, n_cut_edges
from fedmixtures.kernels.compiling import rounded_up

AXIS = "devices"


class Halo(eqx.Module):
    """What every device sends to every other in a round, as places of its own (from, to, …)."""

    nodes: Array
    slots: Array


@dataclass(frozen=True, kw_only=True)
class ShardedLayout(Layout):
    """As `Layout`; the blocks of every group are spread over the devices of `mesh`."""

    halo: Halo
    mesh: Mesh

    def on_device(self, array: np.ndarray) -> jax.Array:
        """An array that leads with blocks, to where the blocks are."""
        return jax.device_put(array, NamedSharding(self.mesh, PartitionSpec(AXIS)))


def build_sharded_layout(
    data: NodeData,
    network: Network,
    devices: Sequence[Device],
    dtype: str = "float64",
    seed: int = 0,
) -> ShardedLayout:
    """Lay out rows and neighbours over `devices`; every node stands on one of them."""
    data = by_pattern(data)
    n, mesh = len(devices), Mesh(np.array(devices), (AXIS,))
    work = data.counts + SLOT_COST * network.degree
    part = cut_into_parts(network, work, n)
    plans = [_of_parts(plan, part, n) for plan in plan_groups(data.counts, network.degree, None)]
    local, slot_start = _local_places(plans, part)
    slots = Slots.of(network, data.label_hashes, seed)
    slot_place = (slot_start[slots.receiver] + slots.slot)[slots.reverse]
    n_places = sum(plan.places for plan, *_ in plans)
    n_slots = sum(plan.places * plan.slots for plan, *_ in plans)
    models = _Crossing.of(part, slots, slots.sender, local[slots.sender], n_places, n)
    answers = _Crossing.of(part, slots, np.arange(len(slot_place)), slot_place, n_slots, n)
    groups, position, first = [], local.copy(), 0
    for of_parts in plans:
        arguments = first, data, slots, models.place, answers.place, dtype
        groups.append(_filled(of_parts, mesh, *arguments))
        for q, plan in enumerate(of_parts):  # in `gather` each group stands over all devices
            position[plan.nodes] += first * (n - 1) + q * plan.places
        first += of_parts[0].places
    lines = np.full((n, n_places + n * models.width), -1)
    lines[part, local] = np.arange(data.n_nodes)
    lines[part[slots.receiver], models.place] = slots.sender
    put = lambda table: jax.device_put(table, NamedSharding(mesh, PartitionSpec(AXIS)))
    halo = Halo(put(models.sent), put(answers.sent))
    load = np.bincount(part, work, n)
    cut = n_cut_edges(network, part)
    shards = Shards(n, network.n_edges, cut, models.n_sent, float(load.max() / load.mean()))
    places = position, n * n_places, lines
    return ShardedLayout(tuple(groups), *places, shards, halo=halo, mesh=mesh)


@dataclass(frozen=True)
class _Crossing:
    """Messages that cross between devices."""

    place: np.ndarray
    """Where the receiver of each directed edge finds its message on its own device."""
    sent: np.ndarray
    """Places of the sending device, (from, to, messages); behind the last one any place."""
    width: int
    n_sent: int

    @classmethod
    def of(
        cls,
        part: np.ndarray,
        slots: Slots,
        message: np.ndarray,
        place: np.ndarray,
        n_places: int,
        n_parts: int,
    ) -> _Crossing:
        """`message` numbers what goes over each directed edge, `place` is where the sender has it.

        The same message to several nodes of one device crosses once.
        """
        source, target = part[slots.sender], part[slots.receiver]
        crossing = np.flatnonzero(source != target)
        most = int(message.max(initial=0)) + 1
        key = (source[crossing] * n_parts + target[crossing]) * most + message[crossing]
        unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        pair = unique // most
        count = np.bincount(pair, minlength=n_parts**2)
        width = rounded_up(count.max(initial=0))
        within = np.arange(len(unique)) - (np.cumsum(count) - count)[pair]
        sent = np.zeros((n_parts**2, width), dtype=np.int32)
        sent[pair, within] = place[crossing[first]]
        seen = place.copy()
        seen[crossing] = n_places + source[crossing] * width + within[inverse]
        return cls(seen, sent.reshape(n_parts, n_parts, width), width, len(unique))


def _of_parts(plan: Plan, part: np.ndarray, n_parts: int) -> list[Plan]:
    """The plan of a group on every device: its own nodes, the same shape everywhere."""
    members = [plan.nodes[part[plan.nodes] == q] for q in range(n_parts)]
    most = max(map(len, members))
    blocks = -(-most // plan.width)
    width = min(plan.width, rounded_up(-(-most // blocks)))
    return [replace(plan, nodes=nodes, width=width, blocks=blocks) for nodes in members]


def _local_places(plans: list[list[Plan]], part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each node stands on its own device, and its first slot there."""
    local, slot_start = np.zeros((2, len(part)), dtype=np.int64)
    for q in range(len(plans[0])):
        own = part == q
        places, starts = places_of([of_parts[q] for of_parts in plans], len(part))
        local[own], slot_start[own] = places[own], starts[own]
    return local, slot_start


def _filled(of_parts: list[Plan], mesh: Mesh, *arguments) -> Group:
    """A group over all devices; every process fills the part of its own ones."""
    here, devices = jax.process_index(), mesh.devices.tolist()
    filled = [
        jax.device_put(fill(plan, *arguments), device)
        for plan, device in zip(of_parts, devices, strict=True)
        if device.process_index == here
    ]

    def join(*pieces):
        shape = (len(devices) * len(pieces[0]), *pieces[0].shape[1:])
        sharding = NamedSharding(mesh, PartitionSpec(AXIS))
        return jax.make_array_from_single_device_arrays(shape, sharding, list(pieces))

    return jax.tree.map(join, *filled)
