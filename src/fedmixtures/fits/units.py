"""Units: the centre and scale of every feature that fits are computed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.kernels.arrays import jit_on_gpu, xp
from fedmixtures.mixture.mixture import Mixture


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
