r"""EM with a hub that pools counts and moments: FedEM and IFCA.

**FedEM**: all nodes share k Gaussians, each keeps its own weights; the specialisation to mixtures
of Marfoq et al. (2021), which is also the unsupervised part of FedGMM (Wu et al., 2023). With
responsibilities under the own weights and the shared components, $N_{ic}, a_{ic}, B_{ic}$ the
counts and moments of node i:

$$\pi_{ic} = N_{ic}/m_i, \quad \mu_c = \frac{\sum_i a_{ic}}{\sum_i N_{ic}}, \quad
  \Sigma_c = \frac{\sum_i B_{ic}}{\sum_i N_{ic}} - \mu_c \mu_c^\top.$$

That is EM for $\sum_i \ln p_i$: the likelihood of all rows never falls.

**IFCA** (Ghosh et al., 2020): nodes in groups, one mixture per group. In every round the hub sends
the mixtures of all groups, each node takes the one under which its own training rows are most
likely, and every group's mixture takes an EM step on the rows of the nodes that took it. The number
of groups must be known: in comparisons it is an oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures import _checks
from fedmixtures._ties import first_greatest, first_least
from fedmixtures._types import Array, PerNode
from fedmixtures.graph.network import Network
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.methods.base import Participants, Prepared
from fedmixtures.methods.compared.pooling import (
    EMMethod,
    clustered_start,
    like,
    losses,
    weights_of,
)
from fedmixtures.methods.programs import HubProgram, Info, NodeRows, counts, squared_distance
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


class FedEM(EMMethod, HubProgram):
    """Shared Gaussians, personal weights, one EM step per round; nothing to tune.

    A node sends counts and moments of its components to the hub, its weights stay. All nodes begin
    alike: the hub clusters the centres of their local k-means, with equal weights and the mean of
    their covariances.

    Parameters
    ----------
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    needs_equal_components: ClassVar[bool] = True
    supports_categories: ClassVar[bool] = True

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """Nodes send centres and covariances, the hub one start for all."""
        start = clustered_start(theta, participants)
        numbers = start.means.size + start.covariances.size
        return Prepared(theta, start, start, sent=numbers, received=numbers)

    def start(self, theta: Mixture, shared: Mixture, data: NodeRows) -> Mixture:
        """The hub's start, with weights that will be the node's own."""
        return jax.tree.map(lambda new, old: jnp.broadcast_to(new[None], old.shape), shared, theta)

    def upload(self, state: Mixture, data: NodeRows) -> tuple[tuple, Statistics]:
        """The E-step: counts and moments about the shared means leave."""
        s = statistics(state, data.rows, counts(data))
        return (s.mass, s.first, s.second), s

    def hub(self, messages: tuple, rows: PerNode, hub_state: Mixture) -> tuple[tuple, Mixture]:
        """The M-step; a component that nobody uses stays as it is."""
        mass, first, second = (part.sum(0, keepdims=True) for part in messages)
        pooled = Statistics(jnp.zeros_like(mass[:, 0]), mass, first, second)
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


class Candidates(eqx.Module):
    """What every node knows: the mixtures of all groups in all restarts."""

    models: Mixture
    """Arrays (nodes, restarts, groups, ...) at the nodes, (restarts, groups, ...) at the hub."""
    best: Array
    """The restart under which all nodes' rows were most likely, by the last report of the nodes."""


class Report(eqx.Module):
    """What a node sends, one entry per restart."""

    group: Int[Array, "nodes restarts"]
    loss: Float[Array, "nodes restarts"]
    update: tuple  # counts and moments under the group's mixture


