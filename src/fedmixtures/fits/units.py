"""Units: the centre and scale of every feature that fits are computed in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.kernels.arrays import Segments, jit_on_gpu, xp
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture

TINY = np.finfo(np.float64).tiny


SLACK = 1.25
"""Times that what is told of scales may be off by its rounding."""
FAR = 4.0
"""Scales that the centre of all may be away from those told of."""


@dataclass(frozen=True, eq=False)
class UnitBounds:
    """Where the centre and the scale of all rows can lie, whatever a few of the nodes say.

    Each (features,).
    """

    lowest: np.ndarray
    highest: np.ndarray
    narrowest: np.ndarray
    widest: np.ndarray

    @classmethod
    def anywhere(cls, d: int) -> UnitBounds:
        """Of `d` features that nothing is known of."""
        return cls(np.full(d, -np.inf), np.full(d, np.inf), np.zeros(d), np.full(d, np.inf))

    @classmethod
    def of(cls, centres: np.ndarray, scales: np.ndarray) -> UnitBounds:
        """From what nodes tell of their own rows, (nodes, features); NaN where one tells nothing.

        The least and the greatest, a quarter of them on each side if there are many, are left
        out; of a feature that fewer than three tell of, nothing is known.
        """
        found = cls.anywhere(centres.shape[1])
        for j in range(centres.shape[1]):
            told = ~np.isnan(scales[:, j])
            if (n := int(told.sum())) >= 3:
                out = max(1, n // 4)
                centre, scale = np.sort(centres[told, j]), np.sort(scales[told, j])
                low, high, wide = centre[out], centre[-1 - out], scale[-1 - out]
                found.widest[j] = SLACK * np.hypot(wide, high - low)
                found.narrowest[j] = wide / SLACK / np.sqrt(n)
                found.lowest[j] = low - FAR * found.widest[j]
                found.highest[j] = high + FAR * found.widest[j]
        return found


@dataclass(frozen=True, eq=False)
class Units:
    """Centre and scale of every feature over all nodes: what everything is computed in."""

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(
        cls, centre: np.ndarray, deviations: np.ndarray, n_continuous: int, covariance_type: str
    ) -> Units:
        """From means and standard deviations; one-hot columns stay as they are."""
        varying = TYPES[covariance_type].scales(deviations[:n_continuous])
        categories = np.arange(len(centre)) >= n_continuous
        scale = np.concatenate([varying, np.ones(len(centre) - n_continuous)])
        return cls(np.where(categories, 0.0, centre), scale)

    def common(self, data: NodeData) -> NodeData:
        """Rows in common units."""
        rows = _scaled(data.rows, self.centre, self.scale)
        return replace(data, rows=rows)

    def of_users(self, theta: Mixture) -> Mixture:
        """Mixtures in common units, from the user's."""
        weights, means, covariances = theta.parts
        scale = self.scale[: theta.n_continuous]
        spread = scale[:, None] * scale
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
    varying = scale[: theta.n_continuous]
    parts = (
        xp.asarray(weights, np.float64),
        centre + means * scale,
        covariances * (varying[:, None] * varying),
    )
    return jax.tree.unflatten(jax.tree.structure(theta), parts)


@jit_on_gpu
def cell_sums(rows: Array, weights: Array, rows_of: Segments) -> tuple[Any, Any, Any, Any]:
    """Cells of every node and their sums, by feature; their spread, and that of their squares.

    And their standard deviation: the spread is as wide as the mean where all cells are alike.
    """
    weight = xp.where(xp.isnan(rows), 0.0, weights[:, None])
    rows, cells = xp.nan_to_num(rows), rows_of.sums(weight)
    own, first = xp.maximum(cells, TINY), rows_of.sums(weight * rows)
    means, node = first / own, rows_of.number()
    deviation = xp.sqrt(rows_of.sums(weight * (rows - means[node]) ** 2) / own)
    deviation = xp.where(deviation > 1e-12 * abs(means), deviation, 0.0)
    spread = xp.where(deviation > 0, deviation, xp.maximum(abs(means), 1e-6))
    spreads = {"cells": xp.ones_like(spread), "first": spread}
    return {"cells": cells, "first": first}, spreads, np.sqrt(2) * spread**2, deviation


@jit_on_gpu
def sums_of_squares(rows: Array, weights: Array, rows_of: Segments, centre: Array) -> Any:
    """Sums of squares about a centre, of every node by feature."""
    weight = xp.where(xp.isnan(rows), 0.0, weights[:, None])
    return rows_of.sums(weight * (xp.nan_to_num(rows) - centre) ** 2)
