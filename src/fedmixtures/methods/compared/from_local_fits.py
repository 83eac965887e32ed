"""What conversations share that begin with an ordinary fit of each node's own rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array
from fedmixtures.data.gaps import by_pattern, padded
from fedmixtures.data.node_data import NodeData
from fedmixtures.kernels.compiling import jit_in_order, rounded_up
from fedmixtures.kernels.cpu.matching import best_matchings
from fedmixtures.kernels.dispatch import log_joints, statistics
from fedmixtures.methods.compared.baselines import Local
from fedmixtures.methods.compared.pooling import EMMethod
from fedmixtures.methods.conversation import Block, Conversation
from fedmixtures.mixture import em
from fedmixtures.mixture.density import GappyRows
from fedmixtures.mixture.em import EMPTY, ShapePrior
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


class FromLocalFits(EMMethod, Conversation):
    """Settings of the local fits, which run in JAX so that a prior and row weights are known.

    Parameters
    ----------
    n_init
        k-means starts of a local fit; the most likely result is kept.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    needs_equal_components: ClassVar[bool] = True

    n_init: int = 5

    def __check_init__(self):
        _checks.whole("n_init", self.n_init)

    def local_fits(self, block: Block) -> Mixture:
        """The nodes' own fits, stacked, NumPy."""
        same = {"reg_covar": self.reg_covar, "prior": self.prior}
        local = Local(self.n_init, engine="jax", covariance_type=self.covariance_type, **same)
        fits = local.fit_nodes(block.data, block.n_components.tolist(), block.start, block.seed)
        return Mixture.stack(fits.mixtures)

    def m_step(self, theta: Mixture, s: Statistics) -> Mixture:
        """As every `EMMethod`, on the host."""
        return m_step(theta, s, self.reg_covar, self.prior, self.covariance_type)


def padded_rows(data: NodeData) -> tuple[Array | GappyRows, np.ndarray]:
    """Rows (nodes, m, d) and their counts (nodes, m), sorted; padding counts zero."""
    order = np.lexsort((*data.rows.T[::-1], data.node_index))
    sorted_ = replace(data, rows=data.rows[order], row_weights=data.row_weights[order])
    data = by_pattern(sorted_)
    return padded(data, rounded_up(int(data.counts.max())))


def e_step(theta: Mixture, rows: Array | GappyRows, counts: np.ndarray) -> Statistics:
    """Statistics of every node's rows under its mixture, on the host."""
    return to_host(_statistics(theta, rows, counts))


def m_step(
    theta: Mixture,
    s: Statistics,
    ridge: float,
    prior: ShapePrior | None,
    covariance_type: str = "full",
) -> Mixture:
    """New mixtures from statistics taken under `theta`, on the host."""
    return to_host(_m_step(theta, s, ridge, prior, covariance_type))


def density_rows(models: Mixture, rows: Array | GappyRows) -> np.ndarray:
    """Log-density of rows (models, m, d) under the model of the same place."""
    return np.asarray(_densities(models, rows))


def component_moments(theta: Mixture, s: Statistics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mass, mean and covariance of what each component explains; its own where that is nothing."""
    kept = s.mass > EMPTY
    mass = np.where(kept, s.mass, 1.0)
    shift = s.first / mass[..., None]
    spread = s.second / mass[..., None, None] - shift[..., :, None] * shift[..., None, :]
    means = np.where(kept[..., None], theta.means + shift, theta.means)
    covariances = np.where(kept[..., None, None], spread, theta.covariances)
    return np.maximum(s.mass, EMPTY), means, covariances


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
    """The same numbers as NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


@jit_in_order
def _statistics(theta, rows, counts) -> Statistics:
    return statistics(*jax.tree.map(jnp.asarray, (theta, rows, counts)))


@jit_in_order
def _densities(models, rows):
    joint = log_joints(*jax.tree.map(jnp.asarray, (models, rows)))
    return jax.nn.logsumexp(joint, axis=-1)


@jit_in_order
def _m_step(theta, s, ridge, prior, covariance_type: str) -> Mixture:
    theta, s = jax.tree.map(jnp.asarray, (theta, s))
    return em.m_step(theta, s, ridge, prior, covariance_type)


@jit_in_order
def _matched(own, theirs):
    own, theirs = jnp.asarray(own), jnp.asarray(theirs)
    cost = jnp.square(own[:, :, None] - theirs[:, None, :]).sum(-1)
    return jnp.moveaxis(best_matchings(jnp.moveaxis(cost, 0, -1)), -1, 0)
