"""Blocks over several devices: every device holds a part of the network and all rows of its nodes.

All devices hold groups of the same shapes, so that one program runs on each of them. What a node
hears from another device stands behind the places of its own, device after device (the halo).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedmixtures._types import Device
from fedmixtures.data.node_data import NodeData, by_pattern
from fedmixtures.engine.layout.blocks import SLOT_COST, Layout, places_of, plan_groups
from fedmixtures.engine.layout.filling import Group, Plan, Slots, fill
from fedmixtures.engine.solution import Shards
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import rounded_up

AXIS = "devices"
SWEEPS = 30
"""Rounds of exchanging nodes between parts, at most; most networks need fewer than ten."""


@dataclass(frozen=True, kw_only=True)
class ShardedLayout(Layout):
    """A `Layout` whose groups have their blocks spread over the devices of `mesh`."""

    halo: jax.Array
    """What every device sends to every other in a round, as places of its own (from, to, …)."""
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
    local = _local_places(plans, part)
    slots = Slots.of(network, data.label_hashes, seed)
    n_places = sum(plan.places for plan, *_ in plans)
    models = _Crossing.of(part, slots, local, n_places, n)
    groups, position, first = [], local.copy(), 0
    for of_parts in plans:
        arguments = first, data, slots, models.place, dtype
        groups.append(_filled(of_parts, mesh, *arguments))
        for q, plan in enumerate(of_parts):  # in `gather` each group stands over all devices
            position[plan.nodes] += first * (n - 1) + q * plan.places
        first += of_parts[0].places
    halo = jax.device_put(models.sent, NamedSharding(mesh, PartitionSpec(AXIS)))
    load = np.bincount(part, work, n)
    cut = n_cut_edges(network, part)
    shards = Shards(n, network.n_edges, cut, models.n_sent, float(load.max() / load.mean()))
    return ShardedLayout(tuple(groups), position, n * n_places, shards, halo=halo, mesh=mesh)


@dataclass(frozen=True)
class _Crossing:
    """Models that cross between devices; the same to several nodes of one device crosses once."""

    place: np.ndarray
    """Where the receiver of each directed edge finds its message on its own device."""
    sent: np.ndarray
    """Places of the sending device, (from, to, messages); behind the last one any place."""
    n_sent: int

    @classmethod
    def of(
        cls, part: np.ndarray, slots: Slots, local: np.ndarray, n_places: int, n_parts: int
    ) -> _Crossing:
        """`local` is where each node stands on its own device."""
        source, target = part[slots.sender], part[slots.receiver]
        crossing = np.flatnonzero(source != target)
        place, n_nodes = local[slots.sender], len(local)
        key = (source[crossing] * n_parts + target[crossing]) * n_nodes + slots.sender[crossing]
        unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        pair = unique // n_nodes
        count = np.bincount(pair, minlength=n_parts**2)
        width = rounded_up(count.max(initial=0))
        within = np.arange(len(unique)) - (np.cumsum(count) - count)[pair]
        sent = np.zeros((n_parts**2, width), dtype=np.int32)
        sent[pair, within] = place[crossing[first]]
        seen = place.copy()
        seen[crossing] = n_places + source[crossing] * width + within[inverse]
        return cls(seen, sent.reshape(n_parts, n_parts, width), len(unique))


def _of_parts(plan: Plan, part: np.ndarray, n_parts: int) -> list[Plan]:
    """The plan of a group on every device: its own nodes, the same shape everywhere."""
    members = [plan.nodes[part[plan.nodes] == q] for q in range(n_parts)]
    most = max(map(len, members))
    blocks = -(-most // plan.width)
    width = min(plan.width, rounded_up(-(-most // blocks)))
    return [replace(plan, nodes=nodes, width=width, blocks=blocks) for nodes in members]


def _local_places(plans: list[list[Plan]], part: np.ndarray) -> np.ndarray:
    """Where each node stands on its own device."""
    on_each = [places_of(list(of_part), len(part)) for of_part in zip(*plans, strict=True)]
    return np.stack(on_each)[part, np.arange(len(part))]


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


def cut_into_parts(network: Network, work: np.ndarray, n_parts: int) -> np.ndarray:
    """The part of each node, 0 to `n_parts` - 1; `work` is what each node costs.

    Neighbours stand close together in the Cuthill-McKee order, which is cut into segments of equal
    work. Then pairs of nodes change places while that leaves fewer edges between the parts
    (balanced label propagation, Ugander and Backstrom 2013).
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    if n_parts == 1:
        return np.zeros(network.n_nodes, dtype=np.int64)
    adjacency = network.adjacency()
    adjacency.data[:] = 1.0  # what is sent over an edge does not depend on its weight
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    middle = np.cumsum(work[order]) - work[order] / 2
    part = np.empty(network.n_nodes, dtype=np.int64)
    part[order] = np.minimum(middle * n_parts / work.sum(), n_parts - 1).astype(np.int64)
    fewest = n_cut_edges(network, part)
    for _ in range(SWEEPS):
        changed = _exchanged(adjacency, part, n_parts)
        left = n_cut_edges(network, changed)
        if left >= fewest:
            break
        part, fewest = changed, left
    return part


def n_cut_edges(network: Network, part: np.ndarray) -> int:
    """Edges whose two ends are in different parts."""
    return int((part[network.source] != part[network.target]).sum())


def _exchanged(adjacency, part: np.ndarray, n_parts: int) -> np.ndarray:
    """Parts after those who gain most by it have changed places, as many one way as the other.

    Neighbours who move at once can spoil each other's gain, so only the better half moves.
    """
    n = len(part)
    inside = np.zeros((n, n_parts))
    inside[np.arange(n), part] = 1.0
    neighbours = adjacency @ inside
    gain = neighbours - neighbours[np.arange(n), part][:, None]
    gain[np.arange(n), part] = -np.inf
    wish = gain.argmax(1)
    best = gain[np.arange(n), wish]
    changed = part.copy()
    for a in range(n_parts):
        for b in range(a):
            away = np.flatnonzero((part == a) & (wish == b))
            back = np.flatnonzero((part == b) & (wish == a))
            away, back = (side[np.argsort(-best[side], kind="stable")] for side in (away, back))
            pairs = min(len(away), len(back))
            worth = best[away[:pairs]] + best[back[:pairs]] > 0
            pairs = -(-int(worth.sum()) // 2)
            changed[away[:pairs]], changed[back[:pairs]] = b, a
    return changed
