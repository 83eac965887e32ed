"""Nodes into blocks: arrays of equal shape, little padding, few shapes to compile.

Nodes differ by orders of magnitude in rows and neighbours. They are grouped so that every group has
one shape (nodes in a block, rows, neighbour slots); within a group, blocks run one after another.
All lengths are rounded up to a coarse grid, so that one more node or row rarely means a new shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array, Label
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import NodeRows
from fedmixtures.mixture.linear import on_gpu

BLOCK_NODES, BLOCK_ROWS = 128, 65536
"""Nodes and rows in a block on a CPU: what stays in its cache."""
GPU_NODES, GPU_ROWS = 1 << 20, 1 << 27
"""The same on a GPU, which wants all work at once."""
GROUP_OVERHEAD = 50_000.0
"""Padded rows worth tolerating to save the compilation of one more shape."""
SLOT_COST = 5.0
"""A neighbour slot costs about as much as this many rows."""


class Group(eqx.Module):
    """Blocks of one shape; all arrays lead with (blocks, nodes)."""

    data: NodeRows
    weight: Array
    """Edge weights (blocks, nodes, slots); zero marks an empty slot."""
    sender: Array
    """Where each slot's neighbour stands among all padded nodes; its own place if empty."""
    reverse: Array
    """Where the neighbour's slot for this very node stands among all padded slots."""
    node_key: Array
    slot_key: Array
    """Bits of the random keys (…, 2): seed and label of the node, and of the slot's neighbour."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Blocks, nodes in a block, rows, slots."""
        return (*self.data.rows.shape[:3], self.weight.shape[2])


@dataclass(frozen=True)
class Layout:
    """All groups, and where each node went."""

    groups: tuple[Group, ...]
    position: np.ndarray
    """Place of each node among the padded nodes of all groups."""
    n_places: int

    @property
    def row_waste(self) -> float:
        """Padded rows per real row."""
        padded = sum(float(np.prod(group.shape[:3])) for group in self.groups)
        return padded / sum(float((np.asarray(g.data.row_weights) > 0).sum()) for g in self.groups)


