r"""FedKMeans: synchronous federated k-means with matched centres. Hard clustering.

The paper says no more than "Hungarian-aligned center averaging". In a round every node takes one
Lloyd step on its own rows, sends its k centres, matches the centres it receives to its own by least
total Euclidean distance, and takes the mean. Where a hub does the averaging all nodes end alike.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._ties import first_least
from fedmixtures._types import Array, Means, NodeKeys, PerNode
from fedmixtures.kernels.cpu.matching import best_matching
from fedmixtures.methods.base import Method, Participants, Prepared
from fedmixtures.methods.programs import HubProgram, Inbox, Info, Keys, NodeProgram, NodeRows
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.mixture import Mixture

SMALLEST_VARIANCE = 1e-6  # where every row is a centre


class FedKMeans(Method):
    """Federated k-means; its mixtures stand for the clusters and are not to be scored.

    A node's result has equal weights and one spherical variance (the mean squared distance to the
    nearest centre), the mixture under which the most probable component is the nearest centre.
    `fit` in the history is that mean squared distance.

    Parameters
    ----------
    server
        False: the mean is over a node and its neighbours, with the edge weights (own weight 1).
        True: a hub takes the mean over all nodes, weighted by their rows.
    warm_start
        Whether the next Lloyd step begins at the averaged centres. False, with ``server=True``, is
        the reference behaviour of the authors' earlier code: every round averages (without weights)
        the centres of fresh local k-means, so that rounds do not accumulate; here the local k-means
        of the start stands for all of them.
    """

    has_likelihood: ClassVar[bool] = False
    needs_equal_components: ClassVar[bool] = True

    server: bool = False
    warm_start: bool = True

    def __check_init__(self):
        for name in ("server", "warm_start"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` is {getattr(self, name)!r}. Give True or False.")

    @property
    def kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """With neighbours, or with a hub."""
        return self.program().kind

    def program(self) -> Method:
        """With neighbours, or with a hub."""
        return HubKMeans(self.warm_start) if self.server else NeighbourKMeans(self.warm_start)


class Centres(eqx.Module):
    """State of a node."""

    averaged: Means  # the mean of the last round: the result
    own: Means  # after the Lloyd step on the own rows: what is sent


class NeighbourKMeans(NodeProgram):
    """The form of `FedKMeans` without a hub."""

    descends: ClassVar = False  # averages may lie far from a node's own rows

    warm_start: bool = True

    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> Centres:
        """The centres of local k-means, on which a Lloyd step changes nothing."""
        return Centres(theta.means, theta.means)

    def outgoing(self, state: Centres) -> Means:
        """The own centres."""
        return state.own

    def step(
        self, state: Centres, inbox: Inbox, data: NodeRows, keys: Keys
    ) -> tuple[Centres, Info]:
        """Mean of own and matched received centres, then a Lloyd step."""
        received = jax.vmap(jax.vmap(matched, (None, 0)))(state.own, inbox.broadcast)
        total = state.own + jnp.einsum("ns,nskd->nkd", inbox.weight, received)
        averaged = total / (1 + inbox.weight.sum(-1))[:, None, None]
        after = Centres(averaged, lloyd(averaged, data) if self.warm_start else state.own)
        return after, _info(state, after, data)

    def result(self, state: Centres, data: NodeRows) -> Mixture:
        """The averaged centres with one spherical variance."""
        return spherical(state.averaged, data)


class HubKMeans(HubProgram):
    """The form of `FedKMeans` with a hub."""

    descends: ClassVar = False

    warm_start: bool = True

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """The numbering is that of one node, whose centres the hub receives in round one anyway."""
        return Prepared(theta, hub_state=theta.means[participants.order[0]], sent=1)

    def start(self, theta: Mixture, shared: Any, data: NodeRows) -> Centres:
        """The centres of local k-means."""
        return Centres(theta.means, theta.means)

    def upload(self, state: Centres, data: NodeRows) -> tuple[Means, None]:
        """The own centres."""
        return state.own, None

    def hub(
        self, messages: Means, rows: PerNode, hub_state: Float[Array, "k d"]
    ) -> tuple[Any, Any]:
        """Mean of all nodes' centres, matched to those of the last round."""
        aligned = jax.vmap(matched, (None, 0))(hub_state, messages)
        share = rows if self.warm_start else jnp.where(rows > 0, 1.0, 0.0)
        mean = jnp.einsum("n,nkd->kd", share / share.sum(), aligned)
        return mean, mean if self.warm_start else hub_state

    def step(self, state: Centres, kept: None, reply: Any, data: NodeRows) -> tuple[Centres, Info]:
        """Take over the mean, then a Lloyd step."""
        averaged = jnp.broadcast_to(reply[None], state.averaged.shape)
        after = Centres(averaged, lloyd(averaged, data) if self.warm_start else state.own)
        return after, _info(state, after, data)

    def result(self, state: Centres, data: NodeRows) -> Mixture:
        """The averaged centres with one spherical variance."""
        return spherical(state.averaged, data)


def squared_distances(centres: Means, data: NodeRows) -> Float[Array, "nodes m k"]:
    """Of every row to every centre."""
    assert not isinstance(data.rows, IncompleteRows)  # refused before
    difference = data.rows[:, :, None, :] - centres[:, None, :, :]
    return jnp.square(difference).sum(-1)


def lloyd(centres: Means, data: NodeRows) -> Means:
    """Each centre moves to the mean of its nearest rows; one without rows stays."""
    nearest = first_least(squared_distances(centres, data))
    member = jax.nn.one_hot(nearest, centres.shape[1], dtype=centres.dtype)
    member = member * data.row_weights[..., None]
    mass = member.sum(1)[..., None]
    total = jnp.einsum("nmk,nmd->nkd", member, data.rows)
    return jnp.where(mass > 0, total / jnp.where(mass > 0, mass, 1.0), centres)


def matched(own: Float[Array, "k d"], received: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """The received centres in the own numbering: least total distance."""
    squares = jnp.square(own[:, None, :] - received[None, :, :]).sum(-1)
    return received[best_matching(jnp.sqrt(squares))]


def spherical(centres: Means, data: NodeRows) -> Mixture:
    """Equal weights and one spherical variance per node."""
    k, d = centres.shape[1:]
    variance = jnp.maximum(mean_squared_distance(centres, data) / d, SMALLEST_VARIANCE)
    eye = jnp.eye(d, dtype=centres.dtype)
    covariances = variance[:, None, None, None] * eye[None, None]
    return Mixture(
        jnp.full(centres.shape[:2], 1 / k, centres.dtype),
        centres,
        jnp.broadcast_to(covariances, (*centres.shape, d)),
    )


def mean_squared_distance(centres: Means, data: NodeRows) -> PerNode:
    """Of the rows to their nearest centre."""
    return (data.row_weights * squared_distances(centres, data).min(-1)).sum(-1)


def _info(before: Centres, after: Centres, data: NodeRows) -> Info:
    moved = jnp.square(after.averaged - before.averaged).sum((-1, -2))
    return Info.without_pull(mean_squared_distance(before.averaged, data), moved)
