"""Eq. (4): Monte-Carlo Kullback-Leibler divergence of the neighbour's mixture from the node's."""

from __future__ import annotations

from typing import Any, ClassVar

from fedmixtures import _checks
from fedmixtures._types import PerSlot, SlotKeys
from fedmixtures.discrepancy.base import AbstractDiscrepancy, Coupling
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.density import log_density
from fedmixtures.mixture.mixture import Mixture
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
