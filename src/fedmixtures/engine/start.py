"""Where nodes start: k-means or fits of their own rows, or mixtures that the user gave."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import FitWarning
from fedmixtures.init import Start
from fedmixtures.methods.base import Method
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

SMALLEST_VARIANCE = 1e-6
"""Of a start, where the method has no bounds of its own."""

AT_ONCE = 4096
"""Nodes whose bounds are looked at together: what stays in the cache."""

MOST_LOOKED_AT = 5_000_000
"""Rows in which repeated ones are looked for where a node has many more than components."""


def start_of(
    init: Start | Mixture | Mapping[Label, Mixture],
    data: NodeData,
    n_components: list[int],
    seed: int,
    method: Method,
) -> tuple[list[int], Mixture | None]:
    """Components of every node, no more than its rows can bear, and where it starts."""
    if isinstance(init, Mixture | Mapping):
        return n_components, starting_mixtures(init, data, n_components, seed, method)
    capped = affordable(n_components, data)
    theta = starting_mixtures(init, data, capped, seed, method)
    if method.needs_equal_components and len(set(capped)) > 1:
        return n_components, None if theta is None else filled(theta, n_components)
    return capped, theta


def starting_mixtures(
    init: Start | Mixture | Mapping[Label, Mixture],
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
        theta = theta.with_categories(data.n_continuous)
    if bounds is not None:
        _warn_if_moved(theta, bounds, data.labels)
    return theta


def affordable(n_components: list[int], data: NodeData) -> list[int]:
    """At most as many components as a node has distinct rows; a warning where that is fewer."""
    wanted = np.asarray(n_components)
    least = np.minimum(data.counts, wanted)
    # Among its first rows a node nearly always has enough; only the others are looked at wholly.
    few = np.flatnonzero(data.counts < 4 * wanted)
    many = np.flatnonzero(data.counts >= 4 * wanted)
    if len(many) * 4 * wanted.max() <= MOST_LOOKED_AT:
        first = data.offsets[many, None] + np.minimum(
            np.arange(4 * wanted.max()), data.counts[many, None] - 1
        )
        sorted_ = np.sort(data.rows[first, 0], axis=1)
        values = 1 + (np.diff(sorted_, axis=1) != 0).sum(1)
        few = np.concatenate([few, many[values < wanted[many]]])
    for i in few.tolist():
        least[i] = min(wanted[i], len(np.unique(data.of(i)[0], axis=0)))
    capped = np.flatnonzero(least < wanted)
    if len(capped):
        names = _checks.listed(data.labels[i] for i in capped)
        warnings.warn(
            f"node {names} has fewer distinct rows than n_components and gets one component per "
            "row. Lower n_components, or merge such a node with a neighbour.",
            FitWarning,
            stacklevel=3,
        )
    return least.tolist()


def filled(theta: Mixture, n_components: list[int]) -> Mixture:
    """Pad mixtures to so many components: the heaviest ones stand twice, at half weight.

    For methods that match components one to one, which a node with few rows must have enough of.
    """
    found = []
    for i, k in enumerate(n_components):
        own = theta.at(i).trimmed()
        while own.n_components < k:
            heaviest = int(first_greatest(own.weights))
            order = [*range(own.n_components), heaviest]
            own = jax.tree.map(lambda part, order=order: part[order], own)
            weights = own.weights.copy()
            weights[[heaviest, -1]] /= 2
            own = Mixture(weights, own.means, own.covariances)
        found.append(own)
    return Mixture.stack(found)


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
    suspect = np.flatnonzero(_suspect(theta, feasible))
    theta = jax.tree.map(lambda part: part[suspect], theta)
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
        + _checks.listed(labels[i] for i in suspect[where])
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


def _suspect(theta: Mixture, feasible: FeasibleSet) -> np.ndarray:
    """Nodes that may lie outside: a look at all, in a quarter of the time of eigenvalues."""
    found = []
    for first in range(0, len(theta.weights), AT_ONCE):
        weights, means, covariances = (part[first : first + AT_ONCE] for part in theta.parts)
        outside = (weights > 0) & (weights < feasible.min_weight)
        outside |= np.einsum("nki,nki->nk", means, means) > feasible.max_mean_norm**2
        outside |= np.einsum("nkii->nk", covariances) > feasible.max_variance
        rest = covariances - feasible.min_variance * np.eye(covariances.shape[-1])
        for j in range(rest.shape[-1]):  # an eigenvalue at the bound or below: a pivot not above 0
            pivot = rest[..., j, j].copy()
            outside |= ~(pivot > 0)
            below = rest[..., j + 1 :, j] / np.where(outside, 1.0, pivot)[..., None]
            rest[..., j + 1 :, j + 1 :] -= below[..., None] * rest[..., None, j, j + 1 :]
        found.append(outside.any(-1))
    return np.concatenate(found)
