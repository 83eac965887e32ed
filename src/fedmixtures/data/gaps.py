"""Rows with missing cells (NaN): laid out by what they lack, and filled where a start needs them.

Rows of a node that lack the same cells stand together, in *stretches* of one length, so that a
covariance is factorised once per stretch and not once per row. A stretch that is not full has rows
of weight zero at its end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmixtures._ties import first_least
from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.mixture.density import GappyRows
from fedmixtures.mixture.moments import column_moments

LENGTHS = (1, 2, 4, 8, 16, 32)
"""Of stretches; powers of two, so that padded numbers of rows are multiples of them."""
MOST_DONORS = 1000
"""Rows of a node that others are filled from."""


def by_pattern(data: NodeData) -> NodeData:
    """The same rows by pattern of gaps, with `stretch`; as they are where nothing is missing.

    What fills a stretch up has weight zero and the source -1.
    """
    missing = np.isnan(data.rows)
    if data.stretch or not missing.any():
        return data
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
    return NodeData(data.labels, rows, weights, offsets, source, length)


def _stretch_length(sizes: np.ndarray, n_features: int) -> int:
    """The length that costs least for patterns of so many rows.

    A stretch costs its rows and a factorisation per component, taken as worth 4 + 0.4 d^2 rows (as
    for the tiles of Trust-then-Pool: an estimate).
    """
    price = 4 + 0.4 * n_features**2
    cost = [(-(-sizes // length)).sum() * (length + price) for length in LENGTHS]
    return LENGTHS[int(np.argmin(cost))]


def with_gaps(rows: np.ndarray, data: NodeData) -> Array | GappyRows:
    """Padded rows (nodes, m, d) of `data`, as `GappyRows` where it has been put `by_pattern`."""
    if not data.stretch:
        return rows
    observed = ~np.isnan(rows[:, :: data.stretch])
    return GappyRows(np.nan_to_num(rows), observed)


def padded(data: NodeData, m: int) -> tuple[Array | GappyRows, np.ndarray]:
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
    missing = np.isnan(data.rows)
    if not missing.any():
        return data
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
