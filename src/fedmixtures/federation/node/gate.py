r"""The release gate: a component leaves a node only if enough people stand behind it.

A component's effective count is the sum of its responsibilities for the node's own rows under the
model that would be sent; where the site names a person column, that of the people they belong to.
It may leave if that count is at least $\max(11, 5d)$, or below one half: then it carries no own
row. Where cells are missing, rows are counted for every two columns, those that have both. Any
other component is merged into its nearest one first (smallest MMD of the two Gaussians; weight,
mean and covariance of the pair are kept).
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import clearly_less, first_least
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import MMD, expected_kernel
from fedmixtures.engine.evaluate import Evaluator, log_joint_rows
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

NO_ROW = 0.5
"""A component with a smaller effective count carries no own row."""


class GateRefusal(ValueError):
    """The model may not leave, and merging is no way out."""


@dataclass(frozen=True)
class Support:
    """What can stand behind a component: a node's rows and, where known, whose they are."""

    rows: np.ndarray
    people: np.ndarray | None = None
    """A number from 0 for each row, the same for rows of one person."""

    @property
    def count(self) -> int:
        """People, or rows where no person is named."""
        return len(self.rows) if self.people is None else int(self.people.max()) + 1

    @property
    def weights(self) -> np.ndarray:
        """One for each row; where people are known, a person's rows share it."""
        if self.people is None:
            return np.ones(len(self.rows))
        return 1.0 / np.bincount(self.people)[self.people]

    def counts(self, mixture: Mixture) -> np.ndarray:
        """Effective count of every component, in the two columns where fewest cells are there.

        A number of a component rests on the rows that have its columns: a variance on those that
        have one, a covariance on those that have both. Two columns of which no own row has both
        carry nothing and are left out; so is a component without an own row.
        """
        data = NodeData.from_rows(self.rows, np.zeros(len(self.rows), dtype=int))
        joint = log_joint_rows(Mixture.stack([mixture]), data)
        shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
        columns = np.unique(~np.isnan(self.rows), axis=1).T  # those without gaps count as one
        both = np.unique([a & b for a in columns for b in columns], axis=0)
        found = np.stack([self._effective(shares * rows[:, None]) for rows in both])
        carried = np.where(clearly_less(found, NO_ROW), np.inf, found).min(axis=0)
        return np.where(np.isfinite(carried), carried, found.max(axis=0))

    def masses_together(self, mixtures: Mixture) -> np.ndarray:
        """(mixtures, components, pairs) weight of the rows that have both of any two columns.

        Pairs as `numpy.triu_indices` lists them. Below `NO_ROW` it is no row's, and told as none.
        """
        there = (~np.isnan(self.rows)).astype(float)
        i, j = np.triu_indices(self.rows.shape[1])
        both = there[:, i] * there[:, j] * self.weights[:, None]
        data = Evaluator(NodeData.from_rows(self.rows, np.zeros(len(self.rows), dtype=int)))
        found = []
        for index in range(len(mixtures.weights)):
            joint = data.log_joint(Mixture.stack([mixtures.at(index)]))
            shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
            found.append(shares.T @ both)
        masses = np.stack(found)
        return np.where(clearly_less(masses, NO_ROW), 0.0, masses)

    def rare_together(self, least: float) -> list[tuple[int, int]]:
        """Columns, two by two, that some rows (or people) have both of, but fewer than `least`."""
        there = ~np.isnan(self.rows)
        found = []
        for i, j in zip(*np.triu_indices(there.shape[1]), strict=True):
            both = there[:, i] & there[:, j]
            n = both.sum() if self.people is None else len(np.unique(self.people[both]))
            found += [(int(i), int(j))] if 0 < n < least else []
        return found

    def _effective(self, shares: np.ndarray) -> np.ndarray:
        r"""People behind every component, by the shares of rows.

        With $s_p$ the responsibilities of person p's rows together: $\sum_p \min(1, s_p)$, and no
        more than $(\sum_p s_p)^2 / \sum_p s_p^2$, so that nobody's many rows pass for many people.
        With one row for each person this is the sum of responsibilities.
        """
        if self.people is None:
            return shares.sum(axis=0)
        sums = np.zeros((self.count, shares.shape[1]))
        np.add.at(sums, self.people, shares)
        squares = np.square(sums).sum(axis=0)
        spread = np.square(sums.sum(axis=0)) / np.where(squares > 0, squares, 1.0)
        return np.minimum(np.minimum(sums, 1.0).sum(axis=0), spread)


