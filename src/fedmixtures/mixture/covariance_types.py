r"""Covariance types: what the covariances of a mixture have in common, as in scikit-learn.

A type is a linear set of covariances. With masses $N_c$ and covariances $C_c$ of the components,
the most likely member of the set is a projection of the $C_c$: their diagonals (*diag*), the means
of their diagonals (*spherical*), or $\sum_c N_c C_c / \sum_c N_c$ (*tied*). So one M-step serves
all types; covariances are full matrices everywhere but in messages between silos and in
scikit-learn, which have the free numbers alone.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array, Covariances
from fedmixtures.mixture.mixture import Mixture


class CovarianceType(abc.ABC):
    """One of the types; all functions take stacks, and NumPy as well as JAX."""

    @abc.abstractmethod
    def project(self, covariances: Covariances, mass: Array) -> Covariances:
        """The covariances of this type that are most likely for components of this mass.

        With equal masses also the nearest ones.
        """

    @abc.abstractmethod
    def n_numbers(self, k: Any, d: int) -> Any:
        """How many numbers are free in the covariances of k components."""

    def scales(self, deviations: np.ndarray) -> np.ndarray:
        """What to divide features of these standard deviations by, so that the type stays.

        A feature that does not vary keeps its unit.
        """
        return np.where(deviations > 0, deviations, 1.0)

    @abc.abstractmethod
    def compact(self, covariances: Array) -> Array:
        """Covariances of this type in scikit-learn's shape for it."""

    @abc.abstractmethod
    def expanded(self, compact: Array, k: int, d: int) -> Array:
        """Full matrices of k components, from scikit-learn's shape."""


class Full(CovarianceType):
    """Every component has a matrix of its own."""

    def project(self, covariances, mass):
        """As they are."""
        del mass
        return covariances

    def n_numbers(self, k, d):
        """A triangle for each."""
        return k * (d * (d + 1) // 2)

    def compact(self, covariances):
        """Of shape (k, d, d)."""
        return covariances

    def expanded(self, compact, k, d):
        """As they are."""
        del k, d
        return compact


class Tied(CovarianceType):
    """All components have one matrix."""

    def project(self, covariances, mass):
        """The average by mass; zero where there is no mass at all."""
        total = mass.sum(-1, keepdims=True)
        share = (mass / (total + (total <= 0)))[..., None, None]
        ones = np.ones((*(1,) * (share.ndim - 3), *share.shape[-3:]), covariances.dtype)
        return (share * covariances).sum(-3, keepdims=True) * ones

    def n_numbers(self, k, d):
        """One triangle."""
        return d * (d + 1) // 2 + 0 * k

    def compact(self, covariances):
        """Of shape (d, d)."""
        return covariances[..., 0, :, :]

    def expanded(self, compact, k, d):
        """The same for all."""
        return np.broadcast_to(compact[..., None, :, :], (*compact.shape[:-2], k, d, d))


class Diag(CovarianceType):
    """Features do not vary together within a component."""

    def project(self, covariances, mass):
        """The diagonals."""
        del mass
        return covariances * _eye(covariances)

    def n_numbers(self, k, d):
        """A variance for each feature."""
        return k * d

    def compact(self, covariances):
        """Of shape (k, d)."""
        return np.diagonal(covariances, axis1=-2, axis2=-1)

    def expanded(self, compact, k, d):
        """Diagonal matrices."""
        del k
        return compact[..., None] * np.eye(d)


class Spherical(CovarianceType):
    """A component varies by as much in every direction."""

    def project(self, covariances, mass):
        """The means of the diagonals."""
        del mass
        eye = _eye(covariances)
        mean = (covariances * eye).sum((-1, -2), keepdims=True) / covariances.shape[-1]
        return mean * eye

    def n_numbers(self, k, d):
        """A variance for each component."""
        del d
        return k

    def scales(self, deviations):
        """One number for all features."""
        varying = deviations[deviations > 0]
        common = np.sqrt(np.mean(varying**2)) if varying.size else 1.0
        return np.full_like(deviations, common)

    def compact(self, covariances):
        """Of shape (k,)."""
        return covariances[..., 0, 0]

    def expanded(self, compact, k, d):
        """Multiples of the identity."""
        del k
        return compact[..., None, None] * np.eye(d)


TYPES: dict[str, CovarianceType] = {
    "full": Full(),
    "tied": Tied(),
    "diag": Diag(),
    "spherical": Spherical(),
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


def _eye(covariances: Array) -> np.ndarray:
    d = covariances.shape[-1]
    return np.eye(d, dtype=covariances.dtype).reshape((1,) * (covariances.ndim - 2) + (d, d))
