"""Units of a fit: what rows are shifted and divided by, and mixtures taken back from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.methods.base import Method
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import column_moments

SPREADS = 0.5, 10.0
"""Standard deviations of nodes' own rows with which step and bandwidths of the couplings work as
they are. (In the paper's data they are 1.5 to 6.)"""


@dataclass(frozen=True)
class Scale:
    """Shift and scale of every feature: the units of a fit, and the way back."""

    shift: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, data: NodeData, covariance_type: str) -> Scale:
        """Mean and standard deviation of all rows together; categories stay as they are."""
        g, (mean, variance) = data.n_continuous, column_moments(data.rows)
        mean[g:], factor = 0.0, np.ones(len(mean))
        factor[:g] = TYPES[covariance_type].scales(np.sqrt(variance[:g]))
        return cls(mean, factor)

    def scaled(self, rows: Any) -> Any:
        """Rows as the fit sees them."""
        return (rows - self.shift) / self.factor

    def scaled_mixture(self, theta: Mixture) -> Mixture:
        """Mixtures in the units of the fit."""
        varying = self.factor[: theta.n_continuous]
        outer = np.outer(varying, varying)
        return Mixture(theta.weights, self.scaled(theta.means), theta.covariances / outer)

    def original(self, theta: Mixture) -> Mixture:
        """Mixtures in the units of the rows."""
        varying = self.factor[: theta.n_continuous]
        outer = np.outer(varying, varying)
        means = theta.means * self.factor + self.shift
        return Mixture(theta.weights, means, theta.covariances * outer)

    def log_volume(self, data: NodeData) -> np.ndarray:
        """(nodes,) what mean log-densities of own rows lose in the units of the rows."""
        of_rows = data.row_weights * (~np.isnan(data.rows) @ np.log(self.factor))
        return np.add.reduceat(of_rows, data.offsets[:-1]) / data.total_weights()


def scale_for(data: NodeData, method: Method, standardize: bool | None) -> Scale | None:
    """The units in which a method fits these rows; None: as they are.

    `standardize`: whether features are divided by their standard deviations. None: for methods
    with a step (couplings), which is made for features of order one, if one of them is far from it.
    """
    if standardize is None:
        standardize = hasattr(method, "learning_rate") and not of_order_one(data).all()
    return Scale.of(data, method.covariance_type) if standardize else None


def of_order_one(data: NodeData) -> np.ndarray:
    """(features,) whether nodes' rows have a spread that the couplings are made for."""
    _, variance = column_moments(data.rows - data.means()[data.node_index])
    spread = np.sqrt(variance)
    return (spread >= SPREADS[0]) & (spread <= SPREADS[1])