def rounded_up(n: int | np.integer) -> int:
    """The next number on a grid of four steps per doubling: at most a quarter more."""
    n = int(n)
    if n <= 8:
        return max(n, 1)
    step = 1 << ((n - 1).bit_length() - 3)
    return -(-n // step) * step


def build_layout(
    data: NodeData,
    network: Network,
    dtype: str = "float64",
    block_size: int | None = None,
    seed: int = 0,
) -> Layout:
    """Lay out rows and neighbours of all nodes; `block_size=1` gives every node its own block."""
    slots = _Slots.of(network, data.labels, seed)
    plans = _plan(data.counts, slots.degree, block_size)
    position = np.empty(data.n_nodes, dtype=np.int64)
    slot_start = np.empty(data.n_nodes, dtype=np.int64)
    place, slot_place = 0, 0
    for plan in plans:
        members = np.arange(len(plan.nodes))
        position[plan.nodes] = place + members
        slot_start[plan.nodes] = slot_place + members * plan.slots
        place += plan.blocks * plan.width
        slot_place += plan.blocks * plan.width * plan.slots
    groups, first = [], 0
    for plan in plans:
        groups.append(_fill(plan, first, data, slots, position, slot_start, dtype))
        first += plan.blocks * plan.width
    return Layout(tuple(groups), position, place)


def node_group(
    label: Label,
    rows: np.ndarray,
    row_weights: np.ndarray,
    neighbours: Mapping[Label, float],
    dtype: str = "float64",
    seed: int = 0,
) -> tuple[Group, tuple[Label, ...]]:
    """A node by itself as the group of one that it is with `block_size=1`, as a silo needs it.

    `neighbours` gives the weight of each edge. Returned with it: the neighbour of every slot.
    """
    n, m = len(neighbours), len(rows)
    labels = (*neighbours, label)  # the others hold no rows here
    weight = np.array(list(neighbours.values()), dtype=np.float64)
    network = Network(labels, np.arange(n), np.full(n, n), weight)
    slots = _Slots.of(network, labels, seed)
    data = NodeData(labels, rows, row_weights, np.array([0] * (n + 1) + [m]), np.arange(m))
    plan = _Plan(np.array([n]), rounded_up(m), rounded_up(n), 1, 1)
    nowhere = np.zeros(n + 1, dtype=np.int64)
    group = _fill(plan, 0, data, slots, nowhere, nowhere, dtype)
    return group, tuple(labels[i] for i in slots.sender[slots.receiver == n])


@dataclass(frozen=True)
class _Plan:
    """Which nodes form a group, and its shape."""

    nodes: np.ndarray
    rows: int
    slots: int
    width: int
    blocks: int


@dataclass(frozen=True)
class _Slots:
    """Directed edges sorted by receiver, then by the hash of the sender's label."""

    receiver: np.ndarray
    sender: np.ndarray
    weight: np.ndarray
    slot: np.ndarray
    reverse: np.ndarray
    """Index of the opposite directed edge."""
    degree: np.ndarray
    node_key: np.ndarray
    slot_key: np.ndarray

    @classmethod
    def of(cls, network: Network, labels: tuple, seed: int) -> _Slots:
        n, e = len(labels), len(network.source)
        hashes = np.array([label_hash(label) for label in labels], dtype=np.uint64)
        receiver = np.concatenate([network.source, network.target]).astype(np.int64)
        sender = np.concatenate([network.target, network.source]).astype(np.int64)
        order = np.lexsort((hashes[sender], receiver))
        rank = np.empty(2 * e, dtype=np.int64)
        rank[order] = np.arange(2 * e)
        opposite = np.concatenate([np.arange(e, 2 * e), np.arange(e)])
        degree = np.bincount(receiver, minlength=n)
        starts = np.concatenate([[0], np.cumsum(degree)])
        weight = np.concatenate([network.weight, network.weight])[order]
        receiver, sender = receiver[order], sender[order]
        slot = np.arange(2 * e) - starts[receiver]
        node_key = mixed(mixed(np.uint64(seed)) ^ hashes)
        slot_key = mixed(node_key[receiver] ^ hashes[sender])
        reverse = rank[opposite[order]]
        return cls(receiver, sender, weight, slot, reverse, degree, node_key, slot_key)


def _plan(counts: np.ndarray, degree: np.ndarray, block_size: int | None) -> list[_Plan]:
    """Group nodes by rows and neighbours, then merge groups while padding costs less."""
    octave = lambda values: np.ceil(np.log2(np.maximum(values, 1))).astype(int)
    keys = np.stack([octave(counts), octave(degree)], axis=1)
    distinct, index = np.unique(keys, axis=0, return_inverse=True)
    groups = [np.flatnonzero(index.reshape(-1) == g) for g in range(len(distinct))]
    if block_size is None:
        groups = _merge(groups, counts, degree)
    else:  # exact shapes, as a node would have alone
        shapes = np.array(
            [[rounded_up(m), rounded_up(s)] for m, s in zip(counts, degree, strict=True)]
        )
        distinct, index = np.unique(shapes, axis=0, return_inverse=True)
        groups = [np.flatnonzero(index.reshape(-1) == g) for g in range(len(distinct))]
    most_nodes, most_rows = (GPU_NODES, GPU_ROWS) if on_gpu() else (BLOCK_NODES, BLOCK_ROWS)
    plans = []
    for nodes in groups:
        rows, slots = rounded_up(counts[nodes].max()), rounded_up(degree[nodes].max())
        width = block_size or max(1, min(most_nodes, most_rows // rows))
        blocks = -(-len(nodes) // width)
        if block_size is None:  # blocks of about equal size: no last one that is nearly empty
            width = min(width, rounded_up(-(-len(nodes) // blocks)))
        plans.append(
            _Plan(nodes[np.argsort(degree[nodes], kind="stable")], rows, slots, width, blocks)
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
        if least > max(GROUP_OVERHEAD, 0.02 * total):
            break
        groups[j], sizes[j] = np.concatenate([groups[j], groups[i]]), joined(sizes[i], sizes[j])
        del groups[i], sizes[i]
    return groups


def _fill(
    plan: _Plan,
    first: int,
    data: NodeData,
    slots: _Slots,
    position: np.ndarray,
    slot_start: np.ndarray,
    dtype: str,
) -> Group:
    """The padded arrays of one group."""
    places = plan.blocks * plan.width
    shaped = lambda array: jnp.asarray(array.reshape(plan.blocks, plan.width, *array.shape[1:]))
    rows = np.zeros((places, plan.rows, data.n_features), dtype=dtype)
    row_weights = np.zeros((places, plan.rows), dtype=dtype)
    totals = np.zeros(places, dtype=dtype)
    member = np.full(data.n_nodes, -1)
    member[plan.nodes] = np.arange(len(plan.nodes))
    of_row = member[data.node_index]
    chosen = np.flatnonzero(of_row >= 0)
    within = (np.arange(len(data.rows)) - data.offsets[data.node_index])[chosen]
    rows[of_row[chosen], within] = data.rows[chosen]
    total = data.total_weights()
    shares = data.row_weights / total[data.node_index]
    row_weights[of_row[chosen], within] = shares[chosen]
    totals[: len(plan.nodes)] = total[plan.nodes]

    sender = np.tile((first + np.arange(places))[:, None], (1, plan.slots)).astype(np.int32)
    reverse = np.zeros((places, plan.slots), dtype=np.int32)
    weight = np.zeros((places, plan.slots), dtype=dtype)
    node_key = np.zeros(places, dtype=np.uint64)
    slot_key = np.zeros((places, plan.slots), dtype=np.uint64)
    edges = np.flatnonzero(member[slots.receiver] >= 0)
    cell = member[slots.receiver[edges]], slots.slot[edges]
    sender[cell] = position[slots.sender[edges]]
    opposite = slots.reverse[edges]
    reverse[cell] = slot_start[slots.receiver[opposite]] + slots.slot[opposite]
    weight[cell] = slots.weight[edges]
    node_key[: len(plan.nodes)] = slots.node_key[plan.nodes]
    slot_key[cell] = slots.slot_key[edges]
    return Group(
        NodeRows(shaped(rows), shaped(row_weights), shaped(totals)),
        shaped(weight),
        shaped(sender),
        shaped(reverse),
        shaped(_halves(node_key)),
        shaped(_halves(slot_key)),
    )


def mixed(bits: np.ndarray | np.uint64) -> np.ndarray | np.uint64:
    """Scatter 64-bit numbers so that related ones become unrelated (splitmix64's finaliser)."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _halves(bits: np.ndarray) -> np.ndarray:
    """64-bit numbers as pairs of 32-bit ones, the form of JAX's keys."""
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return np.stack([high, low], axis=-1).astype(np.uint32)
