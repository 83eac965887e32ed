"""Rows of many nodes in tiles and folds: fits of all rows, or without a fold, and what judges them.

What a method asks for is `fit`, `fit_with_pseudodata` and `out_of_fold`; batches, padding, threads
and devices are seen to here and below.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.fits.batches import ALL, Entries, Tiles
from fedmixtures.fits.em import (
    Fit,
    Shrinkage,
    densities,
    fitted,
    m_step_of_batch,
    overlaps,
    seeded,
)
from fedmixtures.fits.held_out import HeldOut
from fedmixtures.fits.tiles import TileTable
from fedmixtures.init import distinct_rows_of_all
from fedmixtures.kernels.arrays import Segments, Tree, at, in_order_of, jit_on_gpu, placed, xp
from fedmixtures.kernels.dispatch import nodes_at_once
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

FEW_ROWS = 30
"""A node of fewer rows makes three folds."""
FEW_FOLDS = 3


ALL_STEPS: dict[str, Any] = {"tolerance": 0.0, "sums": False}
"""Of a fit whose steps are counted, and whose mixtures alone are wanted."""


class FoldedRows:
    """Rows of the nodes of a block, by tile and fold.

    Equal rows are one row of their whole weight, so that no fold is judged by a copy of what
    another has seen. Arrays "by row" have the shape (tiles, rows in a tile) of the tiles.
    """

    def __init__(
        self,
        data: NodeData,
        n_components: np.ndarray,
        *,
        n_folds: int,
        seed: int,
        dtype: str,
        most_components: int = 0,
        n_mixtures: int = 0,
        reg_covar: float = 1e-3,
        covariance_type: str = "full",
    ):
        """`n_mixtures`: room for the points of so many (`TileTable.put_points`).

        `most_components`: room for so many, if that is more than any here has.
        """
        self.hashes, self.seed, self.dtype = data.label_hashes, seed, dtype
        data = distinct_rows_of_all(_counted(data))
        self.reg_covar, self.covariance_type = reg_covar, covariance_type
        self.n = data.n_nodes
        of_node = Segments(data.offsets[:-1], len(data.rows))
        counted = _looked_over(data.rows, data.row_weights, of_node)
        self.rows_of, self.lacks_feature = map(np.asarray, counted)
        """(nodes,) rows, and which nodes have never seen one of the features."""
        k = np.minimum(n_components, data.counts)
        self.capped = k < n_components
        room = max(int(n_components.max()), most_components)
        self.present = np.arange(room)[None] < k[:, None]
        fold, self.n_folds = self._folds(data, n_folds)
        self.n_continuous = data.n_continuous
        n_points = self.present.shape[1] * (2 * data.n_continuous + 1)
        self.table = TileTable(data, fold, n_points, n_mixtures, dtype)
        self.held_out = partial(HeldOut, data, fold, self.n_folds, self.table, dtype)
        tile, tiles = np.arange(self.table.row_tiles), self.table.tiles
        self._by_tile(tile, *at((tiles.fold, tiles.count), slice(0, len(tile))))

    def only(self, who: np.ndarray | slice) -> Any:
        """Some of the nodes, in the same tiles."""
        part = copy.copy(self)
        part.table = self.table.only(who)
        for name in ("hashes", "rows_of", "capped", "present", "lacks_feature"):
            setattr(part, name, getattr(self, name)[who])
        part.n = len(part.hashes)
        part._by_tile(*at((self.tile, self.fold, self.count), self.tiles(who)))
        return part

    def _by_tile(self, tile: Any, fold: Any, count: Any) -> None:
        """Set what stands by tile (those of own rows)."""
        self.tile, self.fold, self.count = tile, fold, count
        """(tiles, ...) where own rows stand in the table, their folds and counts."""
        n_tiles = self.table.n_tiles
        self.tiles_of = Segments(np.cumsum(n_tiles) - n_tiles, len(tile))
        self.node_of = self.tiles_of.number()
        self._all_rows: dict[tuple[int, bool], Entries] = {}

    def tiles(self, who: np.ndarray | slice) -> Any:
        """The lines of some of the nodes in arrays by row."""
        n_tiles = self.table.n_tiles
        end = np.cumsum(n_tiles)
        if isinstance(who, slice):
            return slice(int(end[who.start] - n_tiles[who.start]), int(end[who.stop - 1]))
        size = n_tiles[who]
        return np.repeat(end[who] - np.cumsum(size), size) + np.arange(size.sum())

    def in_parts(self, step: Callable[..., Tree], *by_node: Any) -> Tree:
        """`step(part, who, *by_node)` for some of the nodes at a time, with their lines.

        What it works out on the way is held for one part alone. It returns lines by node or by
        tile, which are joined.
        """
        width = nodes_at_once()
        if self.n <= width:
            return step(self, slice(0, self.n), *by_node)
        columns: list[list[Array]] = []
        structure: Any = None
        for first in range(0, self.n, width):
            who = slice(first, min(first + width, self.n))
            found = step(self.only(who), who, *at(by_node, who))
            leaves, structure = jax.tree.flatten(found)
            columns = columns or [[] for _ in leaves]
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(leaf)
        joined = []
        while columns:  # one by one: no more than one is there twice
            joined.append(xp.concatenate(columns.pop(0)))
        return jax.tree.unflatten(structure, joined)

    def _folds(self, data: NodeData, n_folds: int) -> tuple[Array, int]:
        """Fold of every row: dealt out in an order drawn from seed, label and the row's rank."""
        node = Segments(data.offsets[:-1], len(data.rows)).number()
        folds = np.where(data.counts < FEW_ROWS, min(FEW_FOLDS, n_folds), n_folds)
        rank, in_turn = _ranks(data.offsets, node, folds)
        order = in_order_of(self._draw(node, 1, rank), node)
        # Rows of a node stand together, so ranks count them off.
        return placed(len(node), order, in_turn, 0, np.int8), int(folds.max())

    def _draw(self, node: Array, *salt: Any, dtype: str = "uint64") -> Any:
        """Random bits from seed, label and salt."""
        with np.errstate(over="ignore"):
            return _drawn(self.hashes, np.uint64(self.seed), node, salt, dtype)

    def keys(self, node: Array, *salt: Any) -> Any:
        """A 32-bit key per fit, from seed, label and what the fit is for."""
        return self._draw(node, *salt, dtype="uint32")

    def all_rows(self, times: int, nodes_first: bool = False) -> Entries:
        """Fits of all rows of every node, several times over; or each several times."""
        kind = times, nodes_first
        if kind not in self._all_rows:
            again = np.repeat if nodes_first else np.tile
            node = again(np.arange(self.n), times)
            self._all_rows[kind] = self.table.of_rows(node, np.full(len(node), ALL))
        return self._all_rows[kind]

    def all_and_folds(self) -> tuple[Any, Any]:
        """Node and fold left out of fits of all rows of every node, then without each fold."""
        return _all_and_folds(self.n, self.n_folds)

    def per_node(self, by_row: Array) -> Any:
        """Sums over the rows of every node."""
        return self.tiles_of.sums(by_row.sum(-1))

    def log_likelihoods(self, densities: Array | list[Array]) -> tuple[Any, Any]:
        """(nodes, densities) of own rows, from densities by row; and how much a row's differ."""
        return _likelihoods(densities, self.count, self.tiles_of, self.rows_of)

    def fit(
        self,
        entries: Entries,
        theta: Mixture,
        nu: Any,
        n_steps: int,
        tiles: Tiles | None = None,
        **more: Any,
    ) -> Fit:
        """EM from `theta`, a fit for each of `entries` of `tiles`; see `em.fitted`.

        `nu` is the strength of the prior, or a `Shrinkage`.
        """
        more = {"covariance_type": self.covariance_type, **more}
        shrinkage = self._shrinkage(nu)
        return fitted(
            self.table.tiles if tiles is None else tiles, entries, theta, shrinkage, n_steps, **more
        )

    def _shrinkage(self, nu: Any) -> Shrinkage:
        return nu if isinstance(nu, Shrinkage) else Shrinkage(nu, self.reg_covar)

    def step_by_points(self, entries: Entries, theta: Mixture, nu: Any, **more: Any) -> Mixture:
        """One step of EM from `theta` on points alone, beside pseudo-data."""
        more = {"sums": False, "tiles": self.table.of_points_alone, **more}
        return self.fit(entries, theta, nu, 1, **more).theta

    def m_step(self, theta: Mixture, s: Statistics, nu: Any) -> Mixture:
        """The M-step of sums that stand for rows of all nodes."""
        with precision(self.dtype):
            return m_step_of_batch(theta, s, self._shrinkage(nu), self.covariance_type)

    def fresh(
        self, entries: Entries, nu: float, n_steps: int, keys, present: Array, tiles: Any = None
    ) -> Fit:
        """Fits from k-means++ centres and a few Lloyd steps."""
        start = seeded(tiles or self.table.tiles, entries, keys, present, self.n_continuous)
        return self.fit(entries, start, nu, n_steps, tiles, from_centres=True)

    def densities(self, entries: Entries, theta: Mixture) -> Any:
        """By row of the entries, (entries, rows): the log-density under the fit's mixture."""
        return densities(self.table.tiles, entries, theta)

    def out_of_fold(self, folds: Mixture) -> Any:
        """By row: ln p under the model (folds x nodes, one after the other) without its fold."""
        found = self.densities(self.all_rows(self.n_folds), folds)
        return _of_own_fold(found, self.fold, self.count)

    def overlaps(self, folds: Mixture) -> Any:
        """(nodes, k, k) sums of r r^T over own rows, r the memberships by the fit without the row.

        `folds` (nodes, folds, ...).
        """
        fold = np.repeat(np.arange(self.n_folds, dtype=self.fold.dtype), self.n)
        entries = self.all_rows(self.n_folds)
        return _over_folds(overlaps(self.table.tiles, entries, nodes_last(folds), fold), self.n)

    def halves(self, theta: Mixture) -> tuple[Mixture, Mixture]:
        """Of mixtures of `all_and_folds`: those of all rows, and those of the folds."""
        return _halved(theta, self.n)

    def sums(self, theta: Mixture, nu: Any) -> Fit:
        """Statistics of own rows under several mixtures of every node, (nodes, several, ...)."""
        several = theta.weights.shape[1]
        entries = self.all_rows(several, nodes_first=True)
        theta, nu = together((theta, nu))
        return apart(self.fit(entries, theta, nu, 0), several)

    def fit_with_pseudodata(
        self,
        theta: Mixture,
        pseudo_data: PseudoData,
        nu: Any,
        extra_mass: Any,
        n_steps: int,
        folds: bool = True,
    ) -> Mixture:
        """EM from `theta` (one per node) on own rows and rows of others; of folds, too."""
        entries, given = self.all_rows(1), (theta, pseudo_data, nu, extra_mass)
        if folds:
            node, leave = self.all_and_folds()
            entries, given = self.table.of_rows(node, leave), at(given, node)
        start, pseudo_data, nu, extra_mass = given
        more = {"pseudo_data": pseudo_data, "extra_mass": extra_mass}
        return self.fit(entries, start, nu, n_steps, **more, **ALL_STEPS).theta


