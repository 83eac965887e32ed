"""IFCA: nodes in groups, one mixture per group (Ghosh et al., 2020).

In every round the hub sends the mixtures of all groups, each node takes the one under which its own
training rows are most likely, and every group's mixture is improved by the nodes that took it. The
number of groups must be known: in comparisons it is an oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

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
from fedmixtures.methods.compared.pooling import EMMethod, like, losses, weights_of
from fedmixtures.methods.programs import (
    HubProgram,
    Info,
    NodeRows,
    counts,
    squared_distance,
)
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


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
    update: tuple
    """Counts and moments under the group's mixture, or the parameters after local steps."""


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
    aggregate
        ``"exact"``: one EM step on the rows of all nodes of the group. ``"average"``: every node
        takes `n_local_steps` EM steps from the group's mixture and the hub takes the plain mean of
        the results over the group, the reference behaviour of model averaging in the original code
        (its other form, gradient averaging, divides by the number of all nodes).
    n_local_steps
        EM steps of a node per round, with ``aggregate="average"``.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    needs_equal_components: ClassVar[bool] = True

    n_groups: int | None = None
    restarts: int = 3
    aggregate: Literal["exact", "average"] = "exact"
    n_local_steps: int = 1

    def __check_init__(self):
        if self.n_groups is not None:
            _checks.whole("n_groups", self.n_groups)
        _checks.whole("restarts", self.restarts)
        _checks.whole("n_local_steps", self.n_local_steps)
        _checks.one_of("aggregate", self.aggregate, ("exact", "average"))
        if self.n_local_steps > 1 and self.aggregate == "exact":
            raise ValueError(
                f"`n_local_steps` is {self.n_local_steps}, but the exact update is one EM step on "
                "the rows of a whole group. Use aggregate='average'."
            )

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
        del data
        return _tiled(shared, len(theta.weights))

    def upload(self, state: Candidates, data: NodeRows) -> tuple[Report, Report]:
        """The most likely group of each restart, and what improves it."""
        found, group, loss = _choose(state.models, data)
        chosen = jax.tree.map(lambda part: _pick(part, group), state.models)
        if self.aggregate == "exact":
            update = found.mass, found.first, found.second
        else:
            update = self._local_steps(chosen, found, data).parts
        report = Report(group, loss, update)
        return report, report

    def hub(
        self, messages: Report, rows: PerNode, hub_state: Candidates
    ) -> tuple[Candidates, Candidates]:
        """Improve every group's mixture by its nodes, and compare the restarts."""
        groups = hub_state.models.weights.shape[1]
        member = jax.nn.one_hot(messages.group, groups, dtype=rows.dtype)
        member = member * (rows > 0)[:, None, None]
        pooled = [jnp.einsum("nrs,nr...->rs...", member, part) for part in messages.update]
        old, size = hub_state.models, member.sum(0)
        if self.aggregate == "exact":
            models = self._pooled_step(old, pooled)
        else:
            mean = lambda total, before: jnp.where(
                like(size, total) > 0, total / jnp.maximum(like(size, total), 1.0), before
            )
            models = Mixture(*(mean(t, b) for t, b in zip(pooled, old.parts, strict=True)))
        loss = (rows[:, None] * messages.loss).sum(0)
        best = first_least(loss, scale=rows.sum()).astype(rows.dtype)
        after = Candidates(models, best)
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
        s = Statistics(jnp.zeros_like(mass[:, 0]), mass, first, second)
        new = self.m_step(before, s)
        empty = mass.sum(-1, keepdims=True) <= 0
        weights = jnp.where(empty, before.weights, weights_of(new.weights))
        new = Mixture(weights, new.means, new.covariances)
        return jax.tree.map(lambda part, like: part.reshape(like.shape), new, old)

    def _local_steps(self, theta: Mixture, s: Statistics, data: NodeRows) -> Mixture:
        """EM at every node from its group's mixture, in every restart."""

        def one_restart(theta: Mixture, s: Statistics) -> Mixture:
            new = self.m_step(theta, s)
            for _ in range(self.n_local_steps - 1):
                s = statistics(new, data.rows, counts(data))
                new = self.m_step(new, s)
            return new

        return jax.vmap(one_restart, in_axes=1, out_axes=1)(theta, s)


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
