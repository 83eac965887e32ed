"""What a fit is compared with: own data only, and all rows in one place.

Both get the prior and the ridge of the method they are compared with, so that a difference is what
listening brought and nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedmixtures.engine.solution import Solution
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Method
from fedmixtures.methods.compared.baselines import Centralized, Local
from fedmixtures.mixture.em import ShapePrior
from fedmixtures.mixture.moments import column_moments

OWN = "own"
"""Name of the level that a node learns from its own rows alone."""
SMALLEST_RIDGE = 1e-3
"""As a share of the least varying feature's variance: keeps nodes with few rows from collapsing."""


def listens(solution: Solution, network: Network) -> bool:
    """Whether any node could hear another: without a graph only a hub makes that possible."""
    traffic = solution.traffic
    return traffic.total > 0 and (network.n_edges > 0 or traffic.recipients == "hub")


def own_level(solution: Solution) -> Solution | None:
    """The same run with what every node learned from its own rows, where that is one of its levels.

    Nothing could be a fairer comparison: it is the method's own first step.
    """
    levels = solution.levels
    if levels is None or OWN not in levels.names:
        return None
    return dataclasses.replace(
        solution, theta=levels.theta.at(levels.names.index(OWN)), levels=None
    )


def own_data_only(method: Any, rows: np.ndarray) -> Method:
    """The method a node runs with nobody to listen to.

    A coupling is fitted as it is, with alpha 0. For other methods it is EM from several starts,
    with a shape prior where the method has none: without one, few rows collapse into spikes, and
    anything looks good beside that.
    """
    if hasattr(method, "alpha"):
        return dataclasses.replace(method, alpha=0.0)
    prior = getattr(method, "prior", None) or ShapePrior()
    same = {"reg_covar": _ridge(method, rows), "covariance_type": method.covariance_type}
    return Local(engine="jax", prior=prior, **same)


def all_rows_pooled(method: Any, rows: np.ndarray) -> Method:
    """One mixture of all rows; they are many, so that a prior would change little."""
    same = {"reg_covar": _ridge(method, rows), "covariance_type": method.covariance_type}
    return Centralized(**same)


def _ridge(method: Any, rows: np.ndarray) -> float:
    """What the method adds to the diagonal of covariances, or a little of the rows' variance."""
    given = getattr(method, "reg_covar", 0.0)
    _, variances = column_moments(rows)
    least = variances[variances > 0].min(initial=1.0)
    return float(max(given, SMALLEST_RIDGE * least))