@jit_on_gpu
def _looked_over(rows: Array, weights: Array, of_node: Segments) -> tuple[Any, Any]:
    """Rows of every node; whether it lacks a feature: its own fits say nothing of that one."""
    seen = of_node.sums(~xp.isnan(rows), np.int64)
    return of_node.sums(weights), (seen == 0).any(1)


@jit_on_gpu
def _ranks(offsets: Array, node: Array, folds: Array) -> tuple[Any, Any]:
    """Of every row among those of its node, and the fold that rows of that rank are counted to."""
    rank = xp.arange(len(node)) - xp.asarray(offsets)[node]
    return rank, rank % xp.asarray(folds)[node]


@partial(jit_on_gpu, static_argnums=(0, 1))
def _all_and_folds(n: int, n_folds: int) -> tuple[Any, Any]:
    """Node and fold to leave out, of fits of all rows and without every fold."""
    return xp.tile(xp.arange(n), n_folds + 1), xp.repeat(xp.arange(ALL, n_folds), n)


@partial(jit_on_gpu, static_argnums=1)
def _halved(tree: Any, n: int) -> tuple[Any, Any]:
    """The first `n` lines, and the others."""
    return jax.tree.map(lambda part: part[:n], tree), jax.tree.map(lambda part: part[n:], tree)


