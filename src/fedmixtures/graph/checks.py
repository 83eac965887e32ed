"""What a graph may be, and what is said of one that is not."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from fedmixtures._checks import listed, plain


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


def edge_arrays(source: Any, target: Any, weight: Any) -> tuple[np.ndarray, ...]:
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


def check_edges(
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


def check_each_edge_once(labels: tuple[Hashable, ...], low: np.ndarray, high: np.ndarray) -> None:
    """Refuse repeated edges; needs the edges sorted with `low < high`."""
    again = np.flatnonzero((np.diff(low) == 0) & (np.diff(high) == 0))
    if again.size:
        a, b = labels[low[again[0]]], labels[high[again[0]]]
        raise ValueError(
            f"edge ({a!r}, {b!r}) is given more than once. Edges are undirected: "
            "give each once, in either direction."
        )


def check_same_nodes(with_data: tuple[Hashable, ...], in_graph: tuple[Hashable, ...]) -> None:
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


def plain_edge(edge: Any) -> tuple[Any, Any, float]:
    """An edge (a, b) or (a, b, weight) as two labels and a number."""
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


def check_symmetric(matrix: Any, labels: tuple[Hashable, ...]) -> None:
    """Refuse a matrix that gives an edge two weights."""
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
