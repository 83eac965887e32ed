"""Step 0, units; and what the nodes of a block hold during all steps: rows, folds, tiles."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.init import distinct_rows_of_all
from fedmixtures.kernels.arrays import Stretches, fused, placed, xp
from fedmixtures.kernels.dispatch import nodes_at_once
from fedmixtures.methods.conversation import Block, Request, Sum
from fedmixtures.methods.trust_then_pool.batches import ALL, Entries
from fedmixtures.methods.trust_then_pool.fits import (
    Base,
    Fit,
    advanced,
    densities,
    fitted,
    seeded,
)
from fedmixtures.methods.trust_then_pool.tiles import TileTable
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

FEW_ROWS = 30
"""A node of fewer rows makes three folds."""
FEW_FOLDS = 3
TINY = np.finfo(np.float64).tiny

Tree = TypeVar("Tree")
"""A pytree of arrays."""


@dataclass(frozen=True, eq=False)
class Units:
    """Centre and scale of every feature over all nodes: what everything is computed in."""

    centre: np.ndarray
    scale: np.ndarray

    def common(self, data: NodeData) -> NodeData:
        """Rows in common units."""
        rows = (xp.asarray(data.rows) - self.centre) / self.scale
        return NodeData(data.labels, rows, data.row_weights, data.offsets, data.source_index)

    def of_users(self, theta: Mixture) -> Mixture:
        """Mixtures in common units, from the user's."""
        weights, means, covariances = theta.parts
        spread = self.scale[:, None] * self.scale
        return Mixture(weights, (means - self.centre) / self.scale, covariances / spread)

    def users(self, theta: Mixture) -> Mixture:
        """Mixtures in the user's units: NumPy, in float64."""
        return jax.tree.map(np.asarray, _in_users(theta, self.centre, self.scale))


@fused
def _in_users(theta: Mixture, centre: Array, scale: Array) -> Mixture:
    weights, means, covariances = (xp.asarray(part, np.float64) for part in theta.parts)
    parts = weights, centre + means * scale, covariances * (scale[:, None] * scale)
    return jax.tree.unflatten(jax.tree.structure(theta), parts)


def common_units(block: Block, covariance_type: str = "full") -> Generator[Request, Any, Units]:
    """Step 0: centre and standard deviation of every feature, by two sums over everybody.

    Of the cells that are there; a feature that nobody has seen keeps its unit.
    """
    data = block.data
    table = xp.asarray(data.rows), xp.asarray(data.row_weights)
    rows_of = Stretches(data.offsets[:-1], len(data.rows))
    shares, spread = _cells(*table, rows_of)
    total = yield Sum(shares, None, {"cells": xp.ones_like(spread), "first": spread})
    cells = np.maximum(total["cells"][0], TINY)
    centre = np.asarray(total["first"][0]) / cells
    squares = yield Sum(_squares(*table, rows_of, centre), None, np.sqrt(2) * spread**2)
    scale = np.sqrt(np.asarray(squares[0]) / cells)
    constant = scale <= 1e-12 * np.abs(centre)  # what rounding leaves of a constant column
    return Units(centre, TYPES[covariance_type].scales(np.where(constant, 0.0, scale)))


@fused
def _cells(rows: Array, weights: Array, rows_of: Stretches) -> tuple[Any, Any]:
    """Cells of every node and their sums, by feature; and their spread at the node."""
    weight = xp.where(xp.isnan(rows), 0.0, weights[:, None])
    rows, cells = xp.nan_to_num(rows), rows_of.sums(weight)
    own, first = xp.maximum(cells, TINY), rows_of.sums(weight * rows)
    means, node = first / own, rows_of.number()
    spread = xp.sqrt(rows_of.sums(weight * (rows - means[node]) ** 2) / own)
    spread = xp.where(spread > 1e-12 * abs(means), spread, xp.maximum(abs(means), 1e-6))
    return {"cells": cells, "first": first}, spread


