"""The numbers that the phases share."""

from __future__ import annotations

import equinox as eqx

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
    ridge: float
    n_starts: int
