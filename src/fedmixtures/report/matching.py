"""The same component in the same place of the list, round after round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmixtures._ties import first_matching
from fedmixtures.mixture.mixture import Mixture


def matched_to_last(thetas: Sequence[Mixture]) -> list[Mixture]:
    """Reorder components, node by node, to follow those of the last entry back through time."""
    matched = [thetas[-1]]
    for theta in reversed(thetas[:-1]):
        matched.append(_matched(theta, matched[-1]))
    return matched[::-1]


def _matched(theta: Mixture, to: Mixture) -> Mixture:
    gap = np.square(to.means[:, :, None] - theta.means[:, None, :]).sum(-1)
    gap += np.square(to.covariances[:, :, None] - theta.covariances[:, None, :]).sum((-2, -1))
    absent = (to.weights[:, :, None] > 0) != (theta.weights[:, None, :] > 0)
    cost = gap + np.where(absent, 1e6 * (1 + gap.max()), 0.0)
    orders = np.stack([first_matching(one) for one in cost])
    take = lambda part: np.take_along_axis(
        part, orders.reshape(*orders.shape, *(1,) * (part.ndim - 2)), 1
    )
    return Mixture(*(take(part) for part in theta.parts))