@fused
def _squares(rows: Array, weights: Array, rows_of: Stretches, centre: Array) -> Any:
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
        ridge: float,
        covariance_type: str = "full",
    ):
        data = distinct_rows_of_all(units.common(_counted(block.data)))
        self.block, self.ridge, self.covariance_type = block, ridge, covariance_type
        self.n, self.hashes = data.n_nodes, data.label_hashes
        self.lone = (self.hashes >> np.uint64(1)).astype(np.int64)
        """(nodes,) the label of a group of the node alone."""
        self.rows_of = np.asarray(
            Stretches(data.offsets[:-1], len(data.rows)).sums(data.row_weights)
        )
        k = np.minimum(block.n_components, data.counts)
        self.capped = k < block.n_components
        self.present = np.arange(int(block.n_components.max()))[None] < k[:, None]
        fold, self.n_folds = self._folds(data, n_folds)
        n_points = self.present.shape[1] * (2 * data.n_features + 1)
        n_lines = 1 + int(max(block.line.max(initial=-1), block.sender.max(initial=-1)))
        seen = Stretches(data.offsets[:-1], len(data.rows)).sums(~xp.isnan(data.rows), np.int64)
        self.blind = np.asarray((seen == 0).any(1))
        """(nodes,) which have never seen one of the features: their own fits say nothing of it."""
        self.table = TileTable(data, fold, n_points, n_lines, block.dtype)
        tile, tiles = np.arange(self.table.row_tiles), self.table.tiles
        self._by_tile(tile, *at((tiles.fold, tiles.count), slice(0, len(tile))))

    def only(self, who: np.ndarray | slice) -> Nodes:
        """Some of the nodes, in the same tiles."""
        part = copy.copy(self)
        part.block = replace(self.block, line=self.block.line[who])
        part.table = self.table.only(who)
        for name in ("hashes", "lone", "rows_of", "capped", "present", "blind"):
            setattr(part, name, getattr(self, name)[who])
        part.n = len(part.lone)
        return part._by_tile(*at((self.tile, self.fold, self.count), self.tiles(who)))

    def tiles(self, who: np.ndarray | slice) -> Any:
        """The lines that some nodes have in arrays by row."""
        n_tiles = self.table.n_tiles
        end = np.cumsum(n_tiles)
        if isinstance(who, slice):
            return slice(int(end[who.start] - n_tiles[who.start]), int(end[who.stop - 1]))
        sizes = n_tiles[who]
        begin = end[who] - np.cumsum(sizes)
        return np.repeat(begin, sizes) + np.arange(sizes.sum())

    def in_parts(self, step: Callable[..., Tree], *by_node: Any) -> Tree:
        """`step(part, who, *by_node)` for some of the nodes at a time, with their lines.

        What it works out on the way is held for one part alone. It returns lines by node or by
        tile, which are joined.
        """
        width = nodes_at_once()
        if self.n <= width:
            return step(self, slice(0, self.n), *by_node)
        columns: list[list[Array]] = []
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

    def _by_tile(self, tile: Any, fold: Any, count: Any) -> Nodes:
        """With what stands by tile (those of own rows)."""
        self.tile, self.fold, self.count = tile, fold, count
        """(tiles,) where each of own rows stands in the table."""
        n_tiles = self.table.n_tiles
        self.tiles_of = Stretches(np.cumsum(n_tiles) - n_tiles, len(tile))
        self.node_of = self.tiles_of.number()
        return self

    def _folds(self, data: NodeData, n_folds: int) -> tuple[Array, int]:
        """Fold of every row: dealt out in an order drawn from seed, label and the row's rank."""
        node = Stretches(data.offsets[:-1], len(data.rows)).number()
        rank = xp.arange(len(data.rows)) - xp.asarray(data.offsets)[node]
        drawn = self._draw(node, 1, rank)
        order = xp.lexsort((drawn, node))
        folds = np.where(data.counts < FEW_ROWS, min(FEW_FOLDS, n_folds), n_folds)
        # Rows of a node stand together, so ranks count them off.
        fold = placed(len(node), order, rank % xp.asarray(folds)[node], 0, np.int8)
        return fold, int(folds.max())

    def _draw(self, node: Array, *salt: Any) -> Any:
        """64 random bits from seed, label and salt."""
        with np.errstate(over="ignore"):
            return _drawn(self.hashes, np.uint64(self.block.seed), node, salt)

    def keys(self, node: Array, *salt: Any) -> Any:
        """A 32-bit key per fit, from seed, label and what the fit is for."""
        return self._draw(node, *salt).astype(np.uint32)

    def log_units(self, units: Units) -> np.ndarray:
        """(nodes, 1) what a row's log-density loses on average in the user's units."""
        observed = self.table.tiles.observed
        whole = np.log(units.scale).sum()
        if observed is None:
            return np.full((self.n, 1), whole)
        by_stretch = np.asarray(observed)[: self.table.row_tiles] @ np.log(units.scale)
        by_row = np.repeat(by_stretch, self.table.size // by_stretch.shape[1], axis=1)
        return np.asarray(self.per_node(by_row * self.count) / self.rows_of)[:, None]

    def all_and_folds(self) -> tuple[Any, Any]:
        """Node and fold left out of all fits: of all rows of a node, then without each fold."""
        every = xp.repeat(xp.arange(self.n), self.n_folds + 1)
        return every, xp.tile(xp.arange(ALL, self.n_folds), self.n)

    def per_node(self, by_row: Array) -> Any:
        """Sums over the rows of every node."""
        return self.tiles_of.sums(by_row.sum(-1))

    def likelihoods(self, densities: Iterable[Array], group: np.ndarray) -> Sum:
        """A sum of the log-likelihoods of own rows, from densities by row: (nodes, densities)."""
        return self.told(*self.log_likelihoods(densities), group)

    def log_likelihoods(self, densities: Iterable[Array]) -> tuple[Any, Any]:
        """(nodes, densities) sums of log-densities of own rows, and of their squares."""
        each = [_first_and_second(density, self.count, self.tiles_of) for density in densities]
        first, second = (xp.stack(parts, axis=-1) for parts in zip(*each, strict=True))
        return first, second

    def told(self, first: Array, second: Array, group: np.ndarray) -> Sum:
        """A sum of log-likelihoods, from those of every node and the squares."""
        return Sum(first, group, _spread(first, second, self.rows_of[:, None]))

    def fitted(self, entries: Entries, theta: Mixture, nu: Any, n_steps: int, **more: Any) -> Fit:
        """As `fits.fitted`."""
        more = {"covariance_type": self.covariance_type, **more}
        return fitted(self.table.tiles, entries, theta, nu, self.ridge, n_steps, **more)

    def advanced(self, theta: Mixture, s: Statistics, nu: Any) -> Mixture:
        """As `fits.advanced`."""
        with precision(self.block.dtype):
            return advanced(theta, s, nu, self.ridge, self.covariance_type)

    def fresh(self, entries: Entries, nu: float, n_steps: int, keys, present: Array) -> Fit:
        """Fits from k-means++ centres and a few Lloyd steps."""
        start = seeded(self.table.tiles, entries, keys, present)
        return self.fitted(entries, start, nu, n_steps, from_centres=True)

    def densities(self, entries: Entries, theta: Mixture) -> Any:
        """As `fits.densities`."""
        return densities(self.table.tiles, entries, theta)

    def of_all_rows(self, theta: Mixture) -> Any:
        """(times, tiles, rows) densities of all rows under several mixtures (nodes, times, ...)."""
        times = theta.weights.shape[1]
        node = np.tile(np.arange(self.n), times)
        entries = self.table.of_rows(node, np.full(len(node), ALL))
        return self.densities(entries, _times_first(theta)).reshape(times, -1, self.table.size)

    def out_of_fold(self, folds: Mixture) -> Any:
        """By row: ln p under the model (nodes, folds, ...) without its fold."""
        return _of_own_fold(self.of_all_rows(folds), self.fold, self.count)

    def beside(
        self, theta: Mixture, base: Base, nu: Any, pseudo: Any, n_steps: int, folds: bool = True
    ) -> Mixture:
        """EM from `theta` on own rows, and on own folds, beside a base: (nodes, fits, ...)."""
        node, leave = self.all_and_folds() if folds else (xp.arange(self.n), np.full(self.n, ALL))
        start, base, nu, pseudo = at((theta, base, nu, pseudo), node)
        more = {"base": base, "pseudo": pseudo, "tolerance": 0.0, "sums": False}
        found = self.fitted(self.table.of_rows(node, leave), start, nu, n_steps, **more)
        return by_fit(found.theta, self.n)


def at(tree: Tree, index: Any) -> Tree:
    """The lines `index` of every array."""
    if isinstance(index, slice):
        return jax.tree.map(lambda part: xp.asarray(part)[index], tree)
    return _at(tree, index)


@fused
def _first_and_second(density: Array, count: Array, tiles_of: Stretches) -> tuple[Any, Any]:
    """Sums of log-densities and of their squares, by node."""
    density = xp.where(count > 0, density, 0.0)
    return tuple(tiles_of.sums((density**power * count).sum(-1)) for power in (1, 2))


@fused
def _spread(first: Array, second: Array, rows: Array) -> Any:
    """Standard deviations of what so many rows add, but at least one."""
    variance = second / rows - xp.square(first / rows)
    return xp.sqrt(xp.maximum(xp.nan_to_num(variance), 1.0))


@fused
def _drawn(hashes: Array, seed: Any, node: Array, salt: tuple[Any, ...]) -> Any:
    """64 random bits (splitmix64)."""
    bits = xp.asarray(hashes)[node] ^ seed
    for part in (0, *salt):
        bits = bits ^ xp.asarray(part).astype(np.uint64)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return bits


@fused
def _of_own_fold(density: Array, fold: Array, count: Array) -> Any:
    """By row the density (folds, tiles, rows) of its own fold; zero for padding."""
    place = xp.maximum(fold, 0)[None].astype(np.int64)
    return xp.where(count > 0, xp.take_along_axis(density, place, 0)[0], 0.0)


@fused
def _at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda part: xp.asarray(part)[index], tree)


