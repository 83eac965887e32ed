"""Rows in tiles of one size, so that fits of any number of rows share a few compiled programs.

A *fit* is a mixture fitted to some tiles: all rows of a node, its rows without one fold, the points
that stand for a neighbour's mixture. Whatever a step fits, it is the same program on tiles of one
shape; nodes of 20 and of 5,000 rows do not wait for each other's padding.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData, by_pattern
from fedmixtures.fits.batches import ALL, Entries, Tiles
from fedmixtures.kernels.arrays import (
    Segments,
    counted,
    jit_on_gpu,
    placed,
    repeat_lines,
    replaced,
    xp,
)

TILE_SIZES = (32, 64, 128, 256)
"""Rows in a tile: which of them depends on how many rows nodes have."""
SMALL_SIZES = (4, 8, 16, *TILE_SIZES)
"""Rows in a tile of rows that are only judged: those of one fold."""
LARGE = 1 << 16
"""Tiles from which on room for twice as many would be felt."""
NO_FOLD = -2
"""Fold of padding and of points that are no rows."""


def tile_size(
    counts: np.ndarray, n_points: int, n_features: int, sizes: tuple[int, ...] = TILE_SIZES
) -> int:
    """The size of tiles that costs least for nodes of so many rows.

    A tile costs its rows, padding included, and what is done per component, taken as worth
    4 + 0.4 d^2 rows: an estimate. (12 nodes of 20 to 5,000 rows, d = 20: 256 rows, which took 19.8
    CPU seconds, 128 and 64 rows 22, 32 rows 26; one look.)
    """
    price = 4 + 0.4 * n_features**2
    some = np.concatenate([counts, np.full(len(counts), n_points)])
    cost = [(-(-some // size)).sum() * (size + price) for size in sizes]
    return sizes[int(np.argmin(cost))]


class TileTable:
    """The tiles of a block of nodes, with room for points; counts and folds by node."""

    def __init__(
        self,
        data: NodeData,
        folds: Array,
        n_points: int,
        n_mixtures: int,
        dtype: str,
        sizes: tuple[int, ...] = TILE_SIZES,
    ):
        """`folds` gives the fold of every row of `data`; `n_points` those of one mixture."""
        incomplete = bool(xp.isnan(data.rows).any())
        arranged = _arranged(data) if incomplete else data
        counts, n = arranged.counts, len(arranged.rows)
        node = Segments(arranged.offsets[:-1], n).number()
        self.size = size = tile_size(counts, n_points, data.n_features, sizes)
        self.n_tiles = -(-counts // size)
        self.first = np.concatenate([[0], np.cumsum(self.n_tiles)[:-1]]).astype(np.int64)
        self.point_tiles, self.n_points = -(-n_points // size), n_points
        self.row_tiles = int(self.n_tiles.sum())
        some = int(self.n_tiles[0])
        self.equal = some if (self.n_tiles == some).all() else 0
        """Tiles of every node, if all have as many."""
        lines = _room(self.row_tiles + n_mixtures * self.point_tiles)
        begin = self.first * size - arranged.offsets[:-1]
        place = all_places = _places(begin, node)
        observed = None
        if incomplete:
            real, segment = arranged.source_index >= 0, arranged.segment
            place = placed(len(data.rows), arranged.source_index[real], all_places[real], 0, int)
            there = ~np.isnan(arranged.rows[::segment])
            at = all_places[::segment] // segment
            observed = placed(lines * size // segment, at, there, True, bool)
            observed = jnp.asarray(observed.reshape(lines, size // segment, -1))
        self.place = place
        """(rows of `data`,) where each stands, tile after tile."""
        fill = lambda *what: jnp.asarray(_tiled(lines, size, place, *what))
        self.tiles = Tiles(
            fill(_with_even_shares(data) if incomplete else data.rows, 0, dtype),
            fill(data.row_weights, 0, dtype),
            fill(folds, NO_FOLD, "int8"),
            observed=observed,
            per_fit=1 << (int(np.mean(self.n_tiles)).bit_length() - 1),
        )

    def only(self, who: np.ndarray | slice) -> TileTable:
        """The table of some of the nodes, on these tiles."""
        part = copy.copy(self)
        part.n_tiles, part.first = self.n_tiles[who], self.first[who]
        return part

    def put_points(self, points: Array, weights: Array) -> None:
        """Points (mixtures, points, d) with weights, behind the rows."""
        n, _, d = points.shape
        here = self.row_tiles + np.arange(n * self.point_tiles)
        room = ((0, 0), (0, self.point_tiles * self.size - self.n_points))
        x = xp.pad(points, (*room, (0, 0))).reshape(-1, self.size, d)
        count = xp.pad(weights, room).reshape(-1, self.size)
        tiles = self.tiles
        new = [
            jnp.asarray(replaced(*two)) for two in ((tiles.x, here, x), (tiles.count, here, count))
        ]
        self.tiles = eqx.tree_at(lambda tiles: (tiles.x, tiles.count), tiles, new)

    def of_rows(self, node: Array, leave: Array) -> Entries:
        """A fit for each of `node`, to its rows without the fold `leave`."""
        n = len(node)
        if self.equal:
            parts = _of_equal(self.first, node, leave, self.equal)
            return Entries(*parts, n_fits=n, size=self.equal)
        size = self.n_tiles[np.asarray(node)]
        begin = self.first[np.asarray(node)] - (np.cumsum(size) - size)
        return Entries(*_of_rows(begin, leave, size, int(size.sum())), n_fits=n, size=size)

    def of_points(self, fit: Array, source: Array, scale: Array, n: int) -> Entries:
        """`n` fits to points: fit number `fit[e]` has those of `source[e]`, times `scale[e]`."""
        nobody = np.zeros(0, np.int64)
        return self._joined(self.of_rows(nobody, nobody), fit, source, scale, n)

    def with_points(
        self, node: Array, leave: Array, fit: Array, source: Array, scale: Array
    ) -> Entries:
        """Fits to rows as `of_rows`; number `fit[e]` has the points of `source[e]`, too."""
        return self._joined(self.of_rows(node, leave), fit, source, scale, len(node))

    def of_each(self, source: Array, scale: Array) -> Entries:
        """A fit to the points of each of `source`, times `scale`."""
        n, tiles = len(source), self.point_tiles
        parts = _of_each(source, scale, self.row_tiles, tiles)
        return Entries(*parts, n_fits=n, size=tiles)

    @property
    def of_points_alone(self) -> Tiles:
        """The tiles for fits that have no rows: points lack no cell."""
        per_fit = 1 << (self.point_tiles.bit_length() - 1)
        return Tiles(self.tiles.x, self.tiles.count, self.tiles.fold, per_fit=per_fit)

    def _joined(self, rows: Entries, fit, source, scale, n: int) -> Entries:
        """Both in ascending order of fits; in each, rows come before points."""
        points = self.point_tiles * counted(fit, n)
        own = np.broadcast_to(rows.size if rows.n_fits else 0, n)
        before = np.cumsum(points) - points, np.cumsum(own)
        parts = rows.tile, rows.owner, rows.leave, rows.scale
        more = fit, source, scale, *before
        joined = _with_points(parts, *more, self.row_tiles, self.point_tiles)
        return Entries(*joined, n_fits=n, size=points + own)


@jit_on_gpu
def _places(begin: Array, node: Array) -> Any:
    """Where every row stands in the tiles."""
    return xp.asarray(begin)[node] + xp.arange(len(node))


@partial(jit_on_gpu, static_argnums=(0, 1, 4, 5))
def _tiled(lines: int, size: int, place: Array, values: Array, empty: int, dtype: str) -> Any:
    """`lines` tiles of `size` rows, with `values` (zero for what is missing) at their places."""
    table = placed(lines * size, place, xp.nan_to_num(values), empty, dtype)
    return table.reshape(lines, size, *values.shape[1:])


def _with_even_shares(data: NodeData) -> Any:
    """Rows in which a missing category has equal shares: a row may become a centre."""
    shares = [np.zeros(data.n_continuous), *(np.full(size, 1 / size) for size in data.categories)]
    return xp.where(xp.isnan(data.rows), np.concatenate(shares), data.rows)


def _arranged(data: NodeData) -> NodeData:
    """By pattern of gaps, on the host."""
    rows, weights = np.asarray(data.rows), np.asarray(data.row_weights)
    source = np.arange(len(rows))
    return by_pattern(replace(data, rows=rows, row_weights=weights, source_index=source))


@partial(jit_on_gpu, static_argnums=3)
def _of_equal(first: Array, node: Array, leave: Array, tiles: int) -> tuple[Array, ...]:
    """Tile, owner, leave and scale of fits of as many tiles each, from the nodes' `first` on.

    As `_of_rows` gives them, in half the time (6 ms of a million nodes, 12 ms), and without numbers
    of tiles that a GPU would have to hand back to the host.
    """
    owner = xp.repeat(xp.arange(len(node), dtype=np.int32), tiles)
    step = xp.tile(xp.arange(tiles), len(node))
    tile = xp.repeat(xp.asarray(first)[node], tiles) + step
    leave = xp.repeat(xp.asarray(leave, np.int8), tiles)
    return tile.astype(np.int32), owner, leave, xp.ones(len(owner))


@partial(jit_on_gpu, static_argnums=(2, 3))
def _of_each(source: Array, scale: Array, first: int, tiles: int) -> tuple[Array, ...]:
    """Tile, owner, leave and scale of fits to the points of a source each, from tile `first` on."""
    n = len(source)
    tile = first + tiles * xp.asarray(source)[:, None] + xp.arange(tiles)
    owner = xp.repeat(xp.arange(n, dtype=np.int32), tiles)
    scale = xp.repeat(xp.asarray(scale, np.float64), tiles)
    return tile.reshape(-1).astype(np.int32), owner, xp.full(n * tiles, ALL, np.int8), scale


@partial(jit_on_gpu, static_argnums=3)
def _of_rows(begin: Array, leave: Array, size: Array, total: int) -> tuple[Array, ...]:
    """Tile, owner, leave and scale of `total` entries, `size` for each fit, from `begin` on."""
    owner = repeat_lines(xp.arange(len(size), dtype=np.int32), size, total)
    tile = xp.asarray(begin)[owner] + xp.arange(total)
    leave = xp.asarray(leave, np.int8)[owner]
    return tile.astype(np.int32), owner, leave, xp.ones(total)


@partial(jit_on_gpu, static_argnums=(6, 7))
def _with_points(
    rows: tuple[Array, ...],
    fit: Array,
    source: Array,
    scale: Array,
    points_before: Array,
    rows_up_to: Array,
    first: int,
    tiles: int,
) -> tuple[Array, ...]:
    """Entries of rows, with `tiles` of points for every `fit`, which stand from tile `first` on.

    For every fit: entries of points before it, and entries of rows up to its last.
    """
    again = lambda part: xp.repeat(xp.asarray(part), tiles)
    tile = first + again(source) * tiles + xp.tile(xp.arange(tiles), len(fit))
    more = tile.astype(np.int32), again(fit).astype(np.int32)
    more = *more, xp.full(len(tile), ALL, np.int8), again(scale).astype(np.float64)
    n, n_rows = len(tile) + len(rows[1]), len(rows[1])
    here = xp.asarray(points_before)[rows[1]] + xp.arange(n_rows)
    there = xp.asarray(rows_up_to)[more[1]] + xp.arange(len(tile))
    join = lambda a, b: replaced(placed(n, here, a, 0, a.dtype), there, b)
    return tuple(join(a, b) for a, b in zip(rows, more, strict=True))


def _room(n: int) -> int:
    """The next power of two, or eighth of a large one: one more node rarely means a new program."""
    power = 1 << max(n - 1, 1).bit_length()
    step = power if power <= LARGE else power // 8
    return -(-n // step) * step
