"""The numbers that the phases share."""

from __future__ import annotations

import equinox as eqx

from fedmixtures._types import Array
from fedmixtures.mixture.em import ShapePrior

FIT_STEPS = 25
"""EM steps of a fit from a fresh start."""
FEW_STEPS = 5
"""EM steps that adapt a fitted mixture to somewhat different points."""
MOST_MASS = 10.0
"""In the harmless test a neighbour's summary weighs at most this many times the own rows."""
CLEAN = 0.2
"""A neighbour whose statistics reach this p-value beside the own ones vouches for others."""


class FitSettings(eqx.Module):
    """How mixtures are fitted."""

    prior: ShapePrior | None
    ridge: float | Array
    n_starts: int


class Settings(eqx.Module):
    """What a user may set, see `TrustThenPool`."""

    fit: FitSettings
    n_folds: int
    caution: float | Array
    level: float | Array
    prior_odds: float | Array

    @property
    def ridge(self) -> float | Array:
        """Added to the diagonal of every covariance."""
        return self.fit.ridge

    @property
    def prior(self) -> ShapePrior | None:
        """Shape prior of all fits."""
        return self.fit.prior
