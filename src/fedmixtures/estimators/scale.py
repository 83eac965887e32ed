"""Units: what rows are shifted and divided by before a fit, and mixtures taken back from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import column_moments


@dataclass(frozen=True)
class Scale:
    """Shift and scale of every feature: what `--standardize` divides out."""

    shift: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, standardize: bool, covariance_type: str) -> Scale:
        """Mean and standard deviation of all nodes' rows together, or no change."""
        if not standardize:
            return cls(np.zeros(rows.shape[1]), np.ones(rows.shape[1]))
        mean, variance = column_moments(rows)
        return cls(mean, TYPES[covariance_type].scales(np.sqrt(variance)))

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Rows as the fit sees them."""
        return (rows - self.shift) / self.factor

    def original(self, theta: Mixture) -> Mixture:
        """Mixtures in the units of the table."""
        return Mixture(
            theta.weights,
            theta.means * self.factor + self.shift,
            theta.covariances * np.outer(self.factor, self.factor),
        )

    def log_volume(self, data: NodeData) -> np.ndarray:
        """(nodes,) what mean log-densities of own rows lose in the units of the table."""
        of_rows = data.row_weights * (~np.isnan(data.rows) @ np.log(self.factor))
        return np.add.reduceat(of_rows, data.offsets[:-1]) / data.total_weights()
