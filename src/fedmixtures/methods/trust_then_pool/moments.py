r"""Statistics that may be added over nodes: $S = \sum_x r_c(x) (1, x, xx^\top)$ about the origin.

The E-step takes its sums about each component's own mean, which differs between nodes. What nodes
exchange and add must be about one common point.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.mixture.em import ShapePrior, m_step
from fedmixtures.mixture.linear import positive_definite
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

SMALLEST_MASS = 1e-3
"""Pooled masses are at least this (in rows): flows may overshoot below zero on their way."""


class Moments(eqx.Module):
    """Mass, first and second moment of every component; also a mixture in a letter."""

    mass: Float[Array, "*nodes k"]
    first: Float[Array, "*nodes k d"]
    second: Float[Array, "*nodes k d d"]


def moments(theta: Mixture, rows: Rows, counts: RowWeights) -> Moments:
    """E-step of every node of a block on its own rows, each counted by `counts`."""
    s = statistics(theta, rows, counts)
    mu = theta.means
    cross = s.first[..., :, None] * mu[..., None, :]
    square = s.mass[..., None, None] * mu[..., :, None] * mu[..., None, :]
    second = s.second + cross + jnp.swapaxes(cross, -1, -2) + square
    return Moments(s.mass, s.first + s.mass[..., None] * mu, second)


def centred(s: Moments) -> tuple[Array, Array, Array]:
    """Mass, mean and covariance of every component; of one without mass the numbers are idle."""
    mass = jnp.maximum(s.mass, SMALLEST_MASS)
    mean = s.first / mass[..., None]
    covariance = s.second / mass[..., None, None] - mean[..., :, None] * mean[..., None, :]
    return mass, mean, covariance


def maximised(
    theta: Mixture, s: Moments, rows: PerNode, ridge: float | Array, prior: ShapePrior | None
) -> Mixture:
    """M-step from pooled moments, scaled to so many rows; the old mixture where that fails."""
    total = jnp.maximum(s.mass.sum(-1), SMALLEST_MASS)
    scaled = jax.tree.map(lambda part: part * like(rows / total, part), s)
    mass = jnp.maximum(scaled.mass, SMALLEST_MASS)
    mu = theta.means
    cross = scaled.first[..., :, None] * mu[..., None, :]
    square = mass[..., None, None] * mu[..., :, None] * mu[..., None, :]
    second = scaled.second - cross - jnp.swapaxes(cross, -1, -2) + square
    mass = jnp.where(theta.weights > 0, mass, 0.0)
    about_mean = Statistics(total, mass, scaled.first - mass[..., None] * mu, second)
    new = m_step(theta, about_mean, ridge, prior)
    fine = sound(new, 0.5 * ridge)
    return jax.tree.map(lambda a, b: jnp.where(like(fine, a), a, b), new, theta)


def sound(theta: Mixture, least: float | Array) -> Array:
    """Whether all numbers are finite and all eigenvalues above `least`."""
    eye = jnp.eye(theta.n_features, dtype=theta.means.dtype)
    shifted = theta.covariances - least * eye.reshape((1,) * (theta.means.ndim - 1) + eye.shape)
    fine = jnp.isfinite(theta.weights) & (theta.weights >= 0)
    fine = fine & jnp.isfinite(theta.means).all(-1) & positive_definite(shifted)
    return fine.all(-1) & (theta.weights.sum(-1) > 0)


def as_mixture(letter: Moments) -> Mixture:
    """The mixture a letter carries."""
    return Mixture(letter.mass, letter.first, letter.second)


def as_letter(theta: Mixture) -> Moments:
    """A mixture put into a letter."""
    return Moments(*theta.parts)


def like(values: Array, part: Any) -> Array:
    """Values with axes of length one appended, to stand before `part`."""
    return values.reshape(*values.shape, *(1,) * (part.ndim - values.ndim))
