"""The rows of every fold of every node, in tiles of their own: what fits without it are judged by.

To judge a fit by all rows of its node, of which one fold counts, would take several times as long;
where folds have a few rows each, most of it would be padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.fits.batches import ALL
from fedmixtures.fits.em import densities
from fedmixtures.fits.tiles import SMALL_SIZES, TileTable
from fedmixtures.kernels.arrays import at, in_order_of, jit_on_gpu, placed, xp
from fedmixtures.mixture.mixture import Mixture


class HeldOut:
    """Folds that have rows, numbered node after node, and these rows."""

    def __init__(self, data: NodeData, fold: Array, n_folds: int, table: TileTable, dtype: str):
        """`fold` gives that of every row of `data`, which stand in `table` too."""
        number = np.repeat(np.arange(data.n_nodes), data.counts) * n_folds + np.asarray(fold)
        counts = np.bincount(number, minlength=data.n_nodes * n_folds)
        self.node, self.fold = np.divmod(np.flatnonzero(counts), n_folds)
        """(folds,) whose each is, and its number there."""
        self.line = np.where(counts > 0, np.cumsum(counts > 0) - 1, -1).reshape(-1, n_folds)
        """(nodes, folds of each) its number here; -1 where it has no rows."""
        order = in_order_of(number)
        rows, weights = at((data.rows, data.row_weights), order)
        offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
        nameless = (0,) * len(self.node)
        mine = NodeData(nameless, rows, weights, offsets, np.arange(len(order)))
        self._table = TileTable(mine, np.asarray(fold)[order], 0, 0, dtype, SMALL_SIZES)
        self._there = at(table.place, order)
        self._count = self._table.tiles.count

    def tiled(self, by_row: Array) -> Any:
        """What is known by row in the tiles of the nodes, in these."""
        return _moved(by_row, self._there, self._table.place, self._count.shape)

    def gains(self, line: Array, theta: Mixture, known: Array) -> Any:
        """(fits,) how much likelier the rows of the folds `line` are under `theta` than `known`."""
        entries = self._table.of_rows(line, np.full(len(line), ALL))
        density = densities(self._table.tiles, entries, theta)
        return entries.sums(_gain(density, known, self._count, entries.tile))


def _moved(by_row: Array, before: Array, place: Array, shape: tuple[int, ...]) -> Any:
    """Lines of one table in another's."""
    values = at(xp.reshape(by_row, -1), before)
    return placed(int(np.prod(shape)), place, values, 0.0, values.dtype).reshape(shape)


@jit_on_gpu
def _gain(density: Array, known: Array, count: Array, tile: Array) -> Any:
    count = xp.asarray(count)[tile]
    return xp.where(count > 0, (density - known[tile]) * count, 0.0).sum(-1)
