"""What the EM methods share: settings, a common numbering of components at the start, floors."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from fedmixtures import _checks
from fedmixtures._ties import first_least, first_matching
from fedmixtures._types import Array, PerNode, Weights
from fedmixtures.init.kmeans import tightest_clustering
from fedmixtures.methods.base import Method, Participants
from fedmixtures.methods.programs import NodeRows
from fedmixtures.mixture.em import ShapePrior, m_step
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

N_INIT = 10
"""Restarts of the hub's k-means."""
SMALLEST_WEIGHT = 1e-12
"""A component may fade at a node; it is never struck out, so that it can come back."""


class EMMethod(Method):
    """What methods with an M-step have in common.

    Parameters
    ----------
    reg_covar
        Added to the diagonal of every covariance.
    prior
        Shrink covariances to a common shape; None is plain maximum likelihood.
    """

    fits_gaps: ClassVar[bool] = True

    reg_covar: float = eqx.field(default=1e-6, kw_only=True)
    prior: ShapePrior | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        _checks.positive("reg_covar", self.reg_covar, allow_zero=True)
        check_prior(self.prior)

    def m_step(self, theta: Mixture, s: Statistics) -> Mixture:
        """New mixtures from statistics taken under `theta`, with ridge and prior."""
        return m_step(theta, s, self.reg_covar, self.prior, self.covariance_type)


def check_prior(prior: ShapePrior | None) -> None:
    """A prior, or none."""
    if prior is not None and not isinstance(prior, ShapePrior):
        raise ValueError(f"`prior` is {prior!r}. Give a ShapePrior or None.")


def check_share(name: str, value: float, most: float = 1.0) -> None:
    """A number from zero to `most`."""
    if not 0.0 <= value <= most:
        raise ValueError(f"`{name}` is {value!r}. Give a number from 0 to {most:g}.")


def weights_of(mass: Float[Array, "*nodes k"], prior: ShapePrior | None = None) -> Weights:
    """Shares of the mass, none of them zero."""
    mass = mass if prior is None else mass + prior.extra_mass
    total = mass.sum(-1, keepdims=True)
    share = mass / jnp.where(total > 0, total, 1.0)
    share = jnp.maximum(share, SMALLEST_WEIGHT)
    return share / share.sum(-1, keepdims=True)


def like(values: Array, part: Array) -> Array:
    """With trailing axes of length one, as many as `part` has more."""
    return values.reshape(*values.shape, *(1,) * (part.ndim - values.ndim))


def losses(s: Statistics, data: NodeRows) -> PerNode:
    """Eq. (1) from statistics of counted rows."""
    return -s.log_likelihood / jnp.where(data.total_weight > 0, data.total_weight, 1.0)


def summed(values: Array, index: np.ndarray, size: int) -> np.ndarray:
    """Sums (size, ...) of the values of each index, added in their order."""
    total = np.zeros((size, *values.shape[1:]), values.dtype)
    np.add.at(total, index, values)
    return total


def moment_match(
    mass: Array, means: Array, covariances: Array, index: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mass, mean and covariance (size, ...) of all Gaussians of one index together, as one."""
    total = summed(mass, index, size)
    share = mass / np.where(total > 0, total, 1.0)[index]
    mean = summed(share[:, None] * means, index, size)
    away = means - mean[index]
    within = covariances + away[:, :, None] * away[:, None, :]
    return total, mean, summed(share[:, None, None] * within, index, size)


def clustered_start(theta: Mixture, participants: Participants) -> Mixture:
    """One mixture for all: k-means of all nodes' centres, equal weights, the mean covariance."""
    k, d = theta.n_components, theta.n_features
    centres = np.asarray(theta.means)[participants.order].reshape(-1, d)
    with threadpool_limits(1):
        cluster = tightest_clustering(centres, None, k, N_INIT, participants.seed)
    means = np.stack([centres[cluster == c].mean(0) for c in range(k)])
    covariance = theta.covariances.reshape(-1, d, d).mean(0)
    return Mixture(np.full(k, 1 / k), means, np.broadcast_to(covariance, (k, d, d)))


def aligned_start(theta: Mixture, participants: Participants, n_orders: int = 50) -> Mixture:
    """Every node's components in one numbering, close to the best by summed distances of means.

    Greedy, as in FedGrEM's code: nodes are placed one at a time in a random order, each numbered so
    that its means have the least total distance to those of the same number at all nodes placed
    before; of `n_orders` random orders the best is kept. (The code tries all permutations; the
    assignment problem finds the same one.)
    """
    rng = np.random.default_rng(participants.seed)
    n, k = theta.means.shape[:2]
    by_label = participants.order
    means = np.asarray(theta.means)[by_label]
    orders = np.tile(np.arange(k), (n, 1))
    if n > 1 and k > 1:
        tried = [_placed(means, rng.permutation(n)) for _ in range(n_orders)]
        orders = tried[first_least(np.array([total for total, _ in tried]))][1]
    placed = np.empty_like(orders)
    placed[by_label] = orders
    parts = [
        np.take_along_axis(part, placed.reshape(n, k, *(1,) * (part.ndim - 2)), 1)
        for part in theta.parts
    ]
    return Mixture(*parts)


def _placed(means: np.ndarray, sequence: np.ndarray) -> tuple[float, np.ndarray]:
    """Summed distance of means of the same number, and each node's order of components."""
    n, k, d = means.shape
    orders = np.tile(np.arange(k), (n, 1))
    placed = np.empty((n, k, d))
    placed[0] = means[sequence[0]]
    total = 0.0
    for count, node in enumerate(sequence[1:], start=1):
        distance = np.linalg.norm(placed[:count, :, None] - means[node][None, None], axis=-1)
        cost = distance.sum(0)
        chosen = first_matching(cost)
        total += cost[np.arange(k), chosen].sum()
        orders[node] = chosen
        placed[count] = means[node][chosen]
    return total, orders
