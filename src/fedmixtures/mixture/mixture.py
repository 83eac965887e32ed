"""What a node knows: a Gaussian mixture, or a stack of them with a leading node axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array, Covariances, Means, Weights
from fedmixtures.mixture.arithmetic import double


class Mixture(eqx.Module):
    r"""A Gaussian mixture $p(x) = \sum_c \pi_c\, N(x; \mu_c, \Sigma_c)$, usable without a fit.

    A component of weight exactly zero is absent: mixtures of different sizes can so stand in one
    stack. Everything a user calls computes in float64 and returns NumPy, whatever JAX is set to.

    Parameters
    ----------
    weights, means, covariances
        Shapes ``(k,)``, ``(k, d)``, ``(k, d, d)``; a stack has further axes in front of each.
        Covariances (k, g, g) of fewer features g are of the first g: the others are one-hot columns
        of categories, independent within a component, whose "means" are the shares of each.

    Examples
    --------
    >>> from fedmixtures import Mixture
    >>> p = Mixture([0.5, 0.5], [[0.0], [4.0]], [[[1.0]], [[1.0]]])
    >>> p.responsibilities([[2.0]]).tolist()
    [[0.5, 0.5]]
    """

    weights: Weights
    means: Means
    covariances: Covariances

    def __init__(self, weights: Any, means: Any, covariances: Any):
        self.weights, self.means, self.covariances = map(_array, (weights, means, covariances))
        _checks.mixture_shapes(self.weights, self.means, self.covariances)
        if all(isinstance(part, np.ndarray) for part in self.parts):
            _checks.mixture_values(self.weights, self.means, self.covariances)

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """Weights, means and covariances as a tuple."""
        return self.weights, self.means, self.covariances

    @property
    def n_components(self) -> int:
        """Number of component slots; some may be absent in a stack of unequal mixtures."""
        return self.means.shape[-2]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.means.shape[-1]

    @property
    def n_continuous(self) -> int:
        """Number of features that covariances are of; the others are one-hot columns."""
        return self.covariances.shape[-1]

    @property
    def is_mixed(self) -> bool:
        """Whether there are one-hot columns of categories."""
        return self.n_continuous < self.n_features

    @property
    def continuous(self) -> Mixture:
        """The mixture of the continuous features alone."""
        return Mixture(self.weights, self.means[..., : self.n_continuous], self.covariances)

    @property
    def tables(self) -> Array:
        """(..., k, columns) shares of the categories, in the order of the one-hot columns."""
        return self.means[..., self.n_continuous :]

    def with_categories(self, n_continuous: int) -> Mixture:
        """A copy with covariances of the first features alone: the others are one-hot."""
        block = self.covariances[..., :n_continuous, :n_continuous]
        return Mixture(self.weights, self.means, block)

    def at(self, index: Any) -> Mixture:
        """Pick from the leading axis of a stack: an index, a slice, an array of indices."""
        return jax.tree.map(lambda part: part[index], self)

    def relabel(self, order: Any) -> Mixture:
        """The mixture with components in another order: one for all of a stack, or one for each."""
        if np.ndim(order) == 1:
            return Mixture(
                self.weights[..., order],
                self.means[..., order, :],
                self.covariances[..., order, :, :],
            )
        each = lambda part: order.reshape(*order.shape, *(1,) * (part.ndim - order.ndim))
        axis = order.ndim - 1
        return Mixture(*(np.take_along_axis(part, each(part), axis) for part in self.parts))

    def summed(self, shares: np.ndarray) -> Mixture:
        """The mixtures of a stack added with these shares: one of all their components."""
        flat = lambda part: part.reshape(-1, *part.shape[2:])
        weights = shares[:, None] * self.weights
        return Mixture(flat(weights), flat(self.means), flat(self.covariances))

    def trimmed(self) -> Mixture:
        """A single mixture without its absent components."""
        present = np.flatnonzero(np.asarray(self.weights) > 0)
        return self.to_numpy().relabel(present)

    def to_numpy(self) -> Mixture:
        """The mixture with float64 NumPy arrays."""
        return jax.tree.map(lambda part: np.asarray(part, dtype=np.float64), self)

    @staticmethod
    def stack(mixtures: Sequence[Mixture]) -> Mixture:
        """Put mixtures on a new leading axis; smaller ones are filled with absent components."""
        k = max(mixture.n_components for mixture in mixtures)
        padded = [mixture.to_numpy().padded(k) for mixture in mixtures]
        return jax.tree.map(lambda *parts: np.stack(parts), *padded)

    def padded(self, n_components: int) -> Mixture:
        """The NumPy mixture with absent components added up to `n_components`."""
        extra = n_components - self.n_components
        if extra == 0:
            return self
        batch, d, g = self.means.shape[:-2], self.n_features, self.n_continuous
        filler = (
            np.zeros((*batch, extra)),
            np.zeros((*batch, extra, d)),
            np.broadcast_to(np.eye(g), (*batch, extra, g, g)),
        )
        axes = (-1, -2, -3)
        parts = zip(self.parts, filler, axes, strict=True)
        return Mixture(*(np.concatenate([a, b], axis) for a, b, axis in parts))

    # The next three import late: those modules are written in terms of this class.
    def log_density(self, x: Any) -> np.ndarray:
        """Natural logarithm of the density at each row of `x`."""
        from fedmixtures.mixture import density

        return self._evaluate(density.log_density, x)

    def responsibilities(self, x: Any) -> np.ndarray:
        """Probability of each component given each row of `x`."""
        from fedmixtures.mixture import density

        return self._evaluate(density.responsibilities, x)

    def sample(self, n: int, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw `n` rows; returns the rows and the component each came from."""
        from fedmixtures.mixture import sampling

        _checks.single_mixture(self.weights, "sample")
        with double():
            points, components = jax.jit(sampling.sample_labelled, static_argnums=2)(
                self.to_numpy(), jax.random.key(random_state), n
            )
            return np.asarray(points), np.asarray(components)

    def _evaluate(self, function: Any, x: Any) -> np.ndarray:
        rows = _checks.rows(x, self.n_features)
        _checks.single_mixture(self.weights, function.__name__)
        with double():
            return np.asarray(jax.jit(function)(self.to_numpy(), rows))


