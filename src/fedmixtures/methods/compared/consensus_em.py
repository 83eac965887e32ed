r"""Consensus EM (Gu, 2008): EM for one network-wide mixture, sums replaced by talk with neighbours.

Node i takes the E-step under its own parameters, $u_i = (N_i, a_i, B_i)/m_i$ with moments about the
origin (only moments about a common point may be averaged), and moves the state of its filter,

$$x_i \leftarrow x_i + \epsilon \Big[ \sum_{j \in N(i)} w_{ij} (x_j - x_i)
  + \sum_{j \in N(i)} w_{ij} (u_j - x_i) + (u_i - x_i) \Big],$$

the low-pass consensus filter of Olfati-Saber and Shamma (2005). The M-step at node i uses $x_i$.
One exchange per round. The method presumes that component c means the same at every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array, NodeKeys, PerNode, PerSlot
from fedmixtures.graph.network import Network
from fedmixtures.kernels.cpu.matching import best_matching
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.methods.base import Participants, Prepared
from fedmixtures.methods.compared.pooling import EMMethod, like, weights_of
from fedmixtures.methods.programs import Inbox, Info, Keys, NodeProgram, NodeRows, squared_distance
from fedmixtures.mixture.feasible import project_covariances
from fedmixtures.mixture.linear import lower_triangle, symmetric
from fedmixtures.mixture.m_step import EMPTY
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-6, 1e30
"""Bounds on eigenvalues: what a filter has mixed need not be a covariance."""


class OriginMoments(eqx.Module):
    """Share, first and second moment of every component, per row and about the origin."""

    mass: Float[Array, "*nodes k"]
    first: Float[Array, "*nodes k d"]
    second: Float[Array, "*nodes k d d"]


class FilterState(eqx.Module):
    """State of a node."""

    theta: Mixture
    own: OriginMoments  # u: the E-step under `theta`
    mixed: OriginMoments  # x: the state of the filter
    loss: PerNode


class ConsensusEM(EMMethod, NodeProgram):
    r"""EM in which network-wide sums are approximated by a filter over neighbours.

    The paper compares the form with local, unmatched starts (``init="local"``, the default here, so
    that the table can be reproduced). Component c then means something else at every node and the
    filter blends unlike components; the method as its author meant it is ``init="shared"`` or
    ``align=True``. Report it beside the default.

    Parameters
    ----------
    eps
        Gain of the low-pass filter; stable while eps (1 + 2 weighted degree) stays below 1.
    init
        ``"local"``: every node's own start. ``"shared"``: the start of one node, passed on through
        the network, as Gu assumes.
    align
        Whether nodes match their neighbours' components to their own (least total distance of
        means) before they mix them.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to (rows counted as the
        node's own), or None.
    """

    needs_equal_components: ClassVar[bool] = True
    descends: ClassVar = False  # blending may cost a node likelihood; only NaN is a failure

    eps: float = 0.02
    init: Literal["local", "shared"] = "local"
    align: bool = False

    def __check_init__(self):
        _checks.positive("eps", self.eps)
        _checks.one_of("init", self.init, ("local", "shared"))
        if not isinstance(self.align, bool):
            raise ValueError(f"`align` is {self.align!r}. Give True or False.")

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """Components are mixed one by one, by a filter that must be stable."""
        super().check(n_components, network)
        reach = 1 + 2 * network.weighted_degree.max(initial=0.0)
        if self.eps * reach >= 1:
            raise ValueError(
                f"`eps` is {self.eps:g}, but a node has weighted degree {(reach - 1) / 2:g}: the "
                f"filter is stable below 1 / (1 + 2 degree) = {1 / reach:.3g}. Lower eps."
            )

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """A shared start is one node's, told from neighbour to neighbour."""
        if self.init == "local":
            return Prepared(theta)
        first = int(participants.order[0])
        same = jax.tree.map(lambda p: np.broadcast_to(p[first], p.shape), theta)
        numbers = sum(part[0].size for part in theta.parts)
        return Prepared(same, sent=participants.degree * numbers)

    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> FilterState:
        """The filter begins at the first E-step."""
        own, loss = _e_step(theta, data)
        return FilterState(theta, own, own, loss)

    def outgoing(self, state: FilterState) -> tuple[OriginMoments, OriginMoments]:
        """The filter's state and the E-step."""
        return state.mixed, state.own

    def step(
        self, state: FilterState, inbox: Inbox, data: NodeRows, keys: Keys
    ) -> tuple[FilterState, Info]:
        """One filter step, the M-step, and the E-step to be sent next."""
        received = self._matched(state, inbox.broadcast) if self.align else inbox.broadcast
        mixed = self._filtered(state, received, inbox.weight)
        theta = self._m_step(state.theta, mixed, data)
        own, loss = _e_step(theta, data)
        after = FilterState(theta, own, mixed, loss)
        return after, Info.without_pull(state.loss, squared_distance(state.theta, theta))

    def result(self, state: FilterState, data: NodeRows) -> Mixture:
        """The parameters of the last M-step."""
        return state.theta

    def remedy(self, weighted_degree: float) -> str:
        """Name the gain."""
        return f"Lower eps (it is {self.eps:g}), or raise reg_covar (it is {self.reg_covar:g})."

    def _filtered(self, state: FilterState, received: tuple, weight: PerSlot) -> OriginMoments:
        """The new state of the filter."""
        reach = 1 + 2 * weight.sum(-1)
        heard = lambda parts: jnp.einsum("ns,ns...->n...", weight, parts)
        pull = lambda x, u, xs, us: u + heard(xs + us) - x * like(reach, x)
        terms = state.mixed, state.own, *received
        return jax.tree.map(lambda x, *rest: x + self.eps * pull(x, *rest), *terms)

    def _m_step(self, theta: Mixture, x: OriginMoments, data: NodeRows) -> Mixture:
        """Parameters from the filter's state; a component without mass keeps its own."""
        rows = jnp.where(data.total_weight > 0, data.total_weight, 1.0)
        mass = jnp.maximum(x.mass, 0.0)
        mu = theta.means
        cross = x.first[..., :, None] * mu[..., None, :]
        second = x.second - cross - jnp.swapaxes(cross, -1, -2)
        second = second + x.mass[..., None, None] * mu[..., :, None] * mu[..., None, :]
        about_mean = (mass, x.first - x.mass[..., None] * mu, second)
        s = Statistics(jnp.zeros_like(rows), *(part * like(rows, part) for part in about_mean))
        new = self.m_step(theta, s)
        covariances = symmetric(lower_triangle(new.covariances))
        covariances = project_covariances(covariances, SMALLEST_VARIANCE, LARGEST_VARIANCE)
        return Mixture(weights_of(s.mass, self.prior), new.means, covariances)

    def _matched(self, state: FilterState, received: tuple) -> tuple:
        """Neighbours' moments in the own numbering."""
        order = jax.vmap(jax.vmap(_matching, (None, 0)))(state.mixed, received[0])
        reorder = lambda part: jnp.take_along_axis(part, like(order, part), axis=2)
        return jax.tree.map(reorder, received)


def _e_step(theta: Mixture, data: NodeRows) -> tuple[OriginMoments, PerNode]:
    """OriginMoments of every node's own rows, and its loss."""
    s = statistics(theta, data.rows, data.row_weights)
    mu = theta.means
    cross = s.first[..., :, None] * mu[..., None, :]
    square = s.mass[..., None, None] * mu[..., :, None] * mu[..., None, :]
    second = s.second + cross + jnp.swapaxes(cross, -1, -2) + square
    return OriginMoments(s.mass, s.first + s.mass[..., None] * mu, second), -s.log_likelihood


def _matching(own: OriginMoments, other: OriginMoments) -> Array:
    """The neighbour's component for each of ours: least total distance of means."""
    mean = lambda x: x.first / jnp.maximum(x.mass, EMPTY)[:, None]
    squares = jnp.square(mean(own)[:, None, :] - mean(other)[None, :, :]).sum(-1)
    return best_matching(jnp.sqrt(squares))
