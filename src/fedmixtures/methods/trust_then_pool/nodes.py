"""Step 0, units; and the nodes of a block, as all steps see them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from fedmixtures.fits.rows import FoldedRows
from fedmixtures.fits.units import TINY, Units, cell_sums, sums_of_squares
from fedmixtures.kernels.arrays import Segments, at
from fedmixtures.methods.protocol import Block, Request, Sum, Whereabouts


def common_units(block: Block, covariance_type: str = "full") -> Generator[Request, Any, Units]:
    """Step 0: centre and standard deviation of every feature, by two sums over everybody.

    Of the cells that are there; a feature that nobody has seen keeps its unit. Totals are used as
    far as they agree with what all have told of their own rows before.
    """
    data = block.device_data
    table = data.rows, data.row_weights
    rows_of = Segments(data.offsets[:-1], len(data.rows))
    shares, spreads, spread, deviation = cell_sums(*table, rows_of)
    bounds = yield Whereabouts(shares["cells"], shares["first"], deviation)
    total = at((yield Sum(shares, None, spreads)), slice(0, 1))
    cells = np.maximum(total["cells"][0], TINY)
    with np.errstate(over="ignore"):  # totals can be anything until they are within bounds
        centre = np.asarray(total["first"][0]) / cells
    centre = np.clip(centre, bounds.lowest, bounds.highest)
    squares = yield Sum(sums_of_squares(*table, rows_of, centre), None, spread)
    squares = np.maximum(np.asarray(at(squares, slice(0, 1)))[0], 0.0)
    with np.errstate(over="ignore"):
        scale = np.sqrt(squares / cells)
    scale = np.clip(scale, bounds.narrowest, bounds.widest)
    constant = scale <= 1e-12 * np.abs(centre)  # what rounding leaves of a constant column
    return Units.of(centre, np.where(constant, 0.0, scale), data.n_continuous, covariance_type)


class Nodes(FoldedRows):
    """The nodes of a block: their rows in common units, by tile and fold."""

    def __init__(self, block: Block, units: Units, options: Any):
        """`options`: those of the method (`n_folds`, `reg_covar`, `covariance_type`)."""
        self.block, self.options = block, options
        self.lone = (block.data.label_hashes >> np.uint64(1)).astype(np.int64)
        """(nodes,) the label of a group of the node alone."""
        super().__init__(
            units.common(block.device_data),
            block.n_components,
            n_folds=options.n_folds,
            seed=block.seed,
            dtype=block.dtype,
            most_components=block.most_components,
            n_mixtures=1 + int(max(block.line.max(initial=-1), block.sender.max(initial=-1))),
            reg_covar=options.reg_covar,
            covariance_type=options.covariance_type,
        )

    @property
    def nu(self) -> float:
        """The full strength of the prior."""
        return float(self.options.prior.strength)

    def only(self, who: np.ndarray | slice) -> Nodes:
        """Some of the nodes, in the same tiles."""
        part = super().only(who)
        part.block = replace(self.block, line=self.block.line[who])
        part.lone = self.lone[who]
        return part

    def log_units(self, units: Units) -> np.ndarray:
        """(nodes, 1) what a row's log-density loses on average in the user's units."""
        observed = self.table.tiles.observed
        whole = np.log(units.scale).sum()
        if observed is None:
            return np.full((self.n, 1), whole)
        by_segment = np.asarray(observed)[: self.table.row_tiles] @ np.log(units.scale)
        by_row = np.repeat(by_segment, self.table.size // by_segment.shape[1], axis=1)
        return np.asarray(self.per_node(by_row * self.count) / self.rows_of)[:, None]


def to_add(log_likelihoods: tuple[Any, Any], group: np.ndarray) -> Sum:
    """A sum of log-likelihoods."""
    share, spread = log_likelihoods
    return Sum(share, group, spread)
