"""Step 0, units; and what the nodes of a block hold during all steps: rows, folds, tiles."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.init import distinct_rows_of_all
from fedmixtures.methods.conversation import Block, Request, Sum
from fedmixtures.methods.trust_then_pool.fits import (
    Base,
    Fit,
    advanced,
    densities,
    fitted,
    seeded,
)
from fedmixtures.methods.trust_then_pool.tiles import ALL, Entries, TileTable
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

FEW_ROWS = 30
"""A node of fewer rows makes three folds."""
FEW_FOLDS = 3

Tree = TypeVar("Tree")
"""A pytree of arrays."""


@dataclass(frozen=True, eq=False)
class Units:
    """Centre and scale of every feature over all nodes: what everything is computed in."""

    centre: np.ndarray
    scale: np.ndarray

    def common(self, data: NodeData) -> NodeData:
        """Rows in common units."""
        rows = (data.rows - self.centre) / self.scale
        return NodeData(data.labels, rows, data.row_weights, data.offsets, data.source_index)

    def of_users(self, theta: Mixture) -> Mixture:
        """Mixtures in common units, from the user's."""
        weights, means, covariances = theta.parts
        spread = self.scale[:, None] * self.scale
        return Mixture(weights, (means - self.centre) / self.scale, covariances / spread)

    def users(self, theta: Mixture) -> Mixture:
        """Mixtures in the user's units, in float64."""
        weights, means, covariances = (np.asarray(part, np.float64) for part in theta.parts)
        spread = self.scale[:, None] * self.scale
        return Mixture(weights, self.centre + means * self.scale, covariances * spread)


