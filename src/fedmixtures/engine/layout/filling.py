"""The padded arrays of a group of blocks: rows in whole pieces, neighbours by slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData, with_gaps
from fedmixtures.graph.network import Network
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import counted, in_order_of, jit_on_gpu, placed, xp
from fedmixtures.methods.programs import NodeRows
from fedmixtures.mixture.arithmetic import double

Bits = TypeVar("Bits", np.ndarray, jax.Array, np.uint64)

AT_ONCE = 4096
"""Nodes whose rows are copied together: what lies beside the tables themselves stays small."""


class Group(eqx.Module):
    """Blocks of one shape; all arrays lead with (blocks, nodes)."""

    data: NodeRows
    weight: jax.Array
    """Edge weights (blocks, nodes, slots); zero marks an empty slot."""
    sender: jax.Array
    """Where each slot's neighbour stands among all padded nodes; its own place if empty.

    Where blocks are spread over devices: among those of its own device, with what comes from the
    others behind them (`shards`).
    """
    node_key: jax.Array
    slot_key: jax.Array
    """Bits of the random keys (…, 2): seed and label of the node, and of the slot's neighbour."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Blocks, nodes in a block, rows, slots."""
        blocks, nodes, rows = self.data.rows.shape[:3]
        return blocks, nodes, rows, self.weight.shape[2]


@dataclass(frozen=True)
class Plan:
    """Which nodes form a group, and its shape."""

    nodes: np.ndarray
    rows: int
    slots: int
    width: int
    blocks: int

    @property
    def places(self) -> int:
        """Room for nodes."""
        return self.blocks * self.width


def fill(
    plan: Plan,
    first: int,
    data: NodeData,
    slots: Slots,
    sender_place: np.ndarray,
    dtype: str,
) -> Group:
    """The padded arrays of one group, whose first place is `first`; `data` is `by_pattern`.

    `sender_place` says for every directed edge what `Group` holds by slot.
    """
    used = np.arange(plan.slots)[None] < slots.degree[plan.nodes][:, None]
    cell = np.nonzero(used)
    edge = slots.start[plan.nodes][cell[0]] + cell[1]

    def per_slot(values: np.ndarray, dtype, empty: np.ndarray | float = 0) -> np.ndarray:
        table = np.full((plan.places, plan.slots), empty, dtype)
        table[cell] = values[edge]
        return table

    def per_node(values: np.ndarray) -> np.ndarray:
        table = np.zeros((plan.places, *values.shape[1:]), values.dtype)
        table[: len(plan.nodes)] = values[plan.nodes]
        return table

    def on_device(array: np.ndarray) -> jax.Array:
        """By blocks; a CPU takes the array as it is instead of copying it."""
        return jax.device_put(array.reshape(plan.blocks, plan.width, *array.shape[1:]))

    own_place = first + np.arange(plan.places, dtype=np.int32)[:, None]
    return Group(
        jax.tree.map(on_device, _rows(plan, data, dtype)),
        on_device(per_slot(slots.weight, dtype)),
        on_device(per_slot(sender_place, np.int32, own_place)),
        on_device(halves(per_node(slots.node_key))),
        on_device(halves(per_slot(slots.slot_key, np.uint64))),
    )


def _rows(plan: Plan, data: NodeData, dtype: str) -> NodeRows:
    """Rows (places, m, d) and their shares, zero behind each node's last; total weights."""
    m, totals = plan.rows, np.zeros(plan.places, dtype)
    rows = np.zeros((plan.places, m, data.n_features), dtype)
    shares = np.zeros((plan.places, m), dtype)
    total = data.total_weights()[plan.nodes]
    totals[: len(total)] = total
    _copy(data.rows, data.offsets, plan.nodes, rows)
    _copy(data.row_weights[:, None], data.offsets, plan.nodes, shares[:, :, None])
    shares[: len(total)] /= totals[: len(total), None]
    return NodeRows(with_gaps(rows, data), shares, totals)