@jit_on_gpu
def _likelihoods(densities: Any, count: Array, tiles_of: Segments, rows: Array) -> tuple[Any, Any]:
    """(nodes, densities) sums of log-densities; the standard deviation of a row's, at least one."""
    sums = [
        [
            tiles_of.sums((xp.where(count > 0, density, 0.0) ** power * count).sum(-1))
            for power in (1, 2)
        ]
        for density in densities
    ]
    first, second = (xp.stack(parts, axis=-1) for parts in zip(*sums, strict=True))
    rows = rows[:, None]
    variance = second / rows - xp.square(first / rows)
    return first, xp.sqrt(xp.maximum(xp.nan_to_num(variance), 1.0))


@partial(jit_on_gpu, static_argnums=4)
def _drawn(hashes: Array, seed: Any, node: Array, salt: tuple[Any, ...], dtype: str) -> Any:
    """The last of 64 random bits (splitmix64)."""
    bits = xp.asarray(hashes)[node] ^ seed
    for part in (0, *salt):
        bits = bits ^ xp.asarray(part).astype(np.uint64)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return bits.astype(dtype)


@jit_on_gpu
def _of_own_fold(density: Array, fold: Array, count: Array) -> Any:
    """By row the density (folds x tiles, rows) of its own fold; zero for padding."""
    place = xp.maximum(fold, 0)[None].astype(np.int64)
    density = density.reshape(-1, *fold.shape)
    return xp.where(count > 0, xp.take_along_axis(density, place, 0)[0], 0.0)


