"""Who listens to whom: nodes by label, undirected edges by position."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures._checks import listed, plain
from fedmixtures.graph.checks import (
    check_each_edge_once,
    check_edges,
    check_same_nodes,
    edge_arrays,
    unique_labels,
)

# scipy and networkx are imported where they are used: importing this package is to stay quick.
if TYPE_CHECKING:
    import networkx
    import scipy.sparse


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """An undirected weighted graph on labelled nodes.

    Edges may be given in any order and direction; they are stored once each, with
    `source < target`, sorted by source and then target, in read-only arrays. So two networks
    that are the same graph on the same order of labels are equal.

    Parameters
    ----------
    labels
        The nodes, by unique hashable labels. Isolated nodes are fine.
    source, target
        The two ends of each edge, as positions into `labels`.
    weight
        How strongly the two ends are coupled; positive and finite.
    """

    labels: tuple[Hashable, ...]
    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray

    def __post_init__(self) -> None:
        labels = unique_labels(self.labels)
        source, target, weight = edge_arrays(self.source, self.target, self.weight)
        check_edges(labels, source, target, weight)
        low, high = np.minimum(source, target), np.maximum(source, target)
        order = np.lexsort((high, low))
        low, high, weight = low[order], high[order], weight[order]
        check_each_edge_once(labels, low, high)
        for array in (low, high, weight):
            array.flags.writeable = False
        for name, value in zip(
            ("labels", "source", "target", "weight"), (labels, low, high, weight), strict=True
        ):
            object.__setattr__(self, name, value)  # the dataclass is frozen from here on

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        return (
            self.labels == other.labels
            and np.array_equal(self.source, other.source)
            and np.array_equal(self.target, other.target)
            and np.array_equal(self.weight, other.weight)
        )

    def __hash__(self) -> int:
        return hash((self.labels, self.source.tobytes(), self.target.tobytes()))

    def __repr__(self) -> str:
        return f"Network(n_nodes={self.n_nodes}, n_edges={self.n_edges})"

    @property
    def n_nodes(self) -> int:
        """Number of nodes, isolated ones included."""
        return len(self.labels)

    @property
    def n_edges(self) -> int:
        """Number of undirected edges, each counted once."""
        return len(self.source)

    @cached_property
    def degree(self) -> np.ndarray:
        """Number of neighbours of every node."""
        degree = np.bincount(np.concatenate([self.source, self.target]), minlength=self.n_nodes)
        degree.flags.writeable = False  # all who ask are given the same one
        return degree

    @property
    def weighted_degree(self) -> np.ndarray:
        """Sum of the weights of every node's edges."""
        ends = np.concatenate([self.source, self.target])
        return np.bincount(ends, np.concatenate([self.weight, self.weight]), self.n_nodes)

    def position(self, label: Hashable) -> int:
        """Where `label` stands in `labels`."""
        try:
            return self._position_of[label]
        except KeyError:
            raise ValueError(
                f"`label` is {plain(label)!r}, which is not a node of this network. "
                f"Its nodes are {listed(self.labels)}."
            ) from None

    def neighbours(self, label: Hashable) -> tuple[Hashable, ...]:
        """Labels of the nodes that share an edge with `label`, in the order of `labels`."""
        own = self.position(label)
        found = np.concatenate([self.source[self.target == own], self.target[self.source == own]])
        return tuple(self.labels[i] for i in found)  # lower positions first, each part sorted

    def components(self) -> list[tuple[Hashable, ...]]:
        """Labels of each connected part; parts and labels in the order of `labels`."""
        from scipy.sparse.csgraph import connected_components

        _, part = connected_components(self.adjacency(), directed=False)
        parts: dict[int, list[Hashable]] = {}
        for label, number in zip(self.labels, part.tolist(), strict=True):
            parts.setdefault(number, []).append(label)
        return [tuple(members) for members in parts.values()]

    def aligned(self, labels: Iterable[Hashable]) -> Network:
        """Return the same graph on exactly these labels, in this order.

        This is where graph and data meet: `labels` are the nodes that hold data. A label that
        only one of the two sides knows is an error, never a silent drop.
        """
        wanted = unique_labels(labels)
        if wanted == self.labels:
            return self
        check_same_nodes(wanted, self.labels)
        new_position = np.empty(self.n_nodes, dtype=np.int64)
        new_position[[self._position_of[label] for label in wanted]] = np.arange(len(wanted))
        return Network(wanted, new_position[self.source], new_position[self.target], self.weight)

    def adjacency(self) -> scipy.sparse.csr_array:
        """Symmetric matrix of weights, rows and columns in the order of `labels`."""
        from scipy.sparse import csr_array

        row = np.concatenate([self.source, self.target])
        column = np.concatenate([self.target, self.source])
        weight = np.concatenate([self.weight, self.weight])
        return csr_array((weight, (row, column)), shape=(self.n_nodes, self.n_nodes))

    def to_networkx(self) -> networkx.Graph:
        """Return a `networkx.Graph` with the edge attribute `weight`."""
        import networkx

        graph = networkx.Graph()
        graph.add_nodes_from(self.labels)
        graph.add_weighted_edges_from(
            (self.labels[a], self.labels[b], w)
            for a, b, w in zip(self.source, self.target, self.weight.tolist(), strict=True)
        )
        return graph

    # The next ones import late: converters and generators are written in terms of this class.
    @staticmethod
    def from_networkx(graph: networkx.Graph) -> Network:
        """The network of a networkx graph; the edge attribute `weight` is read."""
        from fedmixtures.graph import convert

        return convert.from_networkx(graph)

    @staticmethod
    def from_sparse(matrix: Any, labels: Iterable[Hashable] | None = None) -> Network:
        """The network of a symmetric matrix of weights, sparse or dense."""
        from fedmixtures.graph import convert

        return convert.from_sparse(matrix, labels)

    @staticmethod
    def from_edges(edges: Iterable[Any], labels: Iterable[Hashable] | None = None) -> Network:
        """The network of (a, b) or (a, b, weight) tuples of node labels."""
        from fedmixtures.graph import convert

        return convert.from_edges(edges, labels)

    @cached_property
    def _position_of(self) -> dict[Hashable, int]:
        return {label: position for position, label in enumerate(self.labels)}