@dataclass(frozen=True)
class Gate:
    """How many people or rows a released component needs, and how precise it is."""

    min_count: int = 11
    per_feature: int = 5
    """The count needed is `min_count`, or this times the number of features if more."""
    min_own: int = 5
    """To a component of a sum over sites a site adds only if so many of its own rows (or people)
    stand behind it: whatever the others add, no total holds fewer of any one site."""
    rounding: float = 0.2
    """Released numbers are rounded to this fraction of their standard error; 0 for not at all."""

    def __post_init__(self):
        _checks.whole("min_count", self.min_count, minimum=0)
        _checks.whole("per_feature", self.per_feature, minimum=0)
        _checks.whole("min_own", self.min_own, minimum=0)
        if not 0 <= self.rounding <= 1:
            raise ValueError(f"`rounding` is {self.rounding!r}. Give a fraction from 0 to 1.")

    def threshold(self, n_features: int) -> int:
        """The effective count a component needs."""
        return max(self.min_count, self.per_feature * n_features)

    def own_count(self, n_features: int) -> int:
        """Own rows that a site adds to a component of a sum, at least."""
        return min(self.min_own, self.threshold(n_features))

    def too_small(self, counts: np.ndarray, n_features: int) -> np.ndarray:
        """Which components may not leave."""
        few = clearly_less(counts, self.threshold(n_features))
        return np.asarray(~clearly_less(counts, NO_ROW) & few)

    def merged(
        self, mixture: Mixture, support: Support, feasible: FeasibleSet, *, may_merge: bool
    ) -> tuple[Mixture | None, int]:
        """What may leave of one mixture (NumPy), and how many components were merged away.

        None: the node holds too few rows for any component and only listens.
        """
        if support.count < self.threshold(mixture.n_features):
            return None, 0
        merged = 0
        while True:
            counts = support.counts(mixture)
            small = np.flatnonzero(self.too_small(counts, mixture.n_features))
            if not len(small):
                return mixture, merged
            if not may_merge:
                raise GateRefusal(
                    "a component of the model rests on too few rows to leave this site, and the "
                    "coupling needs all components. Use MMD or KL, fewer components, or more rows."
                )
            if (np.asarray(mixture.weights) > 0).sum() == 1:
                return None, merged
            mixture = merge_nearest(mixture, int(small[first_least(counts[small])]), feasible)
            merged += 1


def merge_nearest(mixture: Mixture, small: int, feasible: FeasibleSet) -> Mixture:
    """Component `small` merged into the one nearest to it; its place becomes empty."""
    squared = component_discrepancies(mixture)[small]
    largest = squared.max()
    squared[(np.asarray(mixture.weights) <= 0) | (np.arange(len(squared)) == small)] = np.inf
    into = int(first_least(squared, scale=largest))
    weights, means, covariances = (np.array(part) for part in mixture.parts)
    pair = [small, into]
    share = weights[pair] / weights[pair].sum()
    mean = share @ means[pair]
    off = means[pair] - mean
    covariance = np.einsum("c,cij->ij", share, covariances[pair])
    covariance = covariance + np.einsum("c,ci,cj->ij", share, off, off)
    weights[into], means[into], covariances[into] = weights[pair].sum(), mean, covariance
    # What stays behind in the empty place must not tell what stood there.
    weights[small], means[small] = 0.0, 0.0
    covariances[small] = np.eye(mixture.n_features)
    covariances = TYPES[feasible.covariance_type].project(covariances, weights)
    # Two distant components may make a wider one than the set allows.
    return projected(Mixture(weights, means, covariances), feasible)


def projected(mixture: Mixture, feasible: FeasibleSet) -> Mixture:
    """The nearest mixture of the feasible set (NumPy)."""
    with double():
        return _projected(feasible, jax.tree.map(jnp.asarray, mixture)).to_numpy()


def component_discrepancies(mixture: Mixture) -> np.ndarray:
    """Squared MMD (default bandwidths) between every two components as single Gaussians."""
    with double():
        kernels = np.asarray(_kernels(jnp.asarray(mixture.means), jnp.asarray(mixture.covariances)))
    own = np.diagonal(kernels)
    return own[:, None] + own[None, :] - 2 * kernels


@eqx.filter_jit
def _projected(feasible: FeasibleSet, mixture: Mixture) -> Mixture:
    return feasible.project(mixture)


@jax.jit
def _kernels(means: jax.Array, covariances: jax.Array) -> jax.Array:
    difference = means[:, None, :] - means[None, :, :]
    sums = covariances[:, None] + covariances[None, :]
    bandwidths = [jnp.asarray(s, means.dtype) for s in MMD().bandwidths]
    return jnp.asarray(sum(expected_kernel(difference, sums, sigma) for sigma in bandwidths))
