r"""Covariance types: what the covariances of a mixture have in common, as in scikit-learn.

A type is a linear set of covariances. With masses $N_c$ and covariances $C_c$ of the components,
the most likely member of the set is a projection of the $C_c$: their diagonals (*diag*), the means
of their diagonals (*spherical*), or $\sum_c N_c C_c / \sum_c N_c$ (*tied*). So one M-step serves
all types; covariances are full matrices everywhere but in messages between silos and in
scikit-learn, which have the free numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class CovarianceType:
    """One of the types, as functions of stacks; NumPy as well as JAX."""

    project: Callable[[Any, Any], Any]
    """Of covariances and masses: the most likely ones of the type; the nearest if masses equal."""
    n_numbers: Callable[[Any, int], Any]  # how many numbers are free in k matrices of d features
    compact: Callable[[Any], Any]  # covariances of the type in scikit-learn's shape for it
    expanded: Callable[[Any, int, int], Any]  # full matrices (k, d, d) of scikit-learn's shape
    one_scale: bool = False  # whether all features must be divided by one number to keep the type

    def scales(self, deviations: np.ndarray) -> np.ndarray:
        """What to divide features of these standard deviations by, so that the type stays.

        A feature that does not vary keeps its unit.
        """
        varying = deviations[deviations > 0]
        if self.one_scale:
            return np.full_like(deviations, np.sqrt(np.mean(varying**2)) if varying.size else 1.0)
        return np.where(deviations > 0, deviations, 1.0)


def _eye(covariances: Array) -> np.ndarray:
    d = covariances.shape[-1]
    return np.eye(d, dtype=covariances.dtype).reshape((1,) * (covariances.ndim - 2) + (d, d))


def _average(covariances: Any, mass: Any) -> Any:
    """By mass, the same for all components; zero where there is no mass at all."""
    total = mass.sum(-1, keepdims=True)
    share = (mass / (total + (total <= 0)))[..., None, None]
    ones = np.ones((*(1,) * (share.ndim - 3), *share.shape[-3:]), covariances.dtype)
    return (share * covariances).sum(-3, keepdims=True) * ones


def _mean_variance(covariances: Any, mass: Any) -> Any:
    """The mean of each diagonal, times the identity."""
    eye = _eye(covariances)
    return (covariances * eye).sum((-1, -2), keepdims=True) / covariances.shape[-1] * eye


TYPES: dict[str, CovarianceType] = {
    "full": CovarianceType(
        project=lambda covariances, mass: covariances,
        n_numbers=lambda k, d: k * (d * (d + 1) // 2),
        compact=lambda covariances: covariances,
        expanded=lambda compact, k, d: compact,
    ),
    "tied": CovarianceType(
        project=_average,
        n_numbers=lambda k, d: d * (d + 1) // 2 + 0 * k,
        compact=lambda covariances: covariances[..., 0, :, :],
        expanded=lambda compact, k, d: np.repeat(compact[..., None, :, :], k, axis=-3),
    ),
    "diag": CovarianceType(
        project=lambda covariances, mass: covariances * _eye(covariances),
        n_numbers=lambda k, d: k * d,
        compact=lambda covariances: np.diagonal(covariances, axis1=-2, axis2=-1),
        expanded=lambda compact, k, d: compact[..., None] * np.eye(d),
    ),
    "spherical": CovarianceType(
        project=_mean_variance,
        n_numbers=lambda k, d: k,
        compact=lambda covariances: covariances[..., 0, 0],
        expanded=lambda compact, k, d: compact[..., None, None] * np.eye(d),
        one_scale=True,
    ),
}


def check_type(name: str, kind: Any) -> None:
    """One of the types, by name."""
    _checks.one_of(name, kind, TYPES)


def of_type(mixture: Mixture, kind: str) -> Mixture:
    """The mixture with covariances of this type; weights are the masses."""
    if kind == "full":
        return mixture
    covariances = TYPES[kind].project(mixture.covariances, mixture.weights)
    return Mixture(mixture.weights, mixture.means, covariances)


def is_of_type(mixture: Mixture, kind: str) -> bool:
    """Whether the covariances of a NumPy mixture are of this type, but for rounding."""
    own, projected = mixture.covariances, of_type(mixture, kind).covariances
    return bool(np.abs(own - projected).max() <= 1e-9 * np.abs(own).max())


def n_parameters(kind: str, k: Any, d: int) -> Any:
    """How many numbers are free in a mixture of k components: what BIC and AIC count."""
    return k - 1 + k * d + TYPES[kind].n_numbers(k, d)
