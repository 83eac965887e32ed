"""Nodes into blocks: arrays of equal shape, little padding, few shapes to compile.

Nodes differ by orders of magnitude in rows and neighbours. They are grouped so that every group has
one shape (nodes in a block, rows, neighbour slots); within a group, blocks run one after another.
All lengths are rounded up to a coarse grid, so that one more node or row rarely means a new shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData, by_pattern
from fedmixtures.engine.layout.filling import Group, Plan, Slots, fill
from fedmixtures.engine.solution import Shards
from fedmixtures.graph.network import Network
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.compiling import rounded_up
from fedmixtures.methods.protocol import Block
from fedmixtures.mixture.mixture import Mixture

GROUP_OVERHEAD = 25_000.0
"""Padded rows worth tolerating to save the compilation of one more shape."""
SLOT_COST = 5.0
"""A neighbour slot costs about as much as this many rows."""

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Layout:
    """All groups, and where each node went."""

    groups: tuple[Group, ...]
    position: np.ndarray
    """Place of each node among the padded nodes of all groups."""
    n_places: int
    shards: Shards | None = None

    def on_device(self, array: np.ndarray) -> jax.Array:
        """An array that leads with blocks, to where the blocks are."""
        return jnp.asarray(array)

    @property
    def row_waste(self) -> float:
        """Padded rows per real row."""
        padded = sum(float(np.prod(group.shape[:3])) for group in self.groups)
        return padded / sum(float((np.asarray(g.data.row_weights) > 0).sum()) for g in self.groups)


def without_edges(labels: tuple[Label, ...]) -> Network:
    """A network in which nobody has a neighbour."""
    nobody = np.zeros(0, dtype=np.int64)
    return Network(labels, nobody, nobody, np.zeros(0))


def on_host(array: jax.Array | np.ndarray) -> np.ndarray:
    """Copy a whole array to NumPy; every process that holds a part of it has to call this."""
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(array, tiled=True)


def build_layout(
    data: NodeData,
    network: Network,
    dtype: str = "float64",
    block_size: int | None = None,
    seed: int = 0,
) -> Layout:
    """Lay out rows and neighbours of all nodes; `block_size=1` gives every node its own block."""
    data = by_pattern(data)
    plans = plan_groups(data.counts, network.degree, block_size)
    position = places_of(plans, data.n_nodes)
    place = sum(plan.places for plan in plans)
    if not data.segment and dispatch.lays_out_on_device(data.n_nodes, len(data.rows)):
        from fedmixtures.engine.layout.filling_gpu import fill_on_gpu

        filled = fill_on_gpu(plans, data, network, position, dtype, seed, rounded_up)
        return Layout(tuple(filled), position, place)
    groups, first = [], 0
    slots = Slots.of(network, data.label_hashes, seed)
    for plan in plans:
        groups.append(fill(plan, first, data, slots, position[slots.sender], dtype))
        first += plan.places
    return Layout(tuple(groups), position, place)


def places_of(plans: Sequence[Plan], n_nodes: int) -> np.ndarray:
    """Where each node stands among the places of all groups."""
    position, place = np.zeros(n_nodes, dtype=np.int64), 0
    for plan in plans:
        position[plan.nodes] = place + np.arange(len(plan.nodes))
        place += plan.places
    return position


def node_group(
    label: Name,
    rows: np.ndarray,
    row_weights: np.ndarray,
    neighbours: Mapping[Name, float],
    dtype: str = "float64",
    seed: int = 0,
) -> tuple[Group, tuple[Name, ...]]:
    """A node by itself as the group of one that it is with `block_size=1`, as a silo needs it.

    `neighbours` gives the weight of each edge. Returned with it: the neighbour of every slot.
    """
    data, network = _with_neighbours(label, rows, row_weights, neighbours)
    data = by_pattern(data)
    n, m, names = len(neighbours), len(data.rows), (*neighbours, label)
    slots = Slots.of(network, data.label_hashes, seed)
    plan = Plan(np.array([n]), rounded_up(m), rounded_up(n), 1, 1)
    nowhere = np.zeros(2 * n, dtype=np.int64)
    group = fill(plan, 0, data, slots, nowhere, dtype)
    return group, tuple(names[i] for i in slots.sender[slots.receiver == n])


def protocol_block(
    data: NodeData,
    network: Network,
    n_components: Sequence[int],
    seed: int = 0,
    dtype: str = "float64",
    start: Mixture | None = None,
) -> Block:
    """All nodes as one block of a protocol."""
    return _block(data, network, np.arange(data.n_nodes), n_components, seed, dtype, start)


def node_block(
    label: Name,
    rows: np.ndarray,
    row_weights: np.ndarray,
    neighbours: Mapping[Name, float],
    n_components: int,
    seed: int = 0,
    dtype: str = "float64",
    start: Mixture | None = None,
    n_network: int | None = None,
) -> tuple[Block, tuple[Name, ...]]:
    """A node by itself as the block of one that a silo runs; with it the neighbour of every edge.

    `neighbours` gives the weight of each edge, `start` has a leading axis of one, `n_network` is
    how many nodes there are in all, unless all are neighbours.
    """
    data, network = _with_neighbours(label, rows, row_weights, neighbours)
    own = np.array([len(neighbours)])
    block = _block(data, network, own, [n_components], seed, dtype, start)
    block = replace(block, n_network=n_network or network.n_nodes)
    of_hash = dict(zip(data.label_hashes.tolist(), (*neighbours, label), strict=True))
    return block, tuple(of_hash[h] for h in block.neighbour.tolist())


def _with_neighbours(
    label: Name, rows: np.ndarray, row_weights: np.ndarray, neighbours: Mapping[Name, float]
) -> tuple[NodeData, Network]:
    """A node, the last one here, among its neighbours, who hold no rows here."""
    n, m = len(neighbours), len(rows)
    labels = (*neighbours, label)
    weight = np.array(list(neighbours.values()), dtype=np.float64)
    network = Network(labels, np.arange(n), np.full(n, n), weight)
    offsets = np.array([0] * (n + 1) + [m])
    return NodeData(labels, rows, row_weights, offsets, np.arange(m)), network


def _block(
    data: NodeData,
    network: Network,
    own: np.ndarray,
    n_components: Sequence[int],
    seed: int,
    dtype: str,
    start: Mixture | None,
) -> Block:
    """The block of the nodes `own`, which hold all rows of `data`: all nodes, or a single one."""
    edges = Slots.of(network, data.label_hashes, seed)
    everybody = len(own) == data.n_nodes
    edge = slice(None) if everybody else np.flatnonzero(np.isin(edges.receiver, own))
    n = len(edges.receiver[edge])
    held = data
    if not everybody:
        labels, offsets = tuple(data.labels[i] for i in own), data.offsets[[*own, own[-1] + 1]]
        held = NodeData(
            labels,
            data.rows,
            data.row_weights,
            offsets,
            data.source_index,
            categories=data.categories,
        )
    return Block(
        held,
        np.asarray(n_components),
        seed,
        dtype,
        start,
        np.arange(len(own)),
        edges.receiver if everybody else np.zeros(n, dtype=np.int64),
        edges.sender if everybody else 1 + np.arange(n),
        edges.weight[edge],
        data.label_hashes[edges.sender[edge]],
        edges.reverse if everybody else np.full(n, -1),
        network.n_nodes,
    )


def plan_groups(counts: np.ndarray, degree: np.ndarray, block_size: int | None) -> list[Plan]:
    """Group nodes by rows and neighbours, then merge groups while padding costs less."""
    octave = lambda values: np.ceil(np.log2(np.maximum(values, 1))).astype(int)
    keys = 64 * octave(counts) + octave(degree)
    groups = [np.flatnonzero(keys == key) for key in np.unique(keys)]
    if block_size is None:
        groups = _merge(groups, counts, degree)
    else:  # exact shapes, as a node would have alone
        shapes = np.array(
            [[rounded_up(m), rounded_up(s)] for m, s in zip(counts, degree, strict=True)]
        )
        distinct, index = np.unique(shapes, axis=0, return_inverse=True)
        groups = [np.flatnonzero(index.reshape(-1) == g) for g in range(len(distinct))]
    most_nodes, most_rows = dispatch.most_in_a_block()
    plans = []
    for nodes in groups:
        rows, slots = rounded_up(counts[nodes].max()), rounded_up(degree[nodes].max())
        width = block_size or max(1, min(most_nodes, most_rows // rows))
        blocks = -(-len(nodes) // width)
        if block_size is None:  # blocks of about equal size: no last one that is nearly empty
            width = min(width, rounded_up(-(-len(nodes) // blocks)))
        plans.append(
            Plan(nodes[np.argsort(degree[nodes], kind="stable")], rows, slots, width, blocks)
        )
    return plans


def _merge(groups: list[np.ndarray], counts: np.ndarray, degree: np.ndarray) -> list[np.ndarray]:
    """Join the two groups whose union costs least extra padding, while that beats a compilation."""
    sizes = [(len(g), int(counts[g].max()), int(degree[g].max())) for g in groups]
    cost = lambda n, rows, slots: n * (rows + SLOT_COST * slots)
    joined = lambda a, b: (a[0] + b[0], max(a[1], b[1]), max(a[2], b[2]))
    groups = list(groups)
    while len(groups) > 1:
        extra = {
            (i, j): cost(*joined(sizes[i], sizes[j])) - cost(*sizes[i]) - cost(*sizes[j])
            for i in range(len(groups))
            for j in range(i)
        }
        (i, j), least = min(extra.items(), key=lambda item: item[1])
        total = sum(cost(*size) for size in sizes)
        if least > max(GROUP_OVERHEAD, dispatch.tolerable_padding() * total):
            break
        groups[j], sizes[j] = np.concatenate([groups[j], groups[i]]), joined(sizes[i], sizes[j])
        del groups[i], sizes[i]
    return groups
