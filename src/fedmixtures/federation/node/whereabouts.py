"""Where a site's rows lie, coarsely, told to all sites before the first sum.

Sums cannot be looked into: a member that adds too much sets their total. So every site says once,
by column, about where its rows lie and how far they spread; what most of them say bounds what the
totals can be (`UnitBounds`). A spread is told to a quarter of an octave, a centre to half of it: no
finer than the gate's rows would give them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures.federation.node.rounding import uniform
from fedmixtures.fits.units import UnitBounds

PER_OCTAVE = 4
PER_SPREAD = 2.0
FARTHEST = 2**40
"""Whole numbers of a message are no larger; this one says that nothing is told of a column."""
WIDEST = 2**10
"""Spreads are within so many quarters of an octave of one."""


@dataclass(frozen=True)
class Place:
    """Of a site's own rows, as it is at home; it leaves as whole numbers."""

    cells: np.ndarray
    """(features,), people where these are known."""
    centre: np.ndarray
    spread: np.ndarray

    def coarse(self, least: int, secret: bytes) -> np.ndarray:
        """Two whole numbers a column, up or down by secret offsets; of few cells nothing."""
        d = len(self.cells)
        offset = uniform(secret, 2 * d).reshape(2, d)
        there = (self.cells >= least) & (self.spread > 0)
        spread = np.where(there, self.spread, 1.0)
        wide = np.floor(PER_OCTAVE * np.log2(spread) + offset[0])
        there &= np.abs(wide) <= WIDEST
        step = _spread(np.where(there, wide, 0.0)) / PER_SPREAD
        at = np.floor(self.centre / step + offset[1])
        there &= np.abs(at) < FARTHEST
        return np.where(there, np.stack([wide, at]), FARTHEST).astype(np.int64).ravel()


def bounds(told: list[np.ndarray]) -> UnitBounds:
    """What follows for the units from what all sites have told."""
    wide, at = np.swapaxes(np.array(told, np.float64).reshape(len(told), 2, -1), 0, 1)
    spread = np.where(np.abs(wide) <= WIDEST, _spread(np.clip(wide, -WIDEST, WIDEST)), np.nan)
    return UnitBounds.of(at * spread / PER_SPREAD, spread)


def _spread(wide: Any) -> Any:
    return np.exp2(np.asarray(wide, np.float64) / PER_OCTAVE)
