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
from typing import Any, ClassVar, Literal

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
from fedmixtures.methods.base import (
    Inbox,
    Info,
    Keys,
    Meeting,
    NodeProgram,
    NodeRows,
    Outgoing,
    Prepared,
    shown,
    squared_distance,
)
from fedmixtures.methods.compared.pooling import check_em, weights_of
from fedmixtures.mixture.em import EMPTY, ShapePrior, m_step
from fedmixtures.mixture.feasible import project_covariances
from fedmixtures.mixture.linear import lower_triangle, symmetric
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-6, 1e30
"""Bounds on eigenvalues: what a filter has mixed need not be a covariance."""
FILTERS = ("lowpass", "average", "tracking")


class Moments(eqx.Module):
    """Share, first and second moment of every component, per row and about the origin."""

    mass: Float[Array, "*nodes k"]
    first: Float[Array, "*nodes k d"]
    second: Float[Array, "*nodes k d d"]


class FilterState(eqx.Module):
    """State of a node."""

    theta: Mixture
    own: Moments
    """u: the E-step under `theta`."""
    mixed: Moments
    """x: the state of the filter."""
    loss: PerNode


class ConsensusEM(NodeProgram):
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
    filter
        ``"lowpass"`` is Gu's. ``"average"``: $x \leftarrow (1-g) W x + g u$, and ``"tracking"``:
        $x \leftarrow W x + u - u_{old}$, with Metropolis weights W. Tracking may make counts
        negative, which are then cut off, and can go badly wrong.
    gain
        The g of ``filter="average"``.
    reg_covar
        Added to the diagonal of every covariance.
    prior
        Shrink covariances to a common shape (rows counted as the node's own); None is plain
        maximum likelihood.
    """

    descends: ClassVar = False  # blending may cost a node likelihood; only NaN is a failure

    eps: float = 0.02
    init: Literal["local", "shared"] = "local"
    align: bool = False
    filter: Literal["lowpass", "average", "tracking"] = "lowpass"
    gain: float = 0.1
    reg_covar: float = 1e-6
    prior: ShapePrior | None = None

    def __check_init__(self):
        _checks.positive("eps", self.eps)
        _checks.positive("gain", self.gain)
        _checks.one_of("init", self.init, ("local", "shared"))
        _checks.one_of("filter", self.filter, FILTERS)
        check_em(self.reg_covar, self.prior)
        if self.gain > 1:
            raise ValueError(f"`gain` is {self.gain:g}. Give a number of at most 1.")
        if not isinstance(self.align, bool):
            raise ValueError(f"`align` is {self.align!r}. Give True or False.")

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """Components are mixed one by one, by a filter that must be stable."""
        _checks.same_components("ConsensusEM", n_components)
        reach = 1 + 2 * network.weighted_degree.max(initial=0.0)
        if self.filter == "lowpass" and self.eps * reach >= 1:
            raise ValueError(
                f"`eps` is {self.eps:g}, but a node has weighted degree {(reach - 1) / 2:g}: the "
                f"filter is stable below 1 / (1 + 2 degree) = {1 / reach:.3g}. Lower eps."
            )

    def prepare(self, theta: Mixture, meeting: Meeting) -> Prepared:
        """A shared start is one node's, told from neighbour to neighbour."""
        if self.init == "local":
            return Prepared(theta)
        first = int(meeting.order[0])
        same = jax.tree.map(lambda p: np.broadcast_to(p[first], p.shape), theta)
        numbers = sum(part[0].size for part in theta.parts)
        return Prepared(same, sent=meeting.degree * numbers)

    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> FilterState:
        """The filter begins at the first E-step."""
        del keys
        own, loss = _e_step(theta, data)
        return FilterState(theta, own, own, loss)

    def outgoing(self, state: FilterState, weight: PerSlot) -> Outgoing:
        """The filter's state; with it the E-step or, for Metropolis weights, the degree."""
        if self.filter == "lowpass":
            return Outgoing((state.mixed, state.own))
        return Outgoing((state.mixed, _degree(weight)))

    def step(
        self, state: FilterState, inbox: Inbox, data: NodeRows, keys: Keys
    ) -> tuple[FilterState, Info]:
        """One filter step, the M-step, and the E-step to be sent next."""
        del keys
        received = self._matched(state, inbox.broadcast) if self.align else inbox.broadcast
        mixed = self._filtered(state, received, inbox.weight)
        theta = self._m_step(state.theta, mixed, data)
        own, loss = _e_step(theta, data)
        if self.filter == "tracking":
            mixed = jax.tree.map(lambda x, new, old: x + new - old, mixed, own, state.own)
        after = FilterState(theta, own, mixed, loss)
        return after, shown(state.loss, squared_distance(state.theta, theta))

    def result(self, state: FilterState, data: NodeRows) -> Mixture:
        """The parameters of the last M-step."""
        del data
        return state.theta

    def remedy(self, weighted_degree: float) -> str:
        """Name the gain."""
        del weighted_degree
        return f"Lower eps (it is {self.eps:g}), or raise reg_covar (it is {self.reg_covar:g})."

    def _filtered(self, state: FilterState, received: tuple, weight: PerSlot) -> Moments:
        """The new state of the filter."""
        neighbours = received[0]
        if self.filter == "lowpass":
            reach = 1 + 2 * weight.sum(-1)
            pull = lambda x, u, xs, us: u + _over_slots(weight, xs + us) - x * _like(reach, x)
            terms = state.mixed, state.own, neighbours, received[1]
            return jax.tree.map(lambda x, *rest: x + self.eps * pull(x, *rest), *terms)
        share = _metropolis(weight, received[1])
        rest = 1 - share.sum(-1)
        mean = lambda x, xs: x * _like(rest, x) + _over_slots(share, xs)
        mixed = jax.tree.map(mean, state.mixed, neighbours)
        if self.filter == "tracking":
            return mixed
        return jax.tree.map(lambda x, u: (1 - self.gain) * x + self.gain * u, mixed, state.own)

    def _m_step(self, theta: Mixture, x: Moments, data: NodeRows) -> Mixture:
        """Parameters from the filter's state; a component without mass keeps its own."""
        rows = jnp.where(data.total_weight > 0, data.total_weight, 1.0)
        mass = jnp.maximum(x.mass, 0.0)
        mu = theta.means
        cross = x.first[..., :, None] * mu[..., None, :]
        second = x.second - cross - jnp.swapaxes(cross, -1, -2)
        second = second + x.mass[..., None, None] * mu[..., :, None] * mu[..., None, :]
        about_mean = (mass, x.first - x.mass[..., None] * mu, second)
        s = Statistics(jnp.zeros_like(rows), *(part * _like(rows, part) for part in about_mean))
        new = m_step(theta, s, self.reg_covar, self.prior)
        covariances = symmetric(lower_triangle(new.covariances))
        covariances = project_covariances(covariances, SMALLEST_VARIANCE, LARGEST_VARIANCE)
        return Mixture(weights_of(s.mass, self.prior), new.means, covariances)

    def _matched(self, state: FilterState, received: tuple) -> tuple:
        """Neighbours' moments in the own numbering."""
        order = jax.vmap(jax.vmap(_matching, (None, 0)))(state.mixed, received[0])

        def reorder(part: Any) -> Any:
            return jnp.take_along_axis(part, _like(order, part), axis=2)

        return tuple(
            jax.tree.map(reorder, part) if isinstance(part, Moments) else part for part in received
        )


def _e_step(theta: Mixture, data: NodeRows) -> tuple[Moments, PerNode]:
    """Moments of every node's own rows, and its loss."""
    s = statistics(theta, data.rows, data.row_weights)
    mu = theta.means
    cross = s.first[..., :, None] * mu[..., None, :]
    square = s.mass[..., None, None] * mu[..., :, None] * mu[..., None, :]
    second = s.second + cross + jnp.swapaxes(cross, -1, -2) + square
    return Moments(s.mass, s.first + s.mass[..., None] * mu, second), -s.log_likelihood


def _matching(own: Moments, other: Moments) -> Array:
    """The neighbour's component for each of ours: least total distance of means."""
    mean = lambda x: x.first / jnp.maximum(x.mass, EMPTY)[:, None]
    squares = jnp.square(mean(own)[:, None, :] - mean(other)[None, :, :]).sum(-1)
    return best_matching(jnp.sqrt(squares))


def _metropolis(weight: PerSlot, degrees: PerSlot) -> PerSlot:
    """Shares of the neighbours in a mean that all nodes agree on in the end."""
    present = jnp.where(weight > 0, 1.0, 0.0)
    return present / (1 + jnp.maximum(_degree(weight)[:, None], degrees))


def _degree(weight: PerSlot) -> PerNode:
    return jnp.where(weight > 0, 1.0, 0.0).sum(-1).astype(weight.dtype)


def _over_slots(weight: PerSlot, parts: Array) -> Array:
    return jnp.einsum("ns,ns...->n...", weight, parts)


def _like(values: Array, part: Array) -> Array:
    return values.reshape(*values.shape, *(1,) * (part.ndim - values.ndim))