@partial(jit_on_gpu, static_argnums=1)
def _over_folds(by_fit: Array, n: int) -> Any:
    """(nodes, ...) sums over the folds of (folds x nodes, ...)."""
    return xp.asarray(by_fit).reshape(-1, n, *by_fit.shape[1:]).sum(0)


@jit_on_gpu
def by_node(condition: Array, node_of: Array, one: Array | float, other: Array) -> Any:
    """By row `one` at the nodes where the condition holds, else `other`."""
    return xp.where(xp.asarray(condition)[node_of, None], one, other)


@jit_on_gpu
def together(tree: Any) -> Any:
    """(nodes x several, ...) from (nodes, several, ...)."""
    return jax.tree.map(lambda part: xp.asarray(part).reshape(-1, *part.shape[2:]), tree)


@partial(jit_on_gpu, static_argnums=1)
def apart(tree: Any, several: int) -> Any:
    """(nodes, several, ...) from (nodes x several, ...)."""
    return jax.tree.map(lambda part: part.reshape(-1, several, *part.shape[1:]), tree)


@partial(jit_on_gpu, static_argnums=1)
def nodes_first(tree: Tree, n: int) -> Tree:
    """(nodes, times, ...) from (times x nodes, ...)."""
    split = lambda part: part.reshape(-1, n, *part.shape[1:])
    return jax.tree.map(lambda part: xp.swapaxes(split(part), 0, 1), tree)


@jit_on_gpu
def nodes_last(tree: Tree) -> Tree:
    """(times x nodes, ...) from (nodes, times, ...)."""
    return jax.tree.map(lambda part: xp.swapaxes(part, 0, 1).reshape(-1, *part.shape[2:]), tree)


def _counted(data: NodeData) -> NodeData:
    """Without rows that weigh nothing."""
    if (data.row_weights > 0).all():
        return data
    kept = data.row_weights > 0
    counts = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows, weights = data.rows[kept], data.row_weights[kept]
    source, kinds = data.source_index[kept], data.categories
    return NodeData(data.labels, rows, weights, offsets, source, categories=kinds)
