"""What nodes can tell of a run beside their mixtures, by node and by edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures.engine.layout.blocks import Layout, on_host
from fedmixtures.engine.run.rounds import gather
from fedmixtures.graph.network import Network


@dataclass(frozen=True)
class Account:
    """Named arrays: one line per node, and per edge one for each of its ends, source first."""

    nodes: dict[str, np.ndarray]
    edges: dict[str, np.ndarray]


def account(told: tuple[Any, ...], layout: Layout, network: Network) -> Account | None:
    """Put together what a program told of the nodes of every group; None if that is nothing."""
    if told[0] is None:
        return None
    nodes = gather(tuple(of_nodes for of_nodes, _ in told), layout)
    node_at = np.full(layout.n_places, -1)
    node_at[layout.position] = np.arange(len(layout.position))
    receiver, sender, first = [], [], 0
    for g, group in enumerate(layout.groups):
        blocks, width, slots = group.weight.shape
        places = np.repeat(first + np.arange(blocks * width), slots)
        present = on_host(group.weight).reshape(-1) > 0
        receiver.append(node_at[places[present]])
        sender.append(layout.neighbours(g).reshape(-1)[present])
        first += blocks * width
    of_slots = {name: _present([t[1][name] for t in told], layout) for name in told[0][1]}
    receiver, sender = np.concatenate(receiver), np.concatenate(sender)
    edge = _edge_numbers(network, receiver, sender)
    end = np.where(receiver < sender, 0, 1)  # networks store the smaller position as the source
    edges = {}
    for name, values in of_slots.items():
        edges[name] = np.zeros((network.n_edges, 2, *values.shape[1:]), values.dtype)
        edges[name][edge, end] = values
    return Account(nodes, edges)


def _present(per_group: list, layout: Layout) -> np.ndarray:
    """Values of all slots that hold a neighbour, group after group."""
    parts = []
    for values, group in zip(per_group, layout.groups, strict=True):
        flat = on_host(values)
        flat = flat.reshape(-1, *flat.shape[3:])
        parts.append(flat[on_host(group.weight).reshape(-1) > 0])
    return np.concatenate(parts)


def _edge_numbers(network: Network, receiver: np.ndarray, sender: np.ndarray) -> np.ndarray:
    """Position of each pair among the sorted edges of the network."""
    n = network.n_nodes
    keys = network.source.astype(np.int64) * n + network.target
    low, high = np.minimum(receiver, sender), np.maximum(receiver, sender)
    return np.searchsorted(keys, low.astype(np.int64) * n + high)
