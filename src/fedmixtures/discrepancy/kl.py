"""Eq. (4): Kullback-Leibler divergence of the neighbour's mixture from the node's.

On points drawn from the neighbour, or on its sigma points, without sampling.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from fedmixtures import _checks
from fedmixtures._types import PerSlot, SlotKeys
from fedmixtures.discrepancy.base import AbstractDiscrepancy, Coupling
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.density import log_density
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points
from fedmixtures.mixture.sampling import sample


class KL(AbstractDiscrepancy):
    r"""$\widehat{KL}(p' \| p)$ on `n_samples` points drawn from the neighbour's $p'$, eq. (4).

    Every round draws fresh points for every (node, neighbour). The node so fits its own rows
    together with rows its neighbours imagine. Needs no matching and no equal numbers of components.
    """

    symmetric: ClassVar[bool] = False
    random: ClassVar[bool] = True

    n_samples: int = 50

    def __check_init__(self):
        _checks.whole("n_samples", self.n_samples)

    def freeze(self, own, neighbour, key):
        """Points drawn from the neighbour and their log-density there."""
        del own
        points = sample(neighbour, key, self.n_samples)
        return points, log_density(neighbour, points)

    def __call__(self, own, frozen):
        """Eq. (4) on the frozen points."""
        points, log_neighbour = frozen
        return (log_neighbour - log_density(own, points)).mean()

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """Points of all neighbours, drawn once for all local steps of a round."""
        return dispatch.drawn_points(own, neighbours, keys, weight, self.n_samples)


class UnscentedKL(AbstractDiscrepancy):
    r"""$\widehat{KL}(p' \| p)$ on $2d+1$ sigma points per component of the neighbour's $p'$.

    Deterministic, and worked out once per message. The expectation of a quadratic is exact; that of
    a log-density of a mixture is not, and for mixtures that overlap the value can even be slightly
    negative. The gradient is that of fitting the neighbour's points.
    """

    symmetric: ClassVar[bool] = False

    def digest(self, mixture):
        """The neighbour's points, their weights, and their log-density there."""
        points, weights = sigma_points(mixture)
        points = points.reshape(-1, mixture.n_features)
        return points, weights.reshape(-1), log_density(mixture, points)

    def freeze(self, own, neighbour, key):
        """Nothing random and nothing to match: the digest itself."""
        del own, key
        return neighbour

    def __call__(self, own, frozen):
        """Weighted mean of the log-density ratio."""
        points, weights, log_neighbour = frozen
        # Points of absent components weigh nothing, wherever they are.
        ratio = jnp.where(weights > 0, log_neighbour - log_density(own, points), 0.0)
        return weights @ ratio

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """The neighbours' points as rows of the node."""
        del own, keys
        points, weights, log_neighbour = neighbours
        constants = jnp.where(weights > 0, log_neighbour, 0.0)
        return dispatch.weighted_points(points, weights, constants, weight)
