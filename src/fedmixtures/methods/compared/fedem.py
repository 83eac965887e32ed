r"""FedEM: all nodes share k Gaussians, each keeps its own weights.

The specialisation to mixtures of Marfoq et al. (2021), which is also the unsupervised part of
FedGMM (Wu et al., 2023). With responsibilities under the own weights and the shared components,
$N_{ic}, a_{ic}, B_{ic}$ the counts and moments of node i:

$$\pi_{ic} = N_{ic}/m_i, \quad \mu_c = \frac{\sum_i a_{ic}}{\sum_i N_{ic}}, \quad
  \Sigma_c = \frac{\sum_i B_{ic}}{\sum_i N_{ic}} - \mu_c \mu_c^\top.$$

That is EM for $\sum_i \ln p_i$: the likelihood of all rows never falls.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from fedmixtures import _checks
from fedmixtures._types import PerNode
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.methods.base import Participants, Prepared
from fedmixtures.methods.compared.pooling import EMMethod, clustered_start, losses, weights_of
from fedmixtures.methods.programs import (
    HubProgram,
    Info,
    NodeRows,
    counts,
    squared_distance,
)
from fedmixtures.mixture.em import EMPTY, m_step
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


class FedEM(EMMethod, HubProgram):
    """Shared Gaussians, personal weights, one EM step per round; nothing to tune.

    A node sends counts and moments of its components to the hub, its weights stay. All nodes begin
    alike: the hub clusters the centres of their local k-means, with equal weights and the mean of
    their covariances.

    Parameters
    ----------
    aggregate
        ``"exact"``: the M-step above. ``"average"``: nodes send means and covariances about their
        own means and the hub averages these with weights $N_{ic}$, the reference behaviour of Wu's
        code: the same means, but covariances without the scatter between nodes. (That code also
        adds 0.1 to counts and covariances; Marfoq's averages with weights $m_i$ after local
        gradient steps. Neither is done here.)
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    needs_equal_components: ClassVar[bool] = True

    aggregate: Literal["exact", "average"] = "exact"

    def __check_init__(self):
        _checks.one_of("aggregate", self.aggregate, ("exact", "average"))

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """Nodes send centres and covariances, the hub one start for all."""
        start = clustered_start(theta, participants)
        numbers = start.means.size + start.covariances.size
        return Prepared(theta, start, start, sent=numbers, received=numbers)

    def start(self, theta: Mixture, shared: Mixture, data: NodeRows) -> Mixture:
        """The hub's start, with weights that will be the node's own."""
        del data
        return jax.tree.map(lambda new, old: jnp.broadcast_to(new[None], old.shape), shared, theta)

    def upload(self, state: Mixture, data: NodeRows) -> tuple[tuple, Statistics]:
        """The E-step: counts and moments leave, about the shared or about the own means."""
        s = statistics(state, data.rows, counts(data))
        if self.aggregate == "exact":
            return (s.mass, s.first, s.second), s
        own = m_step(state, s, 0.0, covariance_type=self.covariance_type)
        return (s.mass, own.means, own.covariances), s

    def hub(self, messages: tuple, rows: PerNode, hub_state: Mixture) -> tuple[tuple, Mixture]:
        """The M-step; a component that nobody uses stays as it is."""
        del rows
        pooled = self._pooled(messages, hub_state)
        before = jax.tree.map(lambda part: part[None], hub_state)
        new = self.m_step(before, pooled).at(0)
        new = Mixture(hub_state.weights, new.means, new.covariances)
        return (new.means, new.covariances), new

    def step(
        self, state: Mixture, kept: Statistics, reply: tuple, data: NodeRows
    ) -> tuple[Mixture, Info]:
        """Own weights from the own E-step, components from the hub."""
        means, covariances = (jnp.broadcast_to(p[None], (len(kept.mass), *p.shape)) for p in reply)
        after = Mixture(weights_of(kept.mass, self.prior), means, covariances)
        return after, Info.without_pull(losses(kept, data), squared_distance(state, after))

    def result(self, state: Mixture, data: NodeRows) -> Mixture:
        """The mixtures are the state."""
        del data
        return state

    def _pooled(self, messages: tuple, shared: Mixture) -> Statistics:
        """Counts and moments of all nodes about the shared means."""
        mass, first, second = messages
        total, nothing = mass.sum(0, keepdims=True), jnp.zeros_like(mass[0, :1])
        if self.aggregate == "exact":
            return Statistics(nothing, total, *(p.sum(0, keepdims=True) for p in (first, second)))
        away = mass[..., None] * (first - shared.means[None])
        within = (mass[..., None, None] * second).sum(0, keepdims=True)
        shift = away.sum(0, keepdims=True)
        spread = shift[..., :, None] * shift[..., None, :]
        spread = spread / jnp.maximum(total, EMPTY)[..., None, None]
        return Statistics(nothing, total, shift, within + spread)
