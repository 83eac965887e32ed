"""Where nodes start: k-means of their own rows, or mixtures that the user gave."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import FitWarning
from fedmixtures.init.kmeans import KMeansStart
from fedmixtures.methods.base import Method
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

SMALLEST_VARIANCE = 1e-6
"""Of a start, where the method has no bounds of its own."""


def starting_mixtures(
    init: KMeansStart | Mixture | Mapping[Label, Mixture],
    data: NodeData,
    n_components: Sequence[int],
    seed: int,
    method: Method,
) -> Mixture | None:
    """Where every node starts, stacked; with a warning if the method's bounds will move it.

    None for a method that makes its own starts, unless the user gave mixtures.
    """
    bounds = method.bounds
    if isinstance(init, Mixture):
        return init
    if isinstance(init, Mapping):
        theta = _given(init, data, n_components)
    elif not method.needs_start:
        return None
    else:
        floor = SMALLEST_VARIANCE if bounds is None else bounds.min_variance
        theta = init.mixtures(data, n_components, seed, floor)
    if bounds is not None:
        _warn_if_moved(theta, bounds, data.labels)
    return theta


def _given(start: Mapping[Label, Any], data: NodeData, n_components: Sequence[int]) -> Mixture:
    """Mixtures handed in by the user, checked against rows and components."""
    missing = [label for label in data.labels if label not in start]
    if missing:
        raise ValueError(
            f"`init` names no mixture for node {_checks.listed(missing)}. "
            "Give one for every node that holds rows."
        )
    for label, k in zip(data.labels, n_components, strict=True):
        mixture = start[label]
        if not isinstance(mixture, Mixture):
            raise ValueError(f"`init[{label!r}]` is {mixture!r}. Give a Mixture.")
        if mixture.weights.ndim != 1 or (mixture.n_components, mixture.n_features) != (
            k,
            data.n_features,
        ):
            raise ValueError(
                f"`init[{label!r}]` has means of shape {mixture.means.shape} but the node needs "
                f"{(k, data.n_features)}: n_components by features."
            )
    return Mixture.stack([start[label] for label in data.labels])


def _warn_if_moved(theta: Mixture, feasible: FeasibleSet, labels: tuple[Label, ...]) -> None:
    """Say which bounds the start violates and where: projecting it must not go unseen."""
    present = theta.weights > 0
    spectrum = np.linalg.eigvalsh(theta.covariances)
    slack = 1e-9
    # A computed eigenvalue is off by the rounding of the largest one.
    rounding = 16 * np.finfo(np.float64).eps * spectrum[..., -1]
    small = spectrum[..., 0] < feasible.min_variance * (1 - slack) - rounding
    large = spectrum[..., -1] > feasible.max_variance * (1 + slack)
    long = np.linalg.norm(theta.means, axis=-1) > feasible.max_mean_norm * (1 + slack)
    outside = {
        "min_weight": (present & (theta.weights < feasible.min_weight * (1 - slack))).any(-1),
        "max_mean_norm": (present & long).any(-1),
        "min_variance": (present & small).any(-1),
        "max_variance": (present & large).any(-1),
    }
    found = [
        f"{name}={getattr(feasible, name):g} at node "
        + _checks.listed(labels[i] for i in np.flatnonzero(where))
        for name, where in outside.items()
        if where.any()
    ]
    if found:
        warnings.warn(
            f"the start lies outside the feasible set and was moved into it: {'; '.join(found)}. "
            "Widen these bounds with feasible=FeasibleSet(...) if the rows are meant to go there.",
            FitWarning,
            stacklevel=4,
        )
