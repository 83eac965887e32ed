"""What the EM methods share: counted rows, floors, and what a round shows."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode, RowWeights, Weights
from fedmixtures.methods.base import Info, NodeRows
from fedmixtures.mixture.em import ShapePrior
from fedmixtures.mixture.statistics import Statistics

SMALLEST_WEIGHT = 1e-12
"""A component may fade at a node; it is never struck out, so that it can come back."""


def check_em(reg_covar: float, prior: ShapePrior | None) -> None:
    """The two settings all EM methods have."""
    _checks.positive("reg_covar", reg_covar, allow_zero=True)
    if prior is not None and not isinstance(prior, ShapePrior):
        raise ValueError(f"`prior` is {prior!r}. Give a ShapePrior or None.")


def counts(data: NodeRows) -> RowWeights:
    """Row weights that sum to the rows of each node."""
    return data.row_weights * data.total_weight[:, None]


def weights_of(mass: Float[Array, "*nodes k"], prior: ShapePrior | None = None) -> Weights:
    """Shares of the mass, none of them zero."""
    mass = mass if prior is None else mass + prior.extra_mass
    total = mass.sum(-1, keepdims=True)
    share = mass / jnp.where(total > 0, total, 1.0)
    share = jnp.maximum(share, SMALLEST_WEIGHT)
    return share / share.sum(-1, keepdims=True)


def losses(s: Statistics, data: NodeRows) -> PerNode:
    """Eq. (1) from statistics of counted rows."""
    return -s.log_likelihood / jnp.where(data.total_weight > 0, data.total_weight, 1.0)


def shown(fit: PerNode, moved: PerNode) -> Info:
    """What a round of a method without pull and bounds shows."""
    nothing = jnp.zeros_like(fit)
    return Info(fit, nothing, moved, nothing)
