"""The block of a protocol cut into parts, one for each device, and what they hear of each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np

from fedmixtures.engine.layout.blocks import SLOT_COST
from fedmixtures.engine.layout.shards import cut_into_parts, n_cut_edges
from fedmixtures.engine.solution import Shards
from fedmixtures.graph.network import Network
from fedmixtures.methods.protocol import Block


@dataclass(frozen=True, eq=False)
class Part:
    """The nodes of one device as a block of their own, and where they stand in the whole one."""

    block: Block
    nodes: np.ndarray
    """Positions of its nodes, ascending."""
    heard: np.ndarray
    """Nodes elsewhere that neighbour them: their messages stand behind those of its own nodes."""
    edges: np.ndarray
    """Numbers of its edges."""

    @property
    def lines(self) -> np.ndarray:
        """Nodes whose messages it has, line by line."""
        return np.concatenate([self.nodes, self.heard])


def parts_of(block: Block, network: Network, n_parts: int) -> tuple[list[Part], Shards]:
    """The nodes of a whole block in at most so many parts of about equal work."""
    work = block.data.counts + SLOT_COST * network.degree
    label = cut_into_parts(network, work, min(n_parts, network.n_nodes))
    there, label = np.unique(label, return_inverse=True)
    parts = [_part(block, label, number) for number in range(len(there))]
    load = np.bincount(label, work)
    heard = sum(len(part.heard) for part in parts)
    cut = n_cut_edges(network, label)
    share = float(load.max() / load.mean())
    return parts, Shards(len(parts), network.n_edges, cut, heard, share)


def _part(block: Block, label: np.ndarray, number: int) -> Part:
    here = label == number
    nodes, edges = np.flatnonzero(here), np.flatnonzero(here[block.receiver])
    sender = block.sender[edges]
    heard = np.unique(sender[~here[sender]])
    line = np.empty(len(label), dtype=np.int64)
    line[nodes] = np.arange(len(nodes))
    line[heard] = len(nodes) + np.arange(len(heard))
    place = np.full(len(block.receiver), -1)
    place[edges] = np.arange(len(edges))
    start = block.start
    some = replace(
        block,
        data=block.data.at(nodes),
        n_components=block.n_components[nodes],
        most_components=int(block.n_components.max()),
        start=None if start is None else jax.tree.map(lambda of: of[nodes], start),
        line=np.arange(len(nodes)),
        receiver=line[block.receiver[edges]],
        sender=line[sender],
        weight=block.weight[edges],
        neighbour=block.neighbour[edges],
        reverse=place[block.reverse[edges]],
    )
    return Part(some, nodes, heard, edges)