def common_units(block: Block, covariance_type: str = "full") -> Generator[Request, Any, Units]:
    """Step 0: centre and standard deviation of every feature, by two sums over everybody.

    Of the cells that are there; a feature that nobody has seen keeps its unit.
    """
    data = block.data
    weight = np.where(np.isnan(data.rows), 0.0, data.row_weights[:, None])
    per_node = lambda values: np.add.reduceat(values, data.offsets[:-1])
    rows, own = np.nan_to_num(data.rows), np.maximum(per_node(weight), np.finfo(np.float64).tiny)
    means = per_node(weight * rows) / own
    spread = np.sqrt(per_node(weight * (rows - means[data.node_index]) ** 2) / own)
    spread = np.where(spread > 1e-12 * np.abs(means), spread, np.maximum(np.abs(means), 1e-6))
    shares = {"cells": per_node(weight), "first": per_node(weight * rows)}
    total = yield Sum(shares, None, {"cells": np.ones_like(spread), "first": spread})
    cells = np.maximum(total["cells"][0], np.finfo(np.float64).tiny)
    centre = total["first"][0] / cells
    squares = yield Sum(per_node(weight * (rows - centre) ** 2), None, np.sqrt(2) * spread**2)
    scale = np.sqrt(squares[0] / cells)
    constant = scale <= 1e-12 * np.abs(centre)  # what rounding leaves of a constant column
    return Units(centre, TYPES[covariance_type].scales(np.where(constant, 0.0, scale)))


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
        self.rows_of = data.total_weights()
        k = np.minimum(block.n_components, data.counts)
        self.capped = k < block.n_components
        self.present = np.arange(int(block.n_components.max()))[None] < k[:, None]
        fold, self.n_folds = self._folds(data, n_folds)
        n_points = self.present.shape[1] * (2 * data.n_features + 1)
        n_lines = 1 + int(max(block.line.max(initial=-1), block.sender.max(initial=-1)))
        seen = np.add.reduceat(~np.isnan(data.rows), data.offsets[:-1], dtype=np.int64)
        self.blind = (seen == 0).any(1)
        """(nodes,) which have never seen one of the features: their own fits say nothing of it."""
        self.table = TileTable(data, fold, n_points, n_lines, block.dtype)
        tiles = self.table.tiles
        here = slice(0, self.table.row_tiles)
        self.fold, self.count = np.asarray(tiles.fold)[here], np.asarray(tiles.count)[here]
        self.node_of = np.repeat(np.arange(self.n), self.table.n_tiles)
        self.every = np.tile(np.arange(self.n), self.n_folds + 1)
        """The node of each of the fits "all rows of every node, then without every fold"."""
        self.leave = np.repeat(np.arange(ALL, self.n_folds), self.n)
        """The fold that each of these leaves out."""

    def _folds(self, data: NodeData, n_folds: int) -> tuple[np.ndarray, int]:
        """Fold of every row: dealt out in an order drawn from seed, label and the row's rank."""
        node = data.node_index
        rank = np.arange(len(data.rows)) - data.offsets[node]
        drawn = self._draw(node, 1, rank)
        order = np.lexsort((drawn, node))
        folds = np.where(data.counts < FEW_ROWS, min(FEW_FOLDS, n_folds), n_folds)
        fold = np.empty(len(node), np.int8)
        fold[order] = rank % folds[node]  # rows of a node stand together, so ranks count them off
        return fold, int(folds.max())

    def _draw(self, node: np.ndarray, *salt: Any) -> np.ndarray:
        """64 random bits from seed, label and salt."""
        bits = self.hashes[node] ^ np.uint64(self.block.seed)
        with np.errstate(over="ignore"):
            for part in (0, *salt):
                bits = bits ^ np.asarray(part).astype(np.uint64)
                bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                bits = bits ^ (bits >> np.uint64(31))
        return bits

    def keys(self, node: np.ndarray, *salt: Any) -> np.ndarray:
        """A 32-bit key per fit, from seed, label and what the fit is for."""
        return (self._draw(node, *salt) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def log_units(self, units: Units) -> np.ndarray:
        """(nodes, 1) what a row's log-density loses on average in the user's units."""
        observed = self.table.tiles.observed
        whole = np.log(units.scale).sum()
        if observed is None:
            return np.full((self.n, 1), whole)
        by_stretch = np.asarray(observed)[: self.table.row_tiles] @ np.log(units.scale)
        by_row = np.repeat(by_stretch, self.table.size // by_stretch.shape[1], axis=1)
        return (self.per_node(by_row * self.count) / self.rows_of)[:, None]

    def all_and_folds(self) -> Entries:
        """Fits of all rows of every node, then without each fold."""
        return self.table.of_rows(self.every, self.leave)

    def per_node(self, by_row: np.ndarray) -> np.ndarray:
        """Sums over the rows of every node."""
        return np.add.reduceat(by_row.sum(-1), self.table.first)

    def likelihoods(self, densities: Iterable[np.ndarray], group: np.ndarray) -> Sum:
        """A sum of the log-likelihoods of own rows, from densities by row: (nodes, densities)."""
        each = [np.where(self.count > 0, density, 0.0) for density in densities]
        sums = lambda power: np.stack([self.per_node(d**power * self.count) for d in each], axis=-1)
        first, rows = sums(1), self.rows_of[:, None]
        variance = sums(2) / rows - np.square(first / rows)
        return Sum(first, group, np.sqrt(np.maximum(np.nan_to_num(variance), 1.0)))

    def fitted(self, entries: Entries, theta: Mixture, nu: Any, n_steps: int, **more: Any) -> Fit:
        """As `fits.fitted`."""
        more = {"covariance_type": self.covariance_type, **more}
        return fitted(self.table.tiles, entries, theta, nu, self.ridge, n_steps, **more)

    def advanced(self, theta: Mixture, s: Statistics, nu: Any) -> Mixture:
        """As `fits.advanced`."""
        return advanced(theta, s, nu, self.ridge, self.covariance_type)

    def fresh(self, entries: Entries, nu: float, n_steps: int, keys, present: np.ndarray) -> Fit:
        """Fits from k-means++ centres and a few Lloyd steps."""
        start = seeded(self.table.tiles, entries, keys, present)
        return self.fitted(entries, start, nu, n_steps, from_centres=True)

    def densities(self, entries: Entries, theta: Mixture) -> np.ndarray:
        """As `fits.densities`."""
        return densities(self.table.tiles, entries, theta)

    def out_of_fold(self, folds: Mixture) -> np.ndarray:
        """By row: ln p under the model (folds x nodes, one after the other) without its fold."""
        node = np.tile(np.arange(self.n), self.n_folds)
        found = self.densities(self.table.of_rows(node, np.full(len(node), ALL)), folds)
        found = found.reshape(self.n_folds, -1, self.table.size)
        place = np.maximum(self.fold, 0)[None].astype(np.int64)
        return np.where(self.count > 0, np.take_along_axis(found, place, 0)[0], 0.0)

    def halves(self, theta: Mixture) -> tuple[Mixture, Mixture]:
        """Of mixtures of `all_and_folds`: those of all rows, and those of the folds."""
        return at(theta, slice(0, self.n)), at(theta, slice(self.n, None))

    def beside(
        self, theta: Mixture, base: Base, nu: Any, pseudo: Any, n_steps: int, folds: bool = True
    ) -> Mixture:
        """EM from `theta` (a mixture per node) on own rows, and on own folds, beside a base."""
        here = slice(None) if folds else slice(0, self.n)
        node, leave = self.every[here], self.leave[here]
        start, base, nu, pseudo = at((theta, base, nu, pseudo), node)
        more = {"base": base, "pseudo": pseudo, "tolerance": 0.0}
        entries = self.table.of_rows(node, leave)
        return self.fitted(entries, start, nu, n_steps, **more).theta


def at(tree: Tree, index: Any) -> Tree:
    """The lines `index` of every array."""
    return jax.tree.map(lambda part: np.asarray(part)[index], tree)


def chosen(condition: np.ndarray, one: Any, other: Any) -> Any:
    """Line by line `one` where the condition holds, else `other`."""
    wide = lambda part: condition.reshape(-1, *(1,) * (part.ndim - 1))
    return jax.tree.map(lambda a, b: np.where(wide(a), a, b), one, other)


def pick(best: np.ndarray, trees: list[Any]) -> Any:
    """Line by line that of the tree with the number `best`; a multiple of its lines, over again."""

    def picked(*parts):
        index = np.tile(best, len(parts[0]) // len(best))
        return np.stack(parts)[index, np.arange(len(index))]

    return jax.tree.map(picked, *trees)


def repeated(tree: Tree, times: int) -> Tree:
    """All lines, several times over."""
    return jax.tree.map(lambda part: np.tile(part, (times, *(1,) * (part.ndim - 1))), tree)


def _counted(data: NodeData) -> NodeData:
    """Without rows that weigh nothing."""
    if (data.row_weights > 0).all():
        return data
    kept = data.row_weights > 0
    counts = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows, weights = data.rows[kept], data.row_weights[kept]
    return NodeData(data.labels, rows, weights, offsets, data.source_index[kept])
