"""Rows in tiles of one size, so that fits of any number of rows share a few compiled programs.

A *fit* is a mixture fitted to some tiles: all rows of a node, its rows without one fold, the points
that stand for a neighbour's mixture. Whatever a step fits, it is the same program on tiles of one
shape; nodes of 20 and of 5,000 rows do not wait for each other's padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData, by_pattern
from fedmixtures.kernels.dispatch import rows_at_once

TILE_SIZES = (32, 64, 128, 256)
"""Rows in a tile: which of them depends on how many rows nodes have."""
ALL = -1
"""`leave` of a fit that leaves out no fold."""
NO_FOLD = -2
"""Fold of padding and of points that are no rows."""


class Tiles(eqx.Module):
    """Rows of all nodes, tile by tile; the points of released mixtures behind them."""

    x: Array
    """(tiles, rows, features)."""
    count: Array
    """(tiles, rows), zero for padding."""
    fold: Array
    """(tiles, rows)."""
    observed: Array | None = None
    """(tiles, stretches, features) which cells the rows of a stretch have; None where all have."""
    per_fit: int = eqx.field(static=True, default=1)
    """Tiles of an ordinary fit, as a power of two."""

    @property
    def at_once(self) -> tuple[int, int]:
        """Tiles and fits in one call, at most: no more than a few times all there are."""
        tiles = min(
            max(16, rows_at_once(self.x.shape[2]) // self.count.shape[1]), 8 * len(self.count)
        )
        return tiles, max(1, tiles // self.per_fit)


class Work(eqx.Module):
    """Which tiles each of a batch of fits is made from."""

    tile: Array
    """(entries,) line of `Tiles`."""
    owner: Array
    """(entries,) number of the fit."""
    leave: Array
    """(entries,) fold to leave out."""
    scale: Array
    """(entries,) factor of the counts; zero for padding."""
    number: Array
    """(entries,) number of the entry within its fit."""


@dataclass(frozen=True)
class Entries:
    """As `Work`, for any number of fits, on the host; entries of a fit stand together."""

    tile: np.ndarray
    owner: np.ndarray
    leave: np.ndarray
    scale: np.ndarray
    n_fits: int

    def chunks(self, at_once: tuple[int, int]) -> Iterator[tuple[slice, Work]]:
        """Batches of whole fits within these tiles and fits (more tiles only for a larger fit)."""
        most, fits = at_once
        size = np.bincount(self.owner, minlength=self.n_fits)
        ends = np.cumsum(size)
        first = 0
        while first < self.n_fits:
            begin = ends[first] - size[first]
            last = int(np.searchsorted(ends, begin + most, side="right"))
            last = min(max(last, first + 1), first + fits, self.n_fits)
            here = slice(int(begin), int(ends[last - 1]))
            room = max(most, 1 << (here.stop - here.start - 1).bit_length())
            yield slice(first, last), self._padded(here, first, room, fits)
            first = last

    def _padded(self, here: slice, first: int, room: int, fits: int) -> Work:
        fill = room - (here.stop - here.start)
        pad = lambda part, value: np.concatenate([part[here], np.full(fill, value, part.dtype)])
        owner = pad(self.owner - first, fits - 1)
        begin = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1])
        number = np.arange(room) - np.repeat(begin, np.diff([*begin, room]))
        entry = pad(self.tile, 0), owner, pad(self.leave, ALL), pad(self.scale, 0.0)
        return Work(*entry, number.astype(np.uint32))


def tile_size(counts: np.ndarray, n_points: int, n_features: int) -> int:
    """The size of tiles that costs least for nodes of so many rows.

    A tile costs its rows, padding included, and a factorisation per component, taken as worth
    4 + 0.4 d^2 rows: an estimate, which no benchmark has checked.
    """
    price = 4 + 0.4 * n_features**2
    some = np.concatenate([counts, np.full(len(counts), n_points)])
    cost = [(-(-some // size)).sum() * (size + price) for size in TILE_SIZES]
    return TILE_SIZES[int(np.argmin(cost))]


class TileTable:
    """The tiles of a block of nodes, with room for points; counts and folds by node."""

    def __init__(
        self, data: NodeData, folds: np.ndarray, n_points: int, n_mixtures: int, dtype: str
    ):
        """`folds` gives the fold of every row of `data`; `n_points` those of one mixture."""
        # What lacks the same cells stands together; nothing moves where no cell is missing.
        arranged = by_pattern(replace(data, source_index=np.arange(len(data.rows))))
        counts, real = arranged.counts, arranged.source_index >= 0
        self.size = size = tile_size(counts, n_points, data.n_features)
        self.n_tiles = -(-counts // size)
        self.first = np.concatenate([[0], np.cumsum(self.n_tiles)[:-1]]).astype(np.int64)
        self.point_tiles, self.n_points = -(-n_points // size), n_points
        self.row_tiles = int(self.n_tiles.sum())
        lines = _room(self.row_tiles + n_mixtures * self.point_tiles)
        x = np.zeros((lines, size, data.n_features), dtype)
        count = np.zeros((lines, size), dtype)
        fold = np.full((lines, size), NO_FOLD, np.int8)
        node = arranged.node_index
        all_places = self.first[node] * size + np.arange(len(node)) - arranged.offsets[node]
        place = np.empty(len(data.rows), np.int64)
        place[arranged.source_index[real]] = all_places[real]
        x.reshape(-1, data.n_features)[place] = np.nan_to_num(data.rows)
        count.reshape(-1)[place] = data.row_weights
        fold.reshape(-1)[place] = folds
        self._host, observed = (x, count, fold), None
        if stretch := arranged.stretch:
            observed = np.ones((lines, size // stretch, data.n_features), dtype=bool)
            there = ~np.isnan(arranged.rows[::stretch])
            observed.reshape(-1, data.n_features)[all_places[::stretch] // stretch] = there
            observed = jnp.asarray(observed)
        per_fit = 1 << (int(np.median(self.n_tiles)).bit_length() - 1)
        self.tiles = Tiles(*map(jnp.asarray, self._host), observed=observed, per_fit=per_fit)

    def put_points(self, points: np.ndarray, weights: np.ndarray) -> None:
        """Points (mixtures, points, d) with weights, behind the rows."""
        n, _, d = points.shape
        here = slice(self.row_tiles, self.row_tiles + n * self.point_tiles)
        x, count, fold = self._host
        x[here].reshape(n, -1, d)[:, : self.n_points] = points
        count[here].reshape(n, -1)[:, : self.n_points] = weights
        new = jnp.array(x), jnp.array(count)
        self.tiles = eqx.tree_at(lambda tiles: (tiles.x, tiles.count), self.tiles, new)

    def of_rows(self, node: np.ndarray, leave: np.ndarray) -> Entries:
        """A fit for each of `node`, to its rows without the fold `leave`."""
        times = self.n_tiles[node]
        owner = np.repeat(np.arange(len(node)), times)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(times) - times, times)
        tile = self.first[node][owner] + step
        return _entries(tile, owner, leave[owner], np.ones(len(owner)), len(node))

    def of_points(self, fit: np.ndarray, source: np.ndarray, scale: np.ndarray, n: int) -> Entries:
        """`n` fits to points: fit number `fit[e]` has those of `source[e]`, times `scale[e]`."""
        nobody = np.zeros(0, np.int64)
        rows = _entries(nobody, nobody, nobody, nobody, n)
        return self._joined(rows, fit, source, scale)

    def with_points(
        self, node: np.ndarray, leave: np.ndarray, fit: np.ndarray, source: np.ndarray, scale
    ) -> Entries:
        """As `of_rows`; fit number `fit[e]` has the points of `source[e]` too, times `scale[e]`."""
        return self._joined(self.of_rows(node, leave), fit, source, scale)

    def _joined(self, rows: Entries, fit, source, scale) -> Entries:
        owner = np.repeat(fit, self.point_tiles)
        step = np.tile(np.arange(self.point_tiles), len(fit))
        tile = self.row_tiles + np.repeat(source, self.point_tiles) * self.point_tiles + step
        factor = np.repeat(scale, self.point_tiles)
        owner = np.concatenate([rows.owner, owner])
        order = np.argsort(owner, kind="stable")
        join = lambda a, b: np.concatenate([a, b])[order]
        leave = join(rows.leave, np.full(len(tile), ALL))
        return _entries(
            join(rows.tile, tile), owner[order], leave, join(rows.scale, factor), rows.n_fits
        )


def _entries(tile, owner, leave, scale, n_fits) -> Entries:
    parts = tile.astype(np.int32), owner.astype(np.int32), leave.astype(np.int8)
    return Entries(*parts, np.asarray(scale, np.float64), n_fits)


def _room(n: int) -> int:
    """The next power of two: one more node rarely means a new program."""
    return 1 << max(n - 1, 1).bit_length()
