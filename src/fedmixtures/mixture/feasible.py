"""Assumption 1: the compact convex set W that all mixtures stay in, and its exact projection."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedmixtures import _checks
from fedmixtures._types import Array, Covariances, Means, Weights
from fedmixtures.mixture.covariance_types import TYPES, check_type
from fedmixtures.mixture.linear import positive_definite
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import column_moments


class FeasibleSet(eqx.Module):
    r"""Bounds on weights, means and covariance eigenvalues (Assumption 1).

    $\pi_c \ge$ `min_weight`, $\|\mu_c\| \le$ `max_mean_norm` and all eigenvalues of $\Sigma_c$ in
    [`min_variance`, `max_variance`]. The defaults are those of the paper's experiments.
    """

    min_weight: float = 0.01
    max_mean_norm: float = 1000.0
    min_variance: float = 0.01
    max_variance: float = 1000.0
    covariance_type: str = eqx.field(static=True, default="full")
    """What covariances have in common; a method gives its own."""

    def __check_init__(self):
        check_type("covariance_type", self.covariance_type)
        if not all(isinstance(bound, (int, float)) for bound in self.bounds):
            return  # inside a traced program the bounds are arrays, checked before
        for name in ("min_weight", "max_mean_norm", "min_variance", "max_variance"):
            _checks.positive(name, getattr(self, name))
        if self.max_variance < self.min_variance:
            raise ValueError(
                f"`max_variance` {self.max_variance:g} is below `min_variance` "
                f"{self.min_variance:g}. Swap them or widen the range."
            )

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """The four bounds in the order of the constructor."""
        return self.min_weight, self.max_mean_norm, self.min_variance, self.max_variance

    def project(self, mixture: Mixture, present: Bool[Array, "*nodes k"] | None = None) -> Mixture:
        r"""Nearest point of the feasible set, block by block; a projected mixture stays put.

        Weights go to the simplex with floor `min_weight`, means are shortened to `max_mean_norm`,
        covariances go to their type, where each component counts alike (in Frobenius norm the
        nearest *tied* matrix is the plain average), and then their eigenvalues are clipped, which
        keeps the type. Absent components (`present` false; by default those of weight zero) stay
        absent and, unless tied, keep their filler.
        """
        present = mixture.weights > 0 if present is None else present
        covariances = mixture.covariances
        alike = present.astype(covariances.dtype)
        covariances = TYPES[self.covariance_type].project(covariances, alike)
        return Mixture(
            project_weights(mixture.weights, present, self.min_weight),
            project_means(mixture.means, self.max_mean_norm),
            project_covariances(covariances, self.min_variance, self.max_variance),
        )

    @classmethod
    def around(
        cls, rows: np.ndarray, n_components: int, row_weights: np.ndarray | None = None
    ) -> FeasibleSet:
        """Bounds that leave room around these rows: no column is squeezed, whatever its scale.

        Means within twice the largest row norm, variances from a thousandth of the smallest
        column variance to ten times the sum of all, weights at least 0.01 (0.2 / k if smaller).
        """
        _, variances = column_moments(rows, row_weights)
        rows = np.nan_to_num(rows)
        # A constant column has the variance of its own rounding, whatever other columns are like.
        rounding = 8 * np.finfo(np.float64).eps * np.abs(rows).max(axis=0)
        varying = variances[variances > rounding**2]
        smallest = varying.min() if varying.size else 1e-3
        norm = np.sqrt(np.square(rows).sum(axis=1).max())
        return cls(
            min_weight=min(0.01, 0.2 / n_components),
            max_mean_norm=2.0 * float(norm) if norm > 0 else 1.0,
            min_variance=1e-3 * float(smallest),
            max_variance=10.0 * float(variances.sum()) if varying.size else 1.0,
        )

    def check_components(self, n_components: int) -> None:
        """The floors of all weights together must leave room on the simplex."""
        if n_components * self.min_weight > 1:
            raise ValueError(
                f"`min_weight`={self.min_weight:g} times n_components={n_components} exceeds 1. "
                f"Lower min_weight to at most {1 / n_components:g}."
            )


def project_weights(
    weights: Weights, present: Bool[Array, "*nodes k"], floor: float | Array
) -> Weights:
    r"""Project onto $\{\pi : \sum_c \pi_c = 1, \pi_c \ge \text{floor}\}$ over present components.

    With $u = \pi - \text{floor}$ and total $T$ left above the floors, the threshold is
    $\tau = \max_c (\sum_{u_j \ge u_c} u_j - T) / |\{u_j \ge u_c\}|$, which needs no sort.
    """
    u = jnp.where(present, weights - floor, -jnp.inf)
    total = 1.0 - floor * present.sum(-1, keepdims=True)
    above = present[..., None, :] & (u[..., None, :] >= u[..., :, None])
    sums = jnp.where(above, u[..., None, :], 0.0).sum(-1)
    thresholds = (sums - total) / jnp.maximum(above.sum(-1), 1)
    tau = jnp.where(present, thresholds, -jnp.inf).max(-1, keepdims=True)
    return jnp.where(present, jnp.maximum(u - tau, 0.0) + floor, 0.0)


def project_means(means: Means, radius: float | Array) -> Means:
    """Shorten means longer than `radius`."""
    norm = jnp.linalg.norm(means, axis=-1, keepdims=True)
    return means * jnp.where(norm > radius, radius / jnp.where(norm > 0, norm, 1.0), 1.0)


def project_covariances(
    covariances: Covariances, low: float | Array, high: float | Array
) -> Covariances:
    """Clip the eigenvalues to [`low`, `high`]; matrices already inside come back unchanged.

    The nearest symmetric matrix comes first: rounding in a gradient need not be symmetric.
    """
    d = covariances.shape[-1]
    covariances = _symmetric_part(covariances)
    if d == 1:
        return jnp.clip(covariances, low, high)
    if d == 2:
        return _clip_two_by_two(covariances, low, high)
    # These tests cost a fraction of eigenvectors, and most steps stay inside.
    eye = jnp.eye(d, dtype=covariances.dtype).reshape((1,) * (covariances.ndim - 2) + (d, d))
    inside = positive_definite(jnp.stack([covariances - low * eye, high * eye - covariances]))
    return jax.lax.cond(
        inside.all(),
        lambda matrices: matrices,
        lambda matrices: _clip_spectrum(matrices, low, high),
        covariances,
    )


def _clip_spectrum(matrices: Covariances, low: float | Array, high: float | Array) -> Covariances:
    d = matrices.shape[-1]
    # One matrix at a time: see `mixture.linear` on batches in LAPACK.
    values, vectors = jax.lax.map(jnp.linalg.eigh, matrices.reshape(-1, d, d))
    values, vectors = values.reshape(matrices.shape[:-1]), vectors.reshape(matrices.shape)
    outside = (values < low) | (values > high)
    clipped = jnp.einsum("...ij,...j,...kj->...ik", vectors, jnp.clip(values, low, high), vectors)
    return jnp.where(outside.any(-1)[..., None, None], _symmetric_part(clipped), matrices)


def _symmetric_part(matrices: Covariances) -> Covariances:
    return 0.5 * (matrices + jnp.swapaxes(matrices, -1, -2))


def _clip_two_by_two(
    matrices: Float[Array, "*nodes k 2 2"], low: float | Array, high: float | Array
) -> Float[Array, "*nodes k 2 2"]:
    r"""Closed form: $\Sigma = tI + R$ with eigenvalues $t \pm r$; move t and scale R."""
    centre = 0.5 * (matrices[..., 0, 0] + matrices[..., 1, 1])
    half = 0.5 * (matrices[..., 0, 0] - matrices[..., 1, 1])
    off = matrices[..., 0, 1]
    radius = jnp.sqrt(half * half + off * off)
    small, large = jnp.clip(centre - radius, low, high), jnp.clip(centre + radius, low, high)
    outside = (centre - radius < low) | (centre + radius > high)
    segment = 0.5 * (large - small) / jnp.where(radius > 0, radius, 1.0)
    new_centre = 0.5 * (large + small)
    rows = (
        jnp.stack([new_centre + segment * half, segment * off], -1),
        jnp.stack([segment * off, new_centre - segment * half], -1),
    )
    return jnp.where(outside[..., None, None], jnp.stack(rows, -2), matrices)
