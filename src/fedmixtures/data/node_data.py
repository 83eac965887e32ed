"""Rows grouped by the node that holds them, and where cells are missing (NaN), by what they lack.

Rows of a node that lack the same cells stand together, in *segments* of one length, so that a
covariance is factorised once per segment and not once per row. A segment that is not full has rows
of weight zero at its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures import _checks
from fedmixtures._ties import first_least
from fedmixtures._types import Array, Label
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.moments import column_moments

LENGTHS = (1, 2, 4, 8, 16, 32)
"""Of segments; powers of two, so that padded numbers of rows are multiples of them."""
MOST_DONORS = 1000  # rows of a node that others are filled from


@dataclass(frozen=True)
class NodeData:
    """The rows of all nodes in one array, node after node, without any padding.

    Rows of weight zero are left out: they count as absent everywhere.
    """

    labels: tuple[Label, ...]
    rows: Any  # NumPy's, or a device's within a fit that runs there
    row_weights: Any
    offsets: np.ndarray  # node i holds rows ``offsets[i]`` to ``offsets[i + 1]``
    source_index: np.ndarray  # where each row stood in the table it came from
    segment: int = 0  # rows that stand together and lack the same cells, once put `by_pattern`
    categories: tuple[int, ...] = ()
    """Sizes of the blocks of one-hot columns, which come last; see `data/categories.py`."""

    @classmethod
    def from_rows(cls, X: np.ndarray, nodes: Any = None, sample_weight: Any = None) -> NodeData:
        """Group the rows of `X` by their node label; without labels all rows are one node's."""
        X = np.asarray(X)
        weights = _row_weights(sample_weight, len(X))
        labels, index = group_labels(nodes, len(X))
        small = np.int32 if len(X) < 2**31 else np.int64  # one such number is kept for every row
        order = np.flatnonzero(weights > 0).astype(small)
        index = index[order] if len(order) < len(X) else index
        counts = np.bincount(index, minlength=len(labels))
        in_place = (index[1:] >= index[:-1]).all()  # node after node already
        if not in_place:
            order = order[np.argsort(index, kind="stable")]
        if (counts == 0).any():
            empty = [labels[i] for i in np.flatnonzero(counts == 0)]
            raise ValueError(
                f"`sample_weight` is zero for every row of node {_checks.listed(empty)}. "
                "Drop the node or give it a positive weight."
            )
        offsets = np.concatenate([[0], np.cumsum(counts)])
        if in_place and len(order) == len(X):
            return cls(labels, X, weights, offsets, order)
        return cls(labels, X[order], weights[order], offsets, order)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.labels)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.rows.shape[1]

    @property
    def n_continuous(self) -> int:
        """Number of features before the one-hot columns: those that covariances are of."""
        return self.n_features - sum(self.categories)

    @property
    def continuous(self) -> NodeData:
        """A copy of these rows without the one-hot columns."""
        if not self.categories:
            return self
        return replace(self, rows=self.rows[:, : self.n_continuous], categories=())

    @property
    def counts(self) -> np.ndarray:
        """Rows of each node."""
        return np.diff(self.offsets)

    @property
    def node_index(self) -> np.ndarray:
        """Position of the node of each row."""
        return np.repeat(np.arange(self.n_nodes), self.counts)

    def means(self) -> np.ndarray:
        """(nodes, features) mean of the cells that are there; zero where none is."""
        cells = np.add.reduceat(~np.isnan(self.rows), self.offsets[:-1], dtype=np.int64)
        sums = np.add.reduceat(np.nan_to_num(self.rows), self.offsets[:-1])
        return sums / np.maximum(cells, 1)

    @cached_property
    def label_hashes(self) -> np.ndarray:
        """`label_hash` of every node: worked out once, for a million nodes it takes a second."""
        labels = self.labels
        if any(issubclass(kind, np.generic) for kind in set(map(type, labels))):
            labels = [_checks.plain(label) for label in labels]
        return np.frombuffer(_digests(labels), ">u8").astype(np.uint64)

    def of(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and row weights of the node at this position."""
        span = slice(self.offsets[position], self.offsets[position + 1])
        return self.rows[span], self.row_weights[span]

    def subset(self, keep: np.ndarray) -> NodeData:
        """Some of the rows, chosen in the order they came in; a node without any is left out."""
        inside = keep[self.source_index]
        counts = np.bincount(self.node_index[inside], minlength=self.n_nodes)
        labels = tuple(label for label, n in zip(self.labels, counts, strict=True) if n)
        offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
        place = np.cumsum(keep) - 1
        source = place[self.source_index[inside]].astype(self.source_index.dtype)
        columns = self.rows[inside], self.row_weights[inside]
        return NodeData(labels, *columns, offsets, source, categories=self.categories)

    def at(self, nodes: Sequence[int] | np.ndarray) -> NodeData:
        """Some of the nodes, by position."""
        spans = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in nodes]
        index, offsets = np.concatenate(spans), np.cumsum([0, *map(len, spans)])
        labels = tuple(self.labels[i] for i in nodes)
        columns = self.rows[index], self.row_weights[index]
        source, kinds = self.source_index[index], self.categories
        return NodeData(labels, *columns, offsets, source, categories=kinds)

    def in_order(self) -> NodeData:
        """Every node's rows sorted: an order of their own, whatever order they came in."""
        order = np.lexsort((*self.rows.T[::-1], self.node_index))
        columns = self.rows[order], self.row_weights[order]
        source, kinds = self.source_index[order], self.categories
        return NodeData(self.labels, *columns, self.offsets, source, categories=kinds)

    @cached_property
    def has_gaps(self) -> bool:
        """Whether cells are missing; of very many rows the look takes a tenth of a second."""
        return bool(np.isnan(self.rows).any())

    def total_weights(self) -> np.ndarray:
        """Sum of the row weights of each node."""
        return self._total_weights

    @cached_property
    def _total_weights(self) -> np.ndarray:
        return np.add.reduceat(self.row_weights, self.offsets[:-1])


def _distinct(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct labels and the place of each row's among them; sorts only what is not sorted yet."""
    if labels.dtype.kind in "iu" and (labels[1:] >= labels[:-1]).all():
        new = np.ones(len(labels), dtype=bool)
        np.not_equal(labels[1:], labels[:-1], out=new[1:])
        return labels[new], np.cumsum(new) - 1
    return np.unique(labels, return_inverse=True)


def _missing(labels: np.ndarray) -> np.ndarray:
    """Where there is no label: None, NaN and their like."""
    if labels.dtype.kind in "biuSU":
        return np.zeros(0, dtype=bool)
    if labels.dtype.kind in "fc":
        return np.isnan(labels)
    return np.array([label is None or label != label for label in labels.tolist()], dtype=bool)


def group_labels(nodes: Any, n_rows: int) -> tuple[tuple[Label, ...], np.ndarray]:
    """Distinct labels (sorted where they can be) and the position of each row's label in them."""
    if nodes is None:
        return (0,), np.zeros(n_rows, dtype=np.int64)
    array = np.asarray(nodes)
    if array.ndim != 1 or len(array) != n_rows:
        found = f"{len(array)} labels" if array.ndim == 1 else f"shape {array.shape}"
        raise ValueError(
            f"`nodes` has {found} but X has {n_rows} rows. Give one node label per row."
        )
    missing = _missing(array)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise ValueError(
            f"`nodes` is missing for {missing.sum()} rows, the first is row {row}. "
            "Give every row a node label or drop it."
        )
    try:
        distinct, index = _distinct(array)
        labels = [_checks.plain(label) for label in distinct]
    except TypeError:  # labels of types that do not compare: keep the order of appearance
        labels = list(dict.fromkeys(array.tolist()))
        position = {label: i for i, label in enumerate(labels)}
        index = np.array([position[label] for label in array.tolist()])
    index = index.reshape(-1)
    for i, label in enumerate(labels):
        if isinstance(label, str) and not label.strip():
            rows = np.flatnonzero(index == i)
            raise ValueError(
                f"`nodes` is empty ({label!r}) for {len(rows)} rows, the first is row {rows[0]}. "
                "Give every row a node label or drop it."
            )
    return tuple(labels), index


def label_hash(label: Label) -> int:
    """A stable 64-bit number for a node label: what random keys and slot order come from."""
    return int.from_bytes(_digests([_checks.plain(label)]), "big")


def _digests(labels: Sequence[Label]) -> bytes:
    """Eight bytes of each, one after another."""
    hashed = [hashlib.blake2b(repr(label).encode(), digest_size=8).digest() for label in labels]
    return b"".join(hashed)


def _row_weights(sample_weight: Any, n_rows: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(n_rows)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.shape != (n_rows,):
        raise ValueError(
            f"`sample_weight` has shape {weights.shape} but X has {n_rows} rows. "
            "Give one weight per row."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        row = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise ValueError(
            f"`sample_weight` is {weights[row]:g} at row {row}. "
            "Give finite weights that are zero or positive."
        )
    return weights


def rows_by_node(nodes: ArrayLike) -> dict[Hashable, np.ndarray]:
    """Positions of every node's rows, by node label; labels sorted where they can be."""
    labels, node_of_row = group_labels(nodes, len(np.asarray(nodes)))
    order = np.argsort(node_of_row, kind="stable")
    starts = np.cumsum(np.bincount(node_of_row))[:-1]
    return dict(zip(labels, np.split(order, starts)[: len(labels)], strict=True))


# Missing cells -----------------------------------------------------------------------------------


def by_pattern(data: NodeData) -> NodeData:
    """Rows of each node ordered by their pattern of gaps, with `segment`; unchanged without gaps.

    What fills a segment up has weight zero and the source -1.
    """
    if data.segment or not data.has_gaps:
        return data
    missing = np.isnan(data.rows)
    bits = np.packbits(missing, axis=1)
    order = np.lexsort((*bits.T, data.node_index))
    bits, node = bits[order], data.node_index[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (node[1:] != node[:-1]) | (bits[1:] != bits[:-1]).any(1)
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(order)))
    length = _stretch_length(size, data.n_features)
    room = -(-size // length) * length
    begin = np.cumsum(room) - room
    place = np.arange(len(order)) + np.repeat(begin - first, size)
    rows = np.repeat(data.rows[order[first]], room, axis=0)
    weights, source = np.zeros(len(rows)), np.full(len(rows), -1)
    rows[place] = data.rows[order]
    weights[place], source[place] = data.row_weights[order], data.source_index[order]
    counts = np.bincount(node[first], room, data.n_nodes).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return NodeData(data.labels, rows, weights, offsets, source, length, data.categories)


def _stretch_length(sizes: np.ndarray, n_features: int) -> int:
    """The length that costs least for patterns of so many rows.

    A segment costs its rows and a factorisation per component, taken as worth 4 + 0.4 d^2 rows (as
    for the tiles of Trust-then-Pool: an estimate).
    """
    price = 4 + 0.4 * n_features**2
    cost = [(-(-sizes // length)).sum() * (length + price) for length in LENGTHS]
    return LENGTHS[int(np.argmin(cost))]


def with_gaps(rows: np.ndarray, data: NodeData) -> Array | IncompleteRows:
    """Padded rows (nodes, m, d), `IncompleteRows` if `data` has been put `by_pattern`."""
    if not data.segment:
        return rows
    observed = ~np.isnan(rows[:, :: data.segment])
    return IncompleteRows(np.nan_to_num(rows), observed)


def padded(data: NodeData, m: int) -> tuple[Array | IncompleteRows, np.ndarray]:
    """Rows (nodes, m, d) and their counts (nodes, m) of nodes put `by_pattern`; padding is zero."""
    rows, counts = np.zeros((data.n_nodes, m, data.n_features)), np.zeros((data.n_nodes, m))
    for i in range(data.n_nodes):
        own, weight = data.of(i)
        rows[i, : len(own)], counts[i, : len(own)] = own, weight
    return with_gaps(rows, data), counts


def filled(data: NodeData) -> NodeData:
    """Every missing cell from the nearest row of its node that has it: a start for clustering.

    Nearest by the cells both have, in standard deviations. Where a node lacks a whole column, rows
    of all nodes give theirs.
    """
    if not data.has_gaps:
        return data
    missing = np.isnan(data.rows)
    there = ~missing
    centre, variance = column_moments(data.rows)
    scaled = np.nan_to_num((data.rows - centre) / np.sqrt(np.where(variance > 0, variance, 1.0)))
    rows = np.where(there, data.rows, centre)  # where nobody has the cell
    order = np.lexsort((*scaled.T, *there.T, data.node_index))  # whatever order rows came in
    for i in np.unique(data.node_index[missing.any(1)]):
        own = order[data.offsets[i] : data.offsets[i + 1]]
        for column in np.flatnonzero(missing[own].any(0)):
            wanting = own[missing[own, column]]
            donors = own[there[own, column]]
            donors = donors if len(donors) else order[there[order, column]]
            if len(donors):
                donors = donors[:: -(-len(donors) // MOST_DONORS)]
                rows[wanting, column] = rows[_nearest(scaled, there, wanting, donors), column]
    return replace(data, rows=rows)


def _nearest(
    scaled: np.ndarray, there: np.ndarray, wanting: np.ndarray, donors: np.ndarray
) -> np.ndarray:
    """The donor of each wanting row: least mean square over the cells both have; else the first."""
    a, b = there[wanting].astype(float), there[donors].astype(float)
    x, y = scaled[wanting] * a, scaled[donors] * b
    square = np.maximum(x**2 @ b.T + a @ (y**2).T - 2 * x @ y.T, 0.0)
    shared = a @ b.T
    mean = np.where(shared > 0, square / np.maximum(shared, 1), np.inf)
    return donors[first_least(mean, scale=1.0)]
