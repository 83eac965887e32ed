"""Step 0, units; and what the nodes of a block hold during all steps: rows, folds, tiles."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.init import distinct_rows_of_all
from fedmixtures.kernels.arrays import Segments, Tree, at, in_order_of, jit_on_gpu, placed, xp
from fedmixtures.kernels.dispatch import hand_back_memory, nodes_at_once
from fedmixtures.methods.protocol import Block, Request, Sum
from fedmixtures.methods.trust_then_pool.batches import ALL, Entries
from fedmixtures.methods.trust_then_pool.fits import (
    Fit,
    batch_m_step,
    densities,
    fitted,
    overlaps,
    seeded,
)
from fedmixtures.methods.trust_then_pool.tiles import TileTable
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

FEW_ROWS = 30
"""A node of fewer rows makes three folds."""
FEW_FOLDS = 3
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class Units:
    """Centre and scale of every feature over all nodes: what everything is computed in."""

    centre: np.ndarray
    scale: np.ndarray

    def common(self, data: NodeData) -> NodeData:
        """Rows in common units."""
        rows = _scaled(data.rows, self.centre, self.scale)
        return NodeData(data.labels, rows, data.row_weights, data.offsets, data.source_index)

    def of_users(self, theta: Mixture) -> Mixture:
        """Mixtures in common units, from the user's."""
        weights, means, covariances = theta.parts
        spread = self.scale[:, None] * self.scale
        return Mixture(weights, (means - self.centre) / self.scale, covariances / spread)

    def users(self, theta: Mixture) -> Mixture:
        """Mixtures in the user's units: NumPy, in float64."""
        return jax.tree.map(np.asarray, _in_users(theta, self.centre, self.scale))


@jit_on_gpu
def _scaled(rows: Array, centre: Array, scale: Array) -> Any:
    return (rows - centre) / scale


@jit_on_gpu
def _in_users(theta: Mixture, centre: Array, scale: Array) -> Mixture:
    weights, means, covariances = theta.parts
    parts = (
        xp.asarray(weights, np.float64),
        centre + means * scale,
        covariances * (scale[:, None] * scale),
    )
    return jax.tree.unflatten(jax.tree.structure(theta), parts)


def common_units(block: Block, covariance_type: str = "full") -> Generator[Request, Any, Units]:
    """Step 0: centre and standard deviation of every feature, by two sums over everybody.

    Of the cells that are there; a feature that nobody has seen keeps its unit.
    """
    data = block.held
    table = data.rows, data.row_weights
    rows_of = Segments(data.offsets[:-1], len(data.rows))
    shares, spreads, spread = _cells(*table, rows_of)
    total = at((yield Sum(shares, None, spreads)), slice(0, 1))
    cells = np.maximum(total["cells"][0], TINY)
    centre = np.asarray(total["first"][0]) / cells
    squares = yield Sum(_squares(*table, rows_of, centre), None, spread)
    scale = np.sqrt(np.asarray(at(squares, slice(0, 1)))[0] / cells)
    constant = scale <= 1e-12 * np.abs(centre)  # what rounding leaves of a constant column
    return Units(centre, TYPES[covariance_type].scales(np.where(constant, 0.0, scale)))


@jit_on_gpu
def _cells(rows: Array, weights: Array, rows_of: Segments) -> tuple[Any, Any, Any]:
    """Cells of every node and their sums, by feature; their spread, and that of their squares."""
    weight = xp.where(xp.isnan(rows), 0.0, weights[:, None])
    rows, cells = xp.nan_to_num(rows), rows_of.sums(weight)
    own, first = xp.maximum(cells, TINY), rows_of.sums(weight * rows)
    means, node = first / own, rows_of.number()
    spread = xp.sqrt(rows_of.sums(weight * (rows - means[node]) ** 2) / own)
    spread = xp.where(spread > 1e-12 * abs(means), spread, xp.maximum(abs(means), 1e-6))
    spreads = {"cells": xp.ones_like(spread), "first": spread}
    return {"cells": cells, "first": first}, spreads, np.sqrt(2) * spread**2


