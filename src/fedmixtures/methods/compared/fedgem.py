r"""FedGEM: components whose uncertainty balls meet are taken for one, and K is found on the way.

Ibrahim, Gebraeel and Xie (ICLR 2026, arXiv 2601.21160). After an EM step from $\theta$ with
maximiser M, a node sends for every component the mean of M and the largest radius within which no
move lowers the expected complete likelihood below that of $\theta$. The hub takes components of
different nodes for one whose balls meet,
$\|M_a - M_b\| \le \sqrt{\epsilon_a} + \sqrt{\epsilon_b}$, and sends each the average of its group.
At the end radii are $c R / (\pi \sqrt N)$, with R the least distance of two of the node's own
centres, and groups are merged once: their number is K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import in_order
from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.init import KMeansStart
from fedmixtures.methods.base import OneShot, Outcome
from fedmixtures.methods.compared.pooling import (
    EMMethod,
    about_means,
    e_step,
    explained,
    moment_match,
    padded_rows,
    summed,
)
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.covariance_types import TYPES, of_type
from fedmixtures.mixture.mixture import Mixture


class FedGEM(EMMethod, OneShot):
    r"""EM at the nodes, groups of components at the hub; nodes may have different numbers of them.

    With full covariances a move to $\theta'$ does not lower the expected likelihood while
    $(\theta' - M)^\top \Sigma^{-1} (\theta' - M) \le (\theta - M)^\top \Sigma^{-1} (\theta - M)$;
    the largest ball in this ellipsoid has $\epsilon$ = right side times the least eigenvalue of
    $\Sigma$. An average that lies outside a node's ball is moved to its surface, so that no node
    loses by it. Covariances and weights are the node's own until the end, when moments of merged
    components are pooled (the authors have identity covariances and fixed weights).

    The authors' code differs from their paper: its bisection never runs, so that $\epsilon =
    \frac12 \|M - \theta\|^2$ (``radius="half"``); the common point of two balls is taken on the far
    side of the first; and the final radius is used as a squared one. Neither of the last two is
    done here.

    Parameters
    ----------
    radius
        ``"largest"`` as above, or ``"half"`` as in the code.
    final_factor
        c of the final radius. The authors tune it; at 0.2 two components of ten rows each in two
        features meet if their means are within about two standard errors.
    n_rounds
        EM steps, each with one exchange.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    radius: Literal["largest", "half"] = "largest"
    final_factor: float = 0.2
    n_rounds: int = 40
    n_init: int = 5

    def __check_init__(self):
        _checks.one_of("radius", self.radius, ("largest", "half"))
        _checks.positive("final_factor", self.final_factor, allow_zero=True)
        _checks.whole("n_rounds", self.n_rounds)
        _checks.whole("n_init", self.n_init)

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """Rounds of EM and grouping, then one merger."""
        with double():
            return self._fit(data, n_components, theta, seed)

    def _fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        if theta is None:
            theta = KMeansStart(self.n_init).mixtures(data, n_components, seed, 1e-6)
            theta = of_type(theta, self.covariance_type)
        rows, counts = padded_rows(data)
        present = np.asarray(theta.weights) > 0
        for _ in range(self.n_rounds):
            new = self.m_step_on_host(theta, e_step(theta, rows, counts))
            reach = np.where(present, self.reach(theta, new), -np.inf)
            group = grouped(new.means, reach)
            means = within_reach(group_means(new.means, group), new.means, reach)
            means = np.where(present[..., None], means, new.means)
            theta = Mixture(new.weights, means, new.covariances)
        mass, means, covariances = explained(theta, e_step(theta, rows, counts))
        reach = self._final_reach(means, mass, data.total_weights(), present)
        group = grouped(means, reach)
        theta = self._merged(theta, (mass * present, means, covariances), group)
        k, d = present.sum(1), data.n_features
        shape = TYPES[self.covariance_type].n_numbers(k, d)
        sent = self.n_rounds * k * (d + 1) + k * (2 + d) + shape
        received = self.n_rounds * k * d + k * (1 + d) + shape
        found = np.where(present, group, -1)
        return Outcome(theta, nodes={"component": found}, sent=sent, received=received)

    def reach(self, before: Mixture, after: Mixture) -> np.ndarray:
        """Radius of each component's ball."""
        moved = before.means - after.means
        if self.radius == "half":
            return np.sqrt(np.square(moved).sum(-1) / 2)
        inverse = np.linalg.inv(after.covariances)
        square = np.einsum("nki,nkij,nkj->nk", moved, inverse, moved)
        least = np.linalg.eigvalsh(after.covariances)[..., 0]
        return np.sqrt(np.maximum(square * least, 0.0))

    def _final_reach(
        self, means: np.ndarray, mass: np.ndarray, rows: np.ndarray, present: np.ndarray
    ) -> np.ndarray:
        """Final radii; a node with a single component has no distance and merges nothing."""
        distance = np.linalg.norm(means[:, :, None] - means[:, None], axis=-1)
        pairs = present[:, :, None] & present[:, None] & ~np.eye(means.shape[1], dtype=bool)
        least = np.where(pairs, distance, np.inf).min((1, 2))
        least = np.where(np.isfinite(least), least, 0.0)
        weight = np.maximum(mass / rows[:, None], 1 / rows[:, None])
        reach = self.final_factor * least[:, None] / (weight * np.sqrt(rows)[:, None])
        # Two components of one node are two: no ball reaches half way to the next.
        return np.where(present, np.minimum(reach, least[:, None] / 2), -np.inf)

    def _merged(self, theta: Mixture, moments: tuple, group: np.ndarray) -> Mixture:
        """Pooled moments of each group, with the node's own weights."""
        n, k, d = theta.means.shape
        mass, means, covariances = (part.reshape(n * k, *part.shape[2:]) for part in moments)
        total, means, covariances = moment_match(mass, means, covariances, group.reshape(-1), n * k)
        known = (total > 0)[group]
        means = np.where(known[..., None], means[group], theta.means)
        covariances = np.where(known[..., None, None], covariances[group], theta.covariances)
        pooled = about_means(total[group], covariances)
        at_means = Mixture(theta.weights, means, theta.covariances)
        new = self.m_step_on_host(at_means, pooled)
        own = moments[0] + (theta.weights > 0) * (self.prior.extra_mass if self.prior else 0.0)
        return Mixture(own / own.sum(1, keepdims=True), *new.parts[1:])


