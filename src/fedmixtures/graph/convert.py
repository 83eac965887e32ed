"""From what users hold (networkx, scipy.sparse, arrays, edge lists) to a `Network`."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures._checks import listed, plain
from fedmixtures.graph.generate import complete
from fedmixtures.graph.network import Network, unique_labels

if TYPE_CHECKING:
    import networkx


def as_network(graph: Any, labels: Iterable[Hashable]) -> Network:
    """Read `graph` as a network on exactly these nodes, in this order.

    Parameters
    ----------
    graph
        A `Network`; a `networkx.Graph` (edge attribute `weight`, 1 where absent); a symmetric
        scipy.sparse or dense matrix whose rows follow `labels`; an iterable of edges `(a, b)` or
        `(a, b, weight)` by label; `"full"` for every pair; None for no edges at all.
    labels
        The nodes that hold data.

    Examples
    --------
    >>> as_network([("a", "b"), ("b", "c", 0.5)], ["a", "b", "c", "d"]).weight
    array([1. , 0.5])
    """
    labels = tuple(labels)
    if graph is None:
        return from_edges((), labels)
    if isinstance(graph, str):
        return _by_name(graph, labels)
    if isinstance(graph, Network):
        return graph.aligned(labels)
    if _is_networkx(graph):
        return from_networkx(graph).aligned(labels)
    if isinstance(graph, np.ndarray) or _is_sparse(graph):
        return from_sparse(graph, labels)
    if isinstance(graph, Iterable) and not hasattr(graph, "columns"):
        return from_edges(graph, labels)
    raise ValueError(
        f"`graph` is a {type(graph).__name__}. Give a networkx Graph, a scipy.sparse or numpy "
        'matrix, an iterable of edges (a, b) or (a, b, weight), "full", or None.'
    )


def from_networkx(graph: networkx.Graph) -> Network:
    """Nodes and edges of a `networkx.Graph`; the edge attribute `weight` is read, else 1."""
    if graph.is_directed() or graph.is_multigraph():
        kind = "directed" if graph.is_directed() else "a multigraph"
        raise ValueError(
            f"`graph` is {kind} ({type(graph).__name__}), but edges here are undirected and "
            "single. Convert it first, for example with networkx.Graph(graph)."
        )
    return from_edges(graph.edges(data="weight", default=1.0), graph.nodes)


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
            f"`graph` is a matrix of shape {shape}, but there are {len(labels)} nodes. Give one "
            "row and one column per node; an edge list goes in as a list of tuples."
        )
    half = csr_array(matrix, dtype=np.float64) / 2
    with np.errstate(invalid="ignore"):  # infinite entries are named by Network's own check
        _check_symmetric(half, labels)
        upper = coo_array(triu(half + half.T))
    present = upper.data != 0
    return Network(labels, upper.row[present], upper.col[present], upper.data[present])


def from_edges(edges: Iterable[Any], labels: Iterable[Hashable] | None = None) -> Network:
    """Build a network from edges `(a, b)` or `(a, b, weight)`, given by label.

    Without `labels`, the nodes are those the edges name, in order of appearance; with `labels`,
    nodes that no edge names are isolated, and an edge to any other node is an error.
    """
    triples = [_edge(edge) for edge in edges]
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


def _by_name(graph: str, labels: tuple[Hashable, ...]) -> Network:
    if graph == "full":
        return complete(labels)
    if graph == "knn":
        raise ValueError(
            '`graph` is "knn", which needs the data. Build it with '
            "nearest_neighbours(points, n_neighbours, labels)."
        )
    raise ValueError(f'`graph` is {graph!r}. The name known here is "full"; None is for no edges.')


def _edge(edge: Any) -> tuple[Any, Any, float]:
    try:
        if isinstance(edge, str):  # "ab" would pass for an edge from 'a' to 'b'
            raise TypeError
        a, b, weight = edge if len(edge) == 3 else (*edge, 1.0)
        hash((a, b))
        return plain(a), plain(b), float(weight)
    except (TypeError, ValueError):
        raise ValueError(
            f"`graph` holds the edge {edge!r}. Give each edge as (a, b) or (a, b, weight), "
            "two node labels and a number."
        ) from None


def _check_symmetric(matrix: Any, labels: tuple[Hashable, ...]) -> None:
    difference = abs(matrix - matrix.T).tocoo()
    scale = abs(matrix).max() if matrix.nnz else 0.0
    uneven = np.flatnonzero(difference.data > 1e-10 * scale)
    if uneven.size:
        row, column = difference.row[uneven[0]], difference.col[uneven[0]]
        raise ValueError(
            f"`graph` is a matrix that is not symmetric: {2 * matrix[row, column]} from "
            f"{labels[row]!r} to {labels[column]!r}, but {2 * matrix[column, row]} back. "
            "Edges are undirected; symmetrise it, for example with (A + A.T) / 2."
        )


def _is_networkx(graph: Any) -> bool:
    # Whoever holds a networkx graph has imported networkx; nobody else should wait for it.
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(graph, networkx.Graph)


def _is_sparse(graph: Any) -> bool:
    from scipy.sparse import issparse

    return issparse(graph)
