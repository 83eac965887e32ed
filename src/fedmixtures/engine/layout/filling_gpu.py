"""`slots` and `filling` for very many nodes, done by the GPU itself: the same arrays.

A million nodes have ten million slots and fifty million rows; the host's memory would take longer
to put them in order than the whole fit takes on the GPU. Lengths are rounded up, so that other data
of about the same size are no new shapes to compile.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.filling import Group, Plan, mixed, ranks
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import jit
from fedmixtures.methods.programs import NodeRows
from fedmixtures.mixture.arithmetic import double


class _Edges(eqx.Module):
    """Edges sorted by receiver, in arrays of the device."""

    sender: Array
    weight: Array


class _Nodes(eqx.Module):
    """Where everything of a node begins, in the order of the nodes."""

    first_row: Array
    n_rows: Array
    total_weight: Array
    first_edge: Array
    degree: Array
    position: Array
    key: Array
    hash: Array


def fill_on_gpu(
    plans: list[Plan],
    data: NodeData,
    network: Network,
    position: np.ndarray,
    dtype: str,
    seed: int,
    room: Any,
) -> list[Group]:
    """The padded arrays of all groups; `room` rounds lengths up."""
    n, degree = data.n_nodes, network.degree
    small = lambda part: np.asarray(part).astype(np.int32)
    with double():  # for the 64 bits of the keys; all else has types of its own
        rows = jax.device_put(_longer(data.rows, room(len(data.rows)), 0, dtype))
        row_weights = jax.device_put(_longer(data.row_weights, len(rows), 0, dtype))
        hashes = data.label_hashes  # a million names while rows are copied
        nodes = _Nodes(
            small(data.offsets[:-1]),
            small(data.counts),
            data.total_weights().astype(dtype),
            small(np.cumsum(degree) - degree),
            small(degree),
            small(position),
            np.asarray(mixed(mixed(np.uint64(seed)) ^ hashes)),
            hashes,
        )
        nodes = jax.tree.map(jnp.asarray, nodes)
        source, target = (
            _longer(end, room(network.n_edges), n, np.int32)
            for end in (network.source, network.target)
        )
        weight = _longer(network.weight, len(source), 0, dtype)
        rank = _longer(ranks(hashes), n + 1, n, np.int32)
        edges = _sorted_edges(source, target, weight, rank)
        groups, first = [], 0
        for plan in plans:
            places = plan.blocks * plan.width
            members = _longer(plan.nodes, places, -1, np.int32)
            shape = (plan.blocks, plan.width, plan.rows, plan.slots)
            groups.append(_filled(nodes, edges, rows, row_weights, members, np.int32(first), shape))
            first += places
        return groups


def _longer(array: np.ndarray, length: int, filler: int, dtype: Any) -> np.ndarray:
    """The array in another precision with `filler` behind it, in one go over it."""
    longer = np.empty((length, *array.shape[1:]), dtype)
    longer[: len(array)], longer[len(array) :] = array, filler
    return longer


@jit
def _sorted_edges(source, target, weight, rank) -> _Edges:
    """Directed edges sorted by receiver, then by the rank of the sender; filler comes last."""
    receiver, sender = jnp.concatenate([source, target]), jnp.concatenate([target, source])
    number = jnp.arange(len(receiver), dtype=jnp.int32)
    _, _, order = jax.lax.sort((receiver, jnp.asarray(rank)[sender], number), num_keys=2)
    return _Edges(sender[order], jnp.concatenate([weight, weight])[order])


@jit
def _filled(nodes: _Nodes, edges: _Edges, rows, row_weights, members, first, shape) -> Group:
    """`filling.fill`: every cell looks up what belongs there."""
    blocks, width, m, slots = shape
    members = jnp.asarray(members)
    there, node = members >= 0, jnp.maximum(members, 0)
    column = jnp.arange(m, dtype=jnp.int32)[None]
    held = there[:, None] & (column < nodes.n_rows[node][:, None])
    row = jnp.where(held, nodes.first_row[node][:, None] + column, 0)
    total = jnp.where(there, nodes.total_weight[node], 0)
    shares = row_weights[row] / jnp.where(there, total, 1)[:, None]

    slot = jnp.arange(slots, dtype=jnp.int32)[None]
    used = there[:, None] & (slot < nodes.degree[node][:, None])
    edge = jnp.where(used, nodes.first_edge[node][:, None] + slot, 0)
    sender = jnp.where(used, edges.sender[edge], 0)
    place = (first + jnp.arange(blocks * width, dtype=jnp.int32))[:, None]
    node_key = jnp.where(there, nodes.key[node], 0)
    slot_key = jnp.where(used, mixed(nodes.key[node][:, None] ^ nodes.hash[sender]), 0)
    shaped = lambda part: part.reshape(blocks, width, *part.shape[1:])
    return Group(
        NodeRows(
            shaped(jnp.where(held[..., None], rows[row], 0)),
            shaped(jnp.where(held, shares, 0)),
            shaped(total),
        ),
        shaped(jnp.where(used, edges.weight[edge], 0)),
        shaped(jnp.where(used, nodes.position[sender], place)),
        shaped(_halves(node_key)),
        shaped(_halves(slot_key)),
    )


def _halves(bits: jax.Array) -> jax.Array:
    """64-bit numbers as pairs of 32-bit ones, the form of JAX's keys."""
    return jnp.stack([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], -1).astype(jnp.uint32)