def merged(theta: Mixture, cluster: np.ndarray, n_clusters: int) -> Mixture:
    """(..., clusters, ...) one Gaussian with the moments of all components (..., k) of a number."""
    weights, means, covariances = theta.parts
    part = (cluster[..., None] == np.arange(n_clusters)) * weights[..., None]
    total = part.sum(-2)
    part = part / np.where(total > 0, total, 1.0)[..., None, :]
    centre = np.einsum("...kc,...kd->...cd", part, means)
    g = theta.n_continuous
    off = (means[..., :, None, :] - centre[..., None, :, :])[..., :g]
    spread = np.einsum("...kc,...kde->...cde", part, covariances)
    spread = spread + np.einsum("...kc,...kcd,...kce->...cde", part, off, off)
    there = (total > 0)[..., None, None]
    return Mixture(total, centre, np.where(there, spread, np.eye(g)))


def matching_costs(a: Mixture, b: Mixture) -> np.ndarray:
    """Squared distances (..., k, k) of components; absent ones are as far as can be from others."""
    flat = lambda m: np.concatenate(
        [m.weights[..., None], m.means, m.covariances.reshape(*m.means.shape[:-1], -1)], -1
    )
    squares = np.square(flat(a)[..., :, None, :] - flat(b)[..., None, :, :]).sum(-1)
    differ = (a.weights > 0)[..., :, None] != (b.weights > 0)[..., None, :]
    return squares + np.where(differ, 1e6 * (1 + squares.max()), 0.0)


def distinct(theta: Mixture, share: np.ndarray) -> tuple[Mixture, np.ndarray]:
    """The different ones of a stack, up to rounding, and the total of the shares of each."""
    flat = np.concatenate([part.reshape(len(share), -1) for part in theta.parts], axis=1)
    size = np.abs(flat).max(0)
    rounded = np.round(flat / np.where(size > 0, size, 1.0), 9)
    _, first, index = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(index.reshape(-1), share, len(first))
    order = np.argsort(first)
    return theta.at(first[order]), total[order]


def _array(part: Any) -> Array:
    """Keep what JAX made (a traced program builds mixtures too); all else becomes float64."""
    return part if isinstance(part, jax.Array) else np.asarray(part, dtype=np.float64)
