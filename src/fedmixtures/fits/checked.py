"""What can be a mixture, and what can be sums over rows: messages may be false."""

from __future__ import annotations

from typing import Any

import jax

from fedmixtures.kernels.arrays import xp
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

MOST = 1e30
"""No sum over rows in common units is larger."""


def are_mixtures(theta: Mixture) -> Any:
    """Which of the mixtures (nodes, starts, ...) can be such."""
    numbers = [part.reshape(*theta.weights.shape[:2], -1) for part in theta.parts]
    finite = (abs(xp.concatenate(numbers, axis=-1)) < MOST).all(-1)
    variances = xp.diagonal(theta.covariances, axis1=-2, axis2=-1)
    positive = ((variances > 0).all(-1) | (theta.weights <= 0)).all(-1)
    some = (theta.weights >= 0).all(-1) & (theta.weights.sum(-1) > 0)
    return finite & positive & some


def sound(total: Statistics) -> Any:
    """Which totals can be sums over rows: finite, with masses and variances not below zero."""
    flat = xp.concatenate([part.reshape(len(total.mass), -1) for part in jax.tree.leaves(total)], 1)
    variances = xp.diagonal(total.second, axis1=-2, axis2=-1).reshape(len(flat), -1)
    finite = (abs(flat) < MOST).all(1)
    return finite & (total.mass >= 0).all(1) & (variances >= 0).all(1)
