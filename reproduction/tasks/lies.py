"""Nodes that lie to the others. What they hold themselves is as it would be if they did not."""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from fedmixtures.methods.base import Outgoing
from fedmixtures.methods.trust_then_pool.messages import Scalars
from fedmixtures.methods.trust_then_pool.moments import Moments, like
from fedmixtures.methods.trust_then_pool.program import TrustThenPool
from fedmixtures.methods.trust_then_pool.schedule import Kind, kind_of
from fedmixtures.methods.trust_then_pool.state import State
from reproduction.tasks.situation import LIAR_ROWS

LIES = ("random", "shifted", "late", "nan")
SPREAD = 5.0
"""Standard deviation of the means of a random mixture: that of the data's own."""


class Lying(TrustThenPool):
    """The program of an honest node, and of liars that know it (told apart by their rows).

    All liars listen to everybody and, once nodes pool, send one and the same statistics in every
    round: in the flows this acts as infinite mass.

    Parameters
    ----------
    lie
        ``"random"``: every letter holds one random mixture. ``"shifted"``: the liar's rows are
        shifted by one standard deviation (by the experiment), all its letters tell of these.
        ``"late"``: honest until nodes pool, then the statistics of its rows shifted by one.
        ``"nan"``: honest until nodes pool, then not a number.
    """

    lie: str = eqx.field(static=True, default="shifted")

    def outgoing(self, state: State, weight: Float[Array, "nodes s"]) -> Outgoing:
        """As told by an honest node, or by a liar."""
        said = super().outgoing(state, weight)
        bit, letter = said.per_slot
        kind = kind_of(state.round[0], self.agree_rounds)
        lies = state.fits.rows == LIAR_ROWS
        told = {
            "random": lambda: _random(state),
            "shifted": lambda: state.own,
            "late": lambda: shifted(state.own, _directions(state)),
            "nan": lambda: jax.tree.map(lambda part: part + jnp.nan, state.own),
        }[self.lie]()
        false = lies if self.lie == "random" else lies & (kind == Kind.POOL)
        if self.lie == "random":
            told = _as_round_wants(told, state, kind)
        letter = jax.tree.map(
            lambda true, lie: jnp.where(like(false, true), lie[:, None], true), letter, told
        )
        bit = jnp.where(lies[:, None], jnp.ones_like(bit), bit)
        scalars: Scalars = said.broadcast
        return Outgoing(scalars, (bit, letter))


@cache
def lying(program: type[TrustThenPool]) -> type[Lying]:
    """The same, for a program that is Trust-then-Pool with a part taken out."""
    return Lying if program is TrustThenPool else type(program.__name__, (Lying, program), {})


def shifted(s: Moments, by: Array) -> Moments:
    """Statistics of the same rows, moved."""
    step = by[:, None, :]
    cross = s.first[..., :, None] * step[..., None, :]
    square = s.mass[..., None, None] * step[..., :, None] * step[..., None, :]
    second = s.second + cross + jnp.swapaxes(cross, -1, -2) + square
    return Moments(s.mass, s.first + s.mass[..., None] * step, second)


def _directions(state: State) -> Array:
    """A unit vector for each node, from the number drawn from its label."""
    draws = jax.vmap(lambda key: jr.normal(key, state.theta.means.shape[-1:]))(_keys(state))
    return (draws / jnp.linalg.norm(draws, axis=-1, keepdims=True)).astype(state.order.dtype)


def _random(state: State) -> Moments:
    """Per row: a random mixture as (weights, means, covariances), one for each node."""
    means = state.theta.means
    draws = jax.vmap(lambda key: jr.normal(key, means.shape[1:]))(_keys(state))
    present = state.theta.weights > 0
    weights = present / present.sum(-1, keepdims=True)
    eye = jnp.broadcast_to(jnp.eye(means.shape[-1]), state.theta.covariances.shape)
    parts = weights, SPREAD * draws, eye
    return Moments(*(part.astype(means.dtype) for part in parts))


def _as_round_wants(mixture: Moments, state: State, kind: Array) -> Moments:
    """A mixture as such, or the statistics of rows drawn from it."""
    mass = state.fits.rows[:, None] * mixture.mass
    mu = mixture.first
    outer = mu[..., :, None] * mu[..., None, :]
    sums = Moments(mass, mass[..., None] * mu, mass[..., None, None] * (mixture.second + outer))
    wanted = (kind == Kind.POOL) | (kind == Kind.EVIDENCE)
    return jax.tree.map(lambda s, theta: jnp.where(wanted, s, theta), sums, mixture)


def _keys(state: State) -> Array:
    numbers = (state.order * 2**31).astype(jnp.uint32)
    return jax.vmap(lambda number: jr.fold_in(jr.key(0), number))(numbers)
