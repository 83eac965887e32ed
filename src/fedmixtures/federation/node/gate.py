r"""The release gate: a component leaves a node only if enough of the node's rows stand behind it.

A component's effective count is the sum of its responsibilities for the node's own rows under the
model that would be sent. It may leave if that count is at least $\max(11, 5d)$, or below one half:
then it carries no own row. Any other component is merged into its nearest one first (smallest MMD
of the two Gaussians, weight, mean and covariance of the pair kept).
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import clearly_less, first_least
from fedmixtures._types import Array
from fedmixtures.discrepancy.mmd import MMD, expected_kernel
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.methods.base import NodeRows
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import double

NO_ROW = 0.5
"""A component with a smaller effective count carries no own row."""


class GateRefusal(ValueError):
    """The model may not leave, and merging is no way out."""


@dataclass(frozen=True)
class Gate:
    """How many rows a released component needs: `min_count`, or `per_feature` times d if more."""

    min_count: int = 11
    per_feature: int = 5

    def __post_init__(self):
        _checks.whole("min_count", self.min_count, minimum=0)
        _checks.whole("per_feature", self.per_feature, minimum=0)

    def threshold(self, n_features: int) -> int:
        """The effective count a component needs."""
        return max(self.min_count, self.per_feature * n_features)

    def too_small(self, counts: np.ndarray, n_features: int) -> np.ndarray:
        """Which components may not leave."""
        return ~clearly_less(counts, NO_ROW) & clearly_less(counts, self.threshold(n_features))

    def passes(self, mixture: Mixture, data: NodeRows) -> bool:
        """Whether every component may leave as it is."""
        counts = effective_counts(mixture, data)
        return not self.too_small(counts, mixture.n_features).any()

    def released(
        self, mixture: Mixture, data: NodeRows, feasible: FeasibleSet, *, may_merge: bool
    ) -> tuple[Mixture | None, int]:
        """What may leave of one mixture (NumPy), and how many components were merged away.

        None: the node holds too few rows for any component and only listens. `data` is the block
        of one that holds the node's rows.
        """
        n_rows = int((np.asarray(data.row_weights) > 0).sum())
        if n_rows < self.threshold(mixture.n_features):
            return None, 0
        merged = 0
        while True:
            counts = effective_counts(mixture, data)
            small = np.flatnonzero(self.too_small(counts, mixture.n_features))
            if not len(small):
                return mixture, merged
            if not may_merge:
                raise GateRefusal(
                    "a component of the model rests on too few rows to leave this site, and the "
                    "coupling needs all components. Use MMD or KL, fewer components, or more rows."
                )
            mixture = merge_nearest(mixture, int(small[first_least(counts[small])]), feasible)
            merged += 1


def effective_counts(mixture: Mixture, data: NodeRows) -> np.ndarray:
    """Sum over the node's rows of each component's responsibility; a row counts as one."""
    with double():
        leading = jax.tree.map(lambda part: jnp.asarray(part)[None], mixture)
        return np.asarray(_masses(leading, data))[0]


@eqx.filter_jit
def _masses(mixture: Mixture, data: NodeRows) -> Array:
    return statistics(mixture, data.rows, jnp.where(data.row_weights > 0, 1.0, 0.0)).mass


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
    with double():  # two distant components may make a wider one than the set allows
        whole = jax.tree.map(jnp.asarray, Mixture(weights, means, covariances))
        return _projected(feasible, whole).to_numpy()


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
