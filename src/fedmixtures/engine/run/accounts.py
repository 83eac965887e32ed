"""What nodes told of their slots, as one array per edge of the network."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures.engine.layout.blocks import Layout, on_host
from fedmixtures.engine.run.runner import gather
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Account


def account_of_groups(answers: tuple[Any, ...], layout: Layout, network: Network) -> Account | None:
    """Put together what a program answered for the nodes of every group; None if nothing."""
    if answers[0] is None:
        return None
    nodes = gather(tuple(of_nodes for of_nodes, _ in answers), layout)
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
    of_slots = {name: _present([a[1][name] for a in answers], layout) for name in answers[0][1]}
    ends = np.concatenate(receiver), np.concatenate(sender)
    return Account(nodes, by_edge(of_slots, *ends, network))


def by_edge(
    values: dict[str, np.ndarray], receiver: np.ndarray, sender: np.ndarray, network: Network
) -> dict[str, np.ndarray]:
    """Values of directed edges as (edges, 2, ...): the view of the source, then of the target."""
    keys = network.source.astype(np.int64) * network.n_nodes + network.target
    low, high = np.minimum(receiver, sender), np.maximum(receiver, sender)
    edge = np.searchsorted(keys, low.astype(np.int64) * network.n_nodes + high)
    end = np.where(receiver < sender, 0, 1)  # networks store the smaller position as the source
    edges = {}
    for name, array in values.items():
        edges[name] = np.zeros((network.n_edges, 2, *array.shape[1:]), array.dtype)
        edges[name][edge, end] = array
    return edges


def _present(per_group: list, layout: Layout) -> np.ndarray:
    """Values of all slots that hold a neighbour, group after group."""
    parts = []
    for values, group in zip(per_group, layout.groups, strict=True):
        flat = on_host(values)
        flat = flat.reshape(-1, *flat.shape[3:])
        parts.append(flat[on_host(group.weight).reshape(-1) > 0])
    return np.concatenate(parts)
