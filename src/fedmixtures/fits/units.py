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
def cell_sums(rows: Array, weights: Array, rows_of: Segments) -> tuple[Any, Any, Any]:
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
def sums_of_squares(rows: Array, weights: Array, rows_of: Segments, centre: Array) -> Any:
    """Sums of squares about a centre, of every node by feature."""
    weight = xp.where(xp.isnan(rows), 0.0, weights[:, None])
    return rows_of.sums(weight * (xp.nan_to_num(rows) - centre) ** 2)
