"""What the EM methods share: settings, common numberings of components, steps on the host."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from fedmixtures import _checks
from fedmixtures._ties import first_least, first_matching
from fedmixtures._types import Array, PerNode, Weights
from fedmixtures.data.node_data import NodeData, by_pattern, padded
from fedmixtures.init import tightest_clustering
from fedmixtures.kernels.compiling import jit_in_order, rounded_up
from fedmixtures.kernels.cpu.matching import best_matchings
from fedmixtures.kernels.dispatch import log_joints, statistics
from fedmixtures.methods.base import Method, Participants
from fedmixtures.methods.programs import NodeRows
from fedmixtures.methods.protocol import Block
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.m_step import EMPTY, ShapePrior, component_moments, m_step
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

N_INIT = 10  # restarts of the hub's k-means
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

    supports_missing: ClassVar[bool] = True

    reg_covar: float = eqx.field(default=1e-6, kw_only=True)
    prior: ShapePrior | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        _checks.positive("reg_covar", self.reg_covar, allow_zero=True)
        check_prior(self.prior)

    def m_step(self, theta: Mixture, s: Statistics) -> Mixture:
        """New mixtures from statistics taken under `theta`, with the settings above."""
        return m_step(theta, s, self.reg_covar, self.prior, self.covariance_type)

    def m_step_on_host(self, theta: Mixture, s: Statistics) -> Mixture:
        """`m_step`, compiled by itself, from and to NumPy."""
        how = self.reg_covar, self.prior, self.covariance_type
        return to_host(_m_step(theta, s, *how))


def check_prior(prior: ShapePrior | None) -> None:
    """A prior, or none."""
    if prior is not None and not isinstance(prior, ShapePrior):
        raise ValueError(f"`prior` is {prior!r}. Give a ShapePrior or None.")


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
    covariance = theta.covariances.reshape(-1, *theta.covariances.shape[-2:]).mean(0)
    return Mixture(np.full(k, 1 / k), means, np.repeat(covariance[None], k, axis=0))


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
    return theta.relabel(placed)


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


def padded_rows(data: NodeData) -> tuple[Array | IncompleteRows, np.ndarray]:
    """Rows (nodes, m, d) and their counts (nodes, m), sorted; padding counts zero."""
    data = by_pattern(data.in_order())
    return padded(data, rounded_up(int(data.counts.max())))


def e_step(theta: Mixture, rows: Array | IncompleteRows, counts: np.ndarray) -> Statistics:
    """Statistics of every node's rows under its mixture, on the host."""
    return to_host(_statistics(theta, rows, counts))


def density_rows(models: Mixture, rows: Array | IncompleteRows) -> np.ndarray:
    """Log-density of rows (models, m, d) under the model of the same place."""
    return np.asarray(_densities(models, rows))


def explained(theta: Mixture, s: Statistics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mass, mean and covariance of what each component explains; its own where that is nothing."""
    return np.maximum(s.mass, EMPTY), *component_moments(theta, s, xp=np)[1:]


def about_means(mass: np.ndarray, covariances: np.ndarray) -> Statistics:
    """Statistics of components with this mass and covariance, about their own means."""
    nothing = np.zeros(len(mass))
    first = np.zeros(covariances.shape[:-1])
    return Statistics(nothing, mass, first, mass[..., None, None] * covariances)


def matched(own: Array, theirs: Array) -> np.ndarray:
    """The neighbour's component for each own one, by means (edges, k, d): least total square."""
    return np.asarray(_matched(own, theirs)) if len(own) else np.zeros(own.shape[:2], int)


def reordered(message: Any, order: np.ndarray) -> Any:
    """What was heard over edges, (edges, k, ...), in the own numbering."""

    def take(part: np.ndarray) -> np.ndarray:
        index = order.reshape(*order.shape, *(1,) * (part.ndim - order.ndim))
        return np.take_along_axis(part, index, axis=1)

    return jax.tree.map(take, message)


def over_edges(table: Any, block: Block) -> Any:
    """What was heard over every edge, of the reply to a broadcast."""
    return jax.tree.map(lambda part: np.asarray(part)[block.sender], table)


def to_host(tree: Any) -> Any:
    """The tree with NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


@jit_in_order
def _statistics(theta, rows, counts) -> Statistics:
    return statistics(*jax.tree.map(jnp.asarray, (theta, rows, counts)))


@jit_in_order
def _densities(models, rows):
    joint = log_joints(*jax.tree.map(jnp.asarray, (models, rows)))
    return jax.nn.logsumexp(joint, axis=-1)


@jit_in_order
def _m_step(theta, s, reg_covar, prior, covariance_type: str) -> Mixture:
    theta, s = jax.tree.map(jnp.asarray, (theta, s))
    return m_step(theta, s, reg_covar, prior, covariance_type)


@jit_in_order
def _matched(own, theirs):
    own, theirs = jnp.asarray(own), jnp.asarray(theirs)
    cost = jnp.square(own[:, :, None] - theirs[:, None, :]).sum(-1)
    return jnp.moveaxis(best_matchings(jnp.moveaxis(cost, 0, -1)), -1, 0)