@jit_on_gpu
def _squares(rows: Array, weights: Array, rows_of: Segments, centre: Array) -> Any:
    """Sums of squares about a centre, of every node by feature."""
    weight = xp.where(xp.isnan(rows), 0.0, weights[:, None])
    return rows_of.sums(weight * (xp.nan_to_num(rows) - centre) ** 2)


class Nodes:
    """The nodes of a block: distinct rows in common units, by tile and fold.

    Equal rows are one row of their whole weight, so that no fold is judged by a copy of what
    another has seen. Arrays "by row" have the shape (tiles, rows in a tile) of the tiles.
    """

    def __init__(
        self,
        block: Block,
        units: Units,
        n_folds: int,
        reg_covar: float,
        covariance_type: str = "full",
    ):
        data = distinct_rows_of_all(units.common(_counted(block.held)))
        self.block, self.reg_covar, self.covariance_type = block, reg_covar, covariance_type
        self.n, self.hashes = data.n_nodes, block.data.label_hashes
        self.lone = (self.hashes >> np.uint64(1)).astype(np.int64)
        """(nodes,) the label of a group of the node alone."""
        of_node = Segments(data.offsets[:-1], len(data.rows))
        self.rows_of, self.blind = map(
            np.asarray, _looked_over(data.rows, data.row_weights, of_node)
        )
        """(nodes,) rows, and which nodes have never seen one of the features."""
        k = np.minimum(block.n_components, data.counts)
        self.capped = k < block.n_components
        self.present = np.arange(int(block.n_components.max()))[None] < k[:, None]
        fold, self.n_folds = self._folds(data, n_folds)
        n_points = self.present.shape[1] * (2 * data.n_features + 1)
        n_lines = 1 + int(max(block.line.max(initial=-1), block.sender.max(initial=-1)))
        self.table = TileTable(data, fold, n_points, n_lines, block.dtype)
        tile, tiles = np.arange(self.table.row_tiles), self.table.tiles
        self._by_tile(tile, *at((tiles.fold, tiles.count), slice(0, len(tile))))
        hand_back_memory(self.n)

    def only(self, who: np.ndarray | slice) -> Nodes:
        """Some of the nodes, in the same tiles."""
        part = copy.copy(self)
        part.block = replace(self.block, line=self.block.line[who])
        part.table = self.table.only(who)
        for name in ("hashes", "lone", "rows_of", "capped", "present", "blind"):
            setattr(part, name, getattr(self, name)[who])
        part.n = len(part.lone)
        return part._by_tile(*at((self.tile, self.fold, self.count), self.tiles(who)))

    def _by_tile(self, tile: Any, fold: Any, count: Any) -> Nodes:
        """With what stands by tile (those of own rows)."""
        self.tile, self.fold, self.count = tile, fold, count
        """(tiles, ...) where own rows stand in the table, their folds and counts."""
        n_tiles = self.table.n_tiles
        self.tiles_of = Segments(np.cumsum(n_tiles) - n_tiles, len(tile))
        self.node_of = self.tiles_of.number()
        self._all_rows: dict[tuple[int, bool], Entries] = {}
        return self

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
        hand_back_memory(self.n)
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
            return _drawn(self.hashes, np.uint64(self.block.seed), node, salt, dtype)

    def keys(self, node: Array, *salt: Any) -> Any:
        """A 32-bit key per fit, from seed, label and what the fit is for."""
        return self._draw(node, *salt, dtype="uint32")

    def log_units(self, units: Units) -> np.ndarray:
        """(nodes, 1) what a row's log-density loses on average in the user's units."""
        observed = self.table.tiles.observed
        whole = np.log(units.scale).sum()
        if observed is None:
            return np.full((self.n, 1), whole)
        by_stretch = np.asarray(observed)[: self.table.row_tiles] @ np.log(units.scale)
        by_row = np.repeat(by_stretch, self.table.size // by_stretch.shape[1], axis=1)
        return np.asarray(self.per_node(by_row * self.count) / self.rows_of)[:, None]

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

    def fitted(self, entries: Entries, theta: Mixture, nu: Any, n_steps: int, **more: Any) -> Fit:
        """As `fits.fitted`."""
        more = {"covariance_type": self.covariance_type, **more}
        return fitted(self.table.tiles, entries, theta, nu, self.reg_covar, n_steps, **more)

    def m_step(self, theta: Mixture, s: Statistics, nu: Any) -> Mixture:
        """As `fits.batch_m_step`."""
        with precision(self.block.dtype):
            return batch_m_step(theta, s, nu, self.reg_covar, self.covariance_type)

    def fresh(self, entries: Entries, nu: float, n_steps: int, keys, present: Array) -> Fit:
        """Fits from k-means++ centres and a few Lloyd steps."""
        start = seeded(self.table.tiles, entries, keys, present)
        return self.fitted(entries, start, nu, n_steps, from_centres=True)

    def densities(self, entries: Entries, theta: Mixture) -> Any:
        """As `fits.densities`."""
        return densities(self.table.tiles, entries, theta)

    def out_of_fold(self, folds: Mixture) -> Any:
        """By row: ln p under the model (folds x nodes, one after the other) without its fold."""
        found = self.densities(self.all_rows(self.n_folds), folds)
        return _of_own_fold(found, self.fold, self.count)

    def overlaps(self, folds: Mixture) -> Any:
        """(folds x nodes, k, k) sums of products of memberships of the rows each has not seen."""
        fold = np.repeat(np.arange(self.n_folds, dtype=self.fold.dtype), self.n)
        return overlaps(self.table.tiles, self.all_rows(self.n_folds), folds, fold)

    def halves(self, theta: Mixture) -> tuple[Mixture, Mixture]:
        """Of mixtures of `all_and_folds`: those of all rows, and those of the folds."""
        return _halved(theta, self.n)

    def fit_with_pseudodata(
        self,
        theta: Mixture,
        base: PseudoData,
        nu: Any,
        pseudo: Any,
        n_steps: int,
        folds: bool = True,
    ) -> Mixture:
        """EM from `theta` (a mixture per node) on own rows, and on own folds, beside a base."""
        entries, given = self.all_rows(1), (theta, base, nu, pseudo)
        if folds:
            node, leave = self.all_and_folds()
            entries, given = self.table.of_rows(node, leave), at(given, node)
        start, base, nu, pseudo = given
        more = {"base": base, "pseudo": pseudo, "tolerance": 0.0, "sums": False}
        return self.fitted(entries, start, nu, n_steps, **more).theta


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


@jit_on_gpu
def by_node(condition: Array, node_of: Array, one: Array | float, other: Array) -> Any:
    """By row `one` at the nodes where the condition holds, else `other`."""
    return xp.where(xp.asarray(condition)[node_of, None], one, other)


@partial(jit_on_gpu, static_argnums=1)
def nodes_first(tree: Tree, n: int) -> Tree:
    """(nodes, times, ...) from (times x nodes, ...)."""
    split = lambda part: part.reshape(-1, n, *part.shape[1:])
    return jax.tree.map(lambda part: xp.swapaxes(split(part), 0, 1), tree)


@jit_on_gpu
def nodes_last(tree: Tree) -> Tree:
    """And back."""
    return jax.tree.map(lambda part: xp.swapaxes(part, 0, 1).reshape(-1, *part.shape[2:]), tree)


def to_add(log_likelihoods: tuple[Any, Any], group: np.ndarray) -> Sum:
    """A sum of log-likelihoods."""
    share, spread = log_likelihoods
    return Sum(share, group, spread)


def _counted(data: NodeData) -> NodeData:
    """Without rows that weigh nothing."""
    if (data.row_weights > 0).all():
        return data
    kept = data.row_weights > 0
    counts = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows, weights = data.rows[kept], data.row_weights[kept]
    return NodeData(data.labels, rows, weights, offsets, data.source_index[kept])
