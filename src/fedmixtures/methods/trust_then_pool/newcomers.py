"""A node that comes later: its levels, from what the network has found.

It has its own rows: own is fitted as at the start, everyone is what it is, and personal is
everyone's mixture moved to its rows. It listens to nobody yet, so that near and group are own. No
other node changes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.fits.em import Shrinkage
from fedmixtures.fits.rows import nodes_last
from fedmixtures.fits.units import Units
from fedmixtures.kernels.arrays import repeated
from fedmixtures.methods.base import Levels
from fedmixtures.methods.protocol import Sum
from fedmixtures.methods.trust_then_pool.nodes import Nodes
from fedmixtures.methods.trust_then_pool.own import Level
from fedmixtures.methods.trust_then_pool.pool import Everyone, Pooled
from fedmixtures.mixture.mixture import Mixture, distinct
from fedmixtures.mixture.moments import Statistics


class Known:
    """What a network has found: everyone's mixture, its rows, and how levels weigh there."""

    def __init__(
        self, levels: Levels, rows: np.ndarray, shrinkage: Shrinkage, covariance_type: str
    ):
        """`rows` and `shrinkage` (nodes,): numbers of rows, and how covariances were shrunk."""
        share = rows / rows.sum()
        mixtures, shares = distinct(levels.theta.at(levels.names.index("everyone")), share)
        largest = int(first_greatest(shares))  # of the parts, where the network has several
        users = mixtures.at(slice(largest, largest + 1))
        self.rows = rows.sum() * shares[largest]
        self.shrinkage = Shrinkage(*(np.full(1, np.median(of)) for of in shrinkage))
        self.weights = share @ levels.weights
        self.units = _units_of(users, covariance_type)
        self.everyone = self.units.of_users(users)

    def everyone_at(self, nodes: Nodes) -> Everyone:
        """Everyone's level at a node whose rows are not in it: no fold is left out of it."""
        theta = self.everyone
        mass = self.rows * theta.weights
        second = mass[..., None, None] * theta.covariances
        rest = Statistics(np.zeros(1), mass, np.zeros_like(theta.means), second)
        folds = nodes_last(repeated(theta, nodes.n_folds))
        pooled = Pooled(theta, rest, self.shrinkage)
        return Everyone(Level(theta, nodes.out_of_fold(folds), theta), pooled, pooled)


def by_oneself(steps: Generator[Sum, Any, Any]) -> Any:
    """The end of steps that ask for nothing but sums, of one node alone."""
    reply = None
    while True:
        try:
            reply = steps.send(reply).share
        except StopIteration as end:
            return end.value


def _units_of(theta: Mixture, covariance_type: str) -> Units:
    """Centre and scale of the rows that a mixture (1, ...) stands for."""
    weights, means, covariances = (part[0] for part in theta.parts)
    centre = cast(np.ndarray, weights @ means)  # of NumPy mixtures, as levels are
    g = theta.n_continuous
    variance = weights @ (means - centre) ** 2
    variance[:g] += weights @ np.diagonal(covariances, axis1=1, axis2=2)
    return Units.of(centre, np.sqrt(variance), g, covariance_type)