class IFCA(EMMethod, HubProgram):
    """Groups of nodes by alternation: every node picks a group, every group fits a mixture.

    Each restart begins with the local k-means mixtures of distinct random nodes, one per group. All
    restarts run side by side (and are counted in the messages); the most likely one is kept, as
    judged by the losses the nodes report with their updates, so one round old. A group that no node
    takes keeps its mixture.

    Parameters
    ----------
    n_groups
        Number of groups; there is no default, as the method cannot find it.
    restarts
        Random starts; the original code relies on several.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    needs_equal_components: ClassVar[bool] = True

    n_groups: int | None = None
    restarts: int = 3

    def __check_init__(self):
        if self.n_groups is not None:
            _checks.whole("n_groups", self.n_groups)
        _checks.whole("restarts", self.restarts)

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """The number of groups must be given, and there must be a node for each."""
        super().check(n_components, network)
        self._groups(len(n_components))

    def _groups(self, n_nodes: int) -> int:
        if self.n_groups is None:
            raise ValueError(
                "`n_groups` of IFCA is missing: the method cannot find the number of groups. Give "
                "it, as in method=IFCA(n_groups=3)."
            )
        if self.n_groups > n_nodes:
            raise ValueError(
                f"`n_groups` is {self.n_groups}, but there are {n_nodes} nodes. "
                "Give at most one group per node."
            )
        return self.n_groups

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """The hub asks random nodes for their mixtures and sends them to all."""
        groups = self._groups(len(participants.labels))
        rng = np.random.default_rng(participants.seed)
        n, shape = len(participants.labels), (self.restarts, groups)
        drawn = [rng.permutation(n)[:groups] for _ in range(self.restarts)]
        chosen = participants.order[np.concatenate(drawn)]
        models = jax.tree.map(lambda part: part.reshape(*shape, *part.shape[1:]), theta.at(chosen))
        one = sum(part[0].size for part in theta.parts)
        sent = one * np.isin(np.arange(n), chosen)
        start = Candidates(models, np.zeros(()))
        return Prepared(theta, start, start, sent, one * self.restarts * groups)

    def start(self, theta: Mixture, shared: Candidates, data: NodeRows) -> Candidates:
        """The mixtures of all groups."""
        return _tiled(shared, len(theta.weights))

    def upload(self, state: Candidates, data: NodeRows) -> tuple[Report, Report]:
        """The most likely group of each restart, and what improves it."""
        s, group, loss = _choose(state.models, data)
        report = Report(group, loss, (s.mass, s.first, s.second))
        return report, report

    def hub(
        self, messages: Report, rows: PerNode, hub_state: Candidates
    ) -> tuple[Candidates, Candidates]:
        """Improve every group's mixture by its nodes, and compare the restarts."""
        groups = hub_state.models.weights.shape[1]
        member = jax.nn.one_hot(messages.group, groups, dtype=rows.dtype)
        member = member * (rows > 0)[:, None, None]
        pooled = [jnp.einsum("nrs,nr...->rs...", member, part) for part in messages.update]
        loss = (rows[:, None] * messages.loss).sum(0)
        best = first_least(loss, scale=rows.sum()).astype(rows.dtype)
        after = Candidates(self._pooled_step(hub_state.models, pooled), best)
        return after, after

    def step(
        self, state: Candidates, kept: Report, reply: Candidates, data: NodeRows
    ) -> tuple[Candidates, Info]:
        """Take over the mixtures of all groups."""
        after = _tiled(reply, len(data.rows))
        at_best = lambda candidates: jax.tree.map(
            lambda part: _restart(_pick(part, kept.group), state.best), candidates.models
        )
        moved = squared_distance(at_best(state), at_best(after))
        return after, Info.without_pull(_restart(kept.loss, state.best), moved)

    def result(self, state: Candidates, data: NodeRows) -> Mixture:
        """The mixture of the node's group in the best restart."""
        _, group, _ = _choose(state.models, data)
        return jax.tree.map(lambda part: _restart(_pick(part, group), state.best), state.models)

    def _pooled_step(self, old: Mixture, pooled: list) -> Mixture:
        """One EM step of every group; restarts and groups on one axis."""
        flat = lambda part: part.reshape(-1, *part.shape[2:])
        mass, first, second = map(flat, pooled)
        before = jax.tree.map(flat, old)
        new = self.m_step(before, Statistics(jnp.zeros_like(mass[:, 0]), mass, first, second))
        empty = mass.sum(-1, keepdims=True) <= 0
        weights = jnp.where(empty, before.weights, weights_of(new.weights))
        new = Mixture(weights, new.means, new.covariances)
        return jax.tree.map(lambda part, like: part.reshape(like.shape), new, old)


def _choose(models: Mixture, data: NodeRows) -> tuple[Statistics, Array, Array]:
    """Statistics under the best group of each restart, its number, and the loss under it."""
    one_model = lambda theta: statistics(theta, data.rows, counts(data))
    both = jax.vmap(jax.vmap(one_model, in_axes=1, out_axes=1), in_axes=1, out_axes=1)
    s = both(models)  # (nodes, restarts, groups, ...)
    group = first_greatest(s.log_likelihood, scale=counts(data).sum(-1, keepdims=True))
    found = jax.tree.map(lambda part: _pick(part, group), s)
    loss = jax.vmap(lambda s: losses(s, data), in_axes=1, out_axes=1)(found)
    return found, group.astype(jnp.int32), loss


def _pick(part: Array, group: Array) -> Array:
    """(nodes, restarts, groups, ...) at the chosen group."""
    index = like(group, part[:, :, 0])[:, :, None]
    return jnp.take_along_axis(part, index, axis=2)[:, :, 0]


def _restart(part: Array, best: Array) -> Array:
    """(nodes, restarts, ...) at the best restart."""
    return jnp.take_along_axis(part, like(best.astype(jnp.int32), part[:, 0])[:, None], 1)[:, 0]


def _tiled(shared: Candidates, n: int) -> Any:
    return jax.tree.map(lambda part: jnp.broadcast_to(part[None], (n, *part.shape)), shared)
