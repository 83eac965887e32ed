"""Who listens to whom: nodes by label, undirected edges by position."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures._checks import listed, plain

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
        source, target, weight = _edge_arrays(self.source, self.target, self.weight)
        _check_edges(labels, source, target, weight)
        low, high = np.minimum(source, target), np.maximum(source, target)
        order = np.lexsort((high, low))
        low, high, weight = low[order], high[order], weight[order]
        _check_each_edge_once(labels, low, high)
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
        _check_same_nodes(wanted, self.labels)
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


# What a graph may be, and what is said when it is not --------------------------------------------


def unique_labels(labels: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Labels as a tuple of plain Python values; an error names those that repeat."""
    own = tuple(plain(label) for label in labels)
    try:
        if len(set(own)) == len(own):
            return own
    except TypeError as error:
        raise ValueError(f"`labels` must be hashable ({error}). Use strings or integers.") from None
    seen: set[Hashable] = set()
    repeated = [label for label in own if label in seen or seen.add(label)]
    raise ValueError(
        f"`labels` names {listed(dict.fromkeys(repeated))} more than once. "
        "Give every node one label of its own."
    )


def _edge_arrays(source: Any, target: Any, weight: Any) -> tuple[np.ndarray, ...]:
    """Return the three edge arrays with one entry per edge, as int64, int64 and float64."""
    ends = [np.asarray(end) for end in (source, target)]
    weight = np.asarray(weight, dtype=np.float64)
    shapes = [array.shape for array in (*ends, weight)]
    if weight.ndim != 1 or len(set(shapes)) > 1:
        raise ValueError(
            "`source`, `target` and `weight` must be one-dimensional and equally long, but have "
            f"the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}. Give one entry per edge."
        )
    for name, end in zip(("source", "target"), ends, strict=True):
        if end.size and not np.issubdtype(end.dtype, np.integer):
            raise ValueError(
                f"`{name}` holds {end.dtype} values. Give integer positions into `labels`; "
                "for edges by label use from_edges."
            )
    return ends[0].astype(np.int64), ends[1].astype(np.int64), weight


def _check_edges(
    labels: tuple[Hashable, ...], source: np.ndarray, target: np.ndarray, weight: np.ndarray
) -> None:
    """Refuse positions outside `labels`, self-loops and weights that do not couple."""
    n = len(labels)
    for name, end in (("source", source), ("target", target)):
        outside = end[(end < 0) | (end >= n)]
        if outside.size:
            raise ValueError(
                f"`{name}` holds position {outside[0]}, but there are {n} nodes. "
                f"Positions run from 0 to {n - 1}."
            )
    loops = np.flatnonzero(source == target)
    if loops.size:
        label = labels[source[loops[0]]]
        raise ValueError(
            f"edge ({label!r}, {label!r}) is a self-loop. Remove it: a node always knows itself."
        )
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))
    if bad.size:
        a, b, w = labels[source[bad[0]]], labels[target[bad[0]]], weight[bad[0]]
        raise ValueError(
            f"edge ({a!r}, {b!r}) has weight {w}. Weights must be positive and finite; "
            "leave the edge out where there is no coupling."
        )


def _check_each_edge_once(labels: tuple[Hashable, ...], low: np.ndarray, high: np.ndarray) -> None:
    """Refuse repeated edges; needs the edges sorted with `low < high`."""
    again = np.flatnonzero((np.diff(low) == 0) & (np.diff(high) == 0))
    if again.size:
        a, b = labels[low[again[0]]], labels[high[again[0]]]
        raise ValueError(
            f"edge ({a!r}, {b!r}) is given more than once. Edges are undirected: "
            "give each once, in either direction."
        )


def _check_same_nodes(with_data: tuple[Hashable, ...], in_graph: tuple[Hashable, ...]) -> None:
    """Refuse nodes that only the data or only the graph knows."""
    known, holding = set(in_graph), set(with_data)
    if missing := [label for label in with_data if label not in known]:
        hold, are, them, their = _verbs(missing)
        raise ValueError(
            f"{listed(missing)} {hold} data but {are} not in `graph`. "
            f"Add {them} (isolated nodes are fine) or drop {their} rows."
        )
    if idle := [label for label in in_graph if label not in holding]:
        hold, are, them, _ = _verbs(idle)
        raise ValueError(
            f"{listed(idle)} {are} in `graph` but {hold} no data. "
            f"Remove {them} from the graph or give {them} rows."
        )


def _verbs(labels: list[Hashable]) -> tuple[str, str, str, str]:
    several = ("hold", "are", "them", "their")
    return several if len(labels) > 1 else ("holds", "is", "it", "its")