def grouped(means: Array, reach: np.ndarray) -> np.ndarray:
    """Groups (nodes, k) of components whose balls meet, nearest first, one per node in each."""
    n, k, d = means.shape
    flat, radius, node = means.reshape(-1, d), reach.reshape(-1), np.repeat(np.arange(n), k)
    distance = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    meet = (distance <= radius[:, None] + radius[None]) & (node[:, None] < node[None])
    a, b = np.nonzero(meet)
    group, nodes = np.arange(n * k), [{i} for i in node.tolist()]
    for pair in in_order(distance[a, b]):
        one, other = sorted((group[a[pair]], group[b[pair]]))
        if one != other and not nodes[one] & nodes[other]:
            group[group == other] = one
            nodes[one] |= nodes[other]
    return group.reshape(n, k)


def group_means(means: Array, group: np.ndarray) -> np.ndarray:
    """The plain average of each component's group."""
    flat, d = group.reshape(-1), means.shape[-1]
    totals = summed(means.reshape(-1, d), flat, len(flat))
    sizes = np.bincount(flat, minlength=len(flat))
    return (totals / np.maximum(sizes, 1)[:, None])[group]


def within_reach(wanted: np.ndarray, centre: Array, reach: np.ndarray) -> Array:
    """The point of each ball that is nearest to the wanted one."""
    away = wanted - centre
    length = np.linalg.norm(away, axis=-1)
    factor = np.where(length > reach, np.maximum(reach, 0) / np.where(length > 0, length, 1.0), 1.0)
    return centre + factor[..., None] * away