def _copy(table: np.ndarray, offsets: np.ndarray, nodes: np.ndarray, out: np.ndarray) -> None:
    """The lines of each node into `out` (places, m, d), some nodes at a time.

    Nodes that have `m` lines from their first on, their own or not, take one copy each; what is not
    their own is then put back to zero.
    """
    m, d = out.shape[1:]
    flat = np.ascontiguousarray(table).reshape(-1)
    whole = offsets[nodes] + m <= len(table)
    for i in np.flatnonzero(~whole):
        own = table[offsets[nodes[i]] : offsets[nodes[i] + 1]]
        out[i, : len(own)] = own
    if not whole.any():
        return
    pieces = np.lib.stride_tricks.sliding_window_view(flat, m * d)[::d]
    for places in _in_parts(np.flatnonzero(whole)):
        first, last = offsets[nodes[places]], offsets[nodes[places] + 1]
        part = pieces[first].reshape(-1, m, d).astype(out.dtype, copy=False)
        part[np.arange(m)[None] >= (last - first)[:, None]] = 0
        out[places] = part


def _in_parts(places: np.ndarray) -> list[np.ndarray]:
    return np.array_split(places, -(-len(places) // AT_ONCE))


def halves(bits: np.ndarray) -> np.ndarray:
    """64-bit numbers as pairs of 32-bit ones, the form of JAX's keys."""
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return np.stack([high, low], axis=-1).astype(np.uint32)


@dataclass(frozen=True)
class Slots:
    """Directed edges sorted by receiver, then by the hash of the sender's label."""

    receiver: np.ndarray
    sender: np.ndarray
    weight: np.ndarray
    slot: np.ndarray
    reverse: np.ndarray
    """Index of the opposite directed edge."""
    start: np.ndarray
    """Index of each node's first edge."""
    degree: np.ndarray
    node_key: np.ndarray
    slot_key: np.ndarray

    @classmethod
    def of(cls, network: Network, hashes: np.ndarray, seed: int) -> Slots:
        """The slots of all nodes; `hashes` are those of their labels."""
        n, node_key = len(hashes), mixed(mixed(np.uint64(seed)) ^ hashes)
        with double():  # keys have 64 bits
            receiver, sender, rank = _ends(network.source, network.target, ranks(hashes))
            if dispatch.keeps_on_device():
                order = in_order_of(rank, receiver)
            else:  # one number for both keys: a tenth of the time of sorting by two
                order = np.argsort(receiver * n + rank)
            degree = counted(receiver, n)
            start = np.cumsum(degree) - degree
            found = _in_order(order, receiver, sender, network.weight, start, hashes, node_key)
        receiver, sender, weight, slot, reverse, slot_key = map(np.asarray, found)
        return cls(receiver, sender, weight, slot, reverse, start, degree, node_key, slot_key)


@jit_on_gpu
def _ends(source: Array, target: Array, rank: Array) -> tuple[Any, Any, Any]:
    """Receiver and sender of directed edges, and the sender's rank."""
    ends = [xp.asarray(part).astype(np.int64) for part in (source, target)]
    sender = xp.concatenate(ends[::-1])
    return xp.concatenate(ends), sender, xp.asarray(rank)[sender]


@jit_on_gpu
def _in_order(order, receiver, sender, weight, start, hashes, node_key) -> tuple[Any, ...]:
    """Receiver, sender, weight, slot, reverse and key of the edges in their order."""
    e, line = len(weight), xp.arange(len(order))
    place = placed(len(order), order, line, 0, np.int64)
    reverse = xp.concatenate([place[e:], place[:e]])[order]
    weight = xp.concatenate([weight, weight])[order]
    receiver, sender = receiver[order], sender[order]
    key = mixed(xp.asarray(node_key)[receiver] ^ xp.asarray(hashes)[sender])
    return receiver, sender, weight, line - xp.asarray(start)[receiver], reverse, key


def ranks(hashes: np.ndarray) -> np.ndarray:
    """Where each node would stand if all were sorted by the hash of their label."""
    order = np.argsort(hashes, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def mixed(bits: Bits) -> Bits:
    """Scatter 64-bit numbers so that related ones become unrelated (splitmix64's finaliser)."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))