@fused
def chosen(condition: Array, one: Any, other: Any) -> Any:
    """Line by line `one` where the condition holds, else `other`."""
    wide = lambda part: condition.reshape(-1, *(1,) * (part.ndim - 1))
    return jax.tree.map(lambda a, b: xp.where(wide(a), a, b), one, other)


@fused
def by_node(condition: Array, node_of: Array, one: Array | float, other: Array) -> Any:
    """By row `one` at the nodes where the condition holds, else `other`."""
    return xp.where(xp.asarray(condition)[node_of, None], one, other)


@fused
def pick(best: Array, trees: list[Any]) -> Any:
    """Line by line that of the tree with the number `best`."""
    return jax.tree.map(lambda *parts: xp.stack(parts)[best, xp.arange(len(best))], *trees)


@partial(fused, static_argnums=1)
def by_fit(tree: Tree, n: int) -> Tree:
    """(nodes, fits of a node, ...) from (nodes x fits, ...)."""
    return jax.tree.map(lambda part: part.reshape(n, -1, *part.shape[1:]), tree)


@fused
def all_fits(tree: Tree) -> Tree:
    """And back."""
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), tree)


@fused
def _times_first(tree: Any) -> Any:
    """(times x nodes, ...) from (nodes, times, ...)."""
    return jax.tree.map(lambda part: xp.swapaxes(part, 0, 1).reshape(-1, *part.shape[2:]), tree)


@fused
def all_and_each(theta: Mixture) -> tuple[Mixture, Mixture]:
    """Of mixtures (nodes, 1 + folds, ...): those of all rows, and those of the folds."""
    of = lambda here: jax.tree.map(lambda part: part[:, here], theta)
    return of(0), of(slice(1, None))


@partial(fused, static_argnums=1)
def repeated(tree: Tree, times: int) -> Tree:
    """(lines, times, ...): every line several times."""
    return jax.tree.map(lambda part: xp.repeat(part[:, None], times, axis=1), tree)


def _counted(data: NodeData) -> NodeData:
    """Without rows that weigh nothing."""
    if (data.row_weights > 0).all():
        return data
    kept = data.row_weights > 0
    counts = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows, weights = data.rows[kept], data.row_weights[kept]
    return NodeData(data.labels, rows, weights, offsets, data.source_index[kept])
