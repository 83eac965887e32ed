"""The padded arrays of a group of blocks, copied in whole pieces."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.slots import Slots
from fedmixtures.methods.base import NodeRows


class Group(eqx.Module):
    """Blocks of one shape; all arrays lead with (blocks, nodes)."""

    data: NodeRows
    weight: jax.Array
    """Edge weights (blocks, nodes, slots); zero marks an empty slot."""
    sender: jax.Array
    """Where each slot's neighbour stands among all padded nodes; its own place if empty.

    Where blocks are spread over devices: among those of its own device, with what comes from the
    others behind them (`shards`). So it is with `reverse`.
    """
    reverse: jax.Array
    """Where the neighbour's slot for this very node stands among all padded slots."""
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


@dataclass(frozen=True)
class Padded:
    """All rows once in the precision of the run, with room behind them to read past the end."""

    rows: np.ndarray
    row_weights: np.ndarray
    offsets: np.ndarray
    total_weight: np.ndarray

    @classmethod
    def of(cls, data: NodeData, most: int, dtype: str) -> Padded:
        """With room for pieces of up to `most` rows."""
        n, d = data.rows.shape
        rows, row_weights = np.zeros((n + most, d), dtype), np.zeros(n + most, dtype)
        rows[:n], row_weights[:n] = data.rows, data.row_weights
        return cls(rows, row_weights, data.offsets, data.total_weights())

    def of_nodes(self, nodes: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows (nodes, m, d) and their shares, zero behind each node's last; total weights."""
        first, total = self.offsets[nodes], self.total_weight[nodes]
        behind = np.arange(m)[None] >= (self.offsets[nodes + 1] - first)[:, None]
        rows = _pieces(self.rows, first, m)
        shares = _pieces(self.row_weights[:, None], first, m)[:, :, 0]
        total = total.astype(rows.dtype)
        shares /= total[:, None]
        rows[behind], shares[behind] = 0.0, 0.0
        return rows, shares, total


def _pieces(table: np.ndarray, first: np.ndarray, m: int) -> np.ndarray:
    """(pieces, m, d): the `m` lines from each `first` on, a single copy for each piece."""
    d = table.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(table.reshape(-1), m * d)[::d]
    return windows[first].reshape(len(first), m, d)


def fill(
    plan: Plan,
    first: int,
    held: Padded,
    slots: Slots,
    sender_place: np.ndarray,
    reverse_place: np.ndarray,
) -> Group:
    """The padded arrays of one group, whose first place is `first`.

    `sender_place` and `reverse_place` say for every directed edge what `Group` holds by slot.
    """
    places = plan.places

    def shaped(array: np.ndarray) -> jnp.ndarray:
        """With empty places behind the nodes."""
        if len(array) < places:
            empty = np.zeros((places - len(array), *array.shape[1:]), array.dtype)
            array = np.concatenate([array, empty])
        return jnp.asarray(array.reshape(plan.blocks, plan.width, *array.shape[1:]))

    rows, row_weights, totals = map(shaped, held.of_nodes(plan.nodes, plan.rows))
    slot = np.arange(plan.slots)
    used = slot[None] < slots.degree[plan.nodes][:, None]
    cell = np.nonzero(used)
    edge = (slots.start[plan.nodes][:, None] + slot[None])[used]

    def per_slot(values: np.ndarray, dtype) -> np.ndarray:
        table = np.zeros(used.shape, dtype)
        table[used] = values
        return table

    sender = np.repeat((first + np.arange(places, dtype=np.int32))[:, None], plan.slots, axis=1)
    sender[cell] = sender_place[edge]
    return Group(
        NodeRows(rows, row_weights, totals),
        shaped(per_slot(slots.weight[edge], held.rows.dtype)),
        shaped(sender),
        shaped(per_slot(reverse_place[edge], np.int32)),
        shaped(_halves(slots.node_key[plan.nodes])),
        shaped(_halves(per_slot(slots.slot_key[edge], np.uint64))),
    )


def _halves(bits: np.ndarray) -> np.ndarray:
    """64-bit numbers as pairs of 32-bit ones, the form of JAX's keys."""
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return np.stack([high, low], axis=-1).astype(np.uint32)
