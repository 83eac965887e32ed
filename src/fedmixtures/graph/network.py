"""Who listens to whom: nodes by label, undirected edges by position; from whatever users hold."""

from __future__ import annotations

import sys
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
    check_symmetric,
    edge_arrays,
    plain_edge,
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
        parts: dict[int, list[Hashable]] = {}
        for label, number in zip(self.labels, self.parts().tolist(), strict=True):
            parts.setdefault(number, []).append(label)
        return [tuple(members) for members in parts.values()]

    def parts(self, edges: np.ndarray | None = None) -> np.ndarray:
        """Number of the connected part of every node, over all edges or those marked in `edges`."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        used = np.ones(self.n_edges, bool) if edges is None else edges
        ends = self.source[used], self.target[used]
        graph = csr_array((np.ones(len(ends[0])), ends), (self.n_nodes, self.n_nodes))
        return connected_components(graph, directed=False)[1]

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

    @staticmethod
    def from_networkx(graph: networkx.Graph) -> Network:
        """Nodes and edges of a `networkx.Graph`; the edge attribute `weight` is read, else 1."""
        if graph.is_directed() or graph.is_multigraph():
            kind = "directed" if graph.is_directed() else "a multigraph"
            raise ValueError(
                f"`graph` is {kind} ({type(graph).__name__}), but edges here are undirected and "
                "single. Convert it first, for example with networkx.Graph(graph)."
            )
        return Network.from_edges(graph.edges(data="weight", default=1.0), graph.nodes)

    @staticmethod
    def from_sparse(matrix: Any, labels: Iterable[Hashable] | None = None) -> Network:
        """Edges where a symmetric matrix (scipy.sparse or dense) is not zero, with those weights.

        Rows and columns follow `labels`, by default `0 .. n-1`. Differences between the two halves
        within rounding are averaged away; larger ones are an error.
        """
        from scipy.sparse import coo_array, csr_array, triu

        shape = np.shape(matrix)
        labels = tuple(range(*shape[:1]) if labels is None else labels)
        if shape != (len(labels), len(labels)):
            raise ValueError(
                f"`graph` is a matrix of shape {shape}, but there are {len(labels)} nodes. Give "
                "one row and column per node; an edge list goes in as a list of tuples."
            )
        half = csr_array(matrix, dtype=np.float64) / 2
        with np.errstate(invalid="ignore"):  # infinite entries are named by Network's own check
            check_symmetric(half, labels)
            upper = coo_array(triu(half + half.T))
        present = upper.data != 0
        return Network(labels, upper.row[present], upper.col[present], upper.data[present])

    @staticmethod
    def from_edges(edges: Iterable[Any], labels: Iterable[Hashable] | None = None) -> Network:
        """Build a network from edges `(a, b)` or `(a, b, weight)`, given by label.

        Without `labels`, the nodes are those the edges name, in order of appearance; with `labels`,
        nodes that no edge names are isolated, and an edge to any other node is an error.
        """
        triples = [plain_edge(edge) for edge in edges]
        if labels is None:
            labels = dict.fromkeys(end for a, b, _ in triples for end in (a, b))
        nodes = unique_labels(labels)
        position = {label: i for i, label in enumerate(nodes)}
        for a, b, _ in triples:
            if a not in position or b not in position:
                unknown = [end for end in dict.fromkeys((a, b)) if end not in position]
                raise ValueError(
                    f"edge ({a!r}, {b!r}) names {listed(unknown)}, not among the {len(position)} "
                    f"nodes ({listed(nodes)}). Correct the label or remove the edge."
                )
        source = np.array([position[a] for a, _, _ in triples], dtype=np.int64)
        target = np.array([position[b] for _, b, _ in triples], dtype=np.int64)
        return Network(nodes, source, target, np.array([w for *_, w in triples], dtype=float))

    @cached_property
    def _position_of(self) -> dict[Hashable, int]:
        return {label: position for position, label in enumerate(self.labels)}


def as_network(graph: Any, labels: Iterable[Hashable]) -> Network:
    """Read `graph` as a network on exactly these nodes, in this order.

    Parameters
    ----------
    graph
        A `Network`; a `networkx.Graph` (edge attribute `weight`, 1 where absent); a symmetric
        scipy.sparse or dense matrix whose rows follow `labels`; an iterable of edges `(a, b)` or
        `(a, b, weight)` by label; `"full"` for every pair; `"none"` or None for no edges.
    labels
        The nodes that hold data.

    Examples
    --------
    >>> as_network([("a", "b"), ("b", "c", 0.5)], ["a", "b", "c", "d"]).weight
    array([1. , 0.5])
    """
    labels = tuple(labels)
    if graph is None or (isinstance(graph, str) and graph == "none"):
        return Network.from_edges((), labels)
    if isinstance(graph, str):
        if graph == "full":
            return complete(labels)
        raise ValueError(
            f'`graph` is {graph!r}. Names known here are "full" and "none", for no edges; "knn" '
            "needs the data: nearest_neighbours(points, n_neighbours, labels)."
        )
    if isinstance(graph, Network):
        return graph.aligned(labels)
    # Whoever holds a networkx graph has imported networkx; nobody else should wait for it.
    if "networkx" in sys.modules and isinstance(graph, sys.modules["networkx"].Graph):
        return Network.from_networkx(graph).aligned(labels)
    from scipy.sparse import issparse

    if isinstance(graph, np.ndarray) or issparse(graph):
        return Network.from_sparse(graph, labels)
    if isinstance(graph, Iterable) and not hasattr(graph, "columns"):
        return Network.from_edges(graph, labels)
    raise ValueError(
        f"`graph` is a {type(graph).__name__}. Give a networkx Graph, a scipy.sparse or numpy "
        'matrix, an iterable of edges (a, b) or (a, b, weight), "full", or None.'
    )


def complete(labels: Iterable[Hashable]) -> Network:
    """Every node is joined to every other."""
    labels = tuple(labels)
    source, target = np.triu_indices(len(labels), 1)
    return Network(labels, source, target, np.ones(len(source)))
