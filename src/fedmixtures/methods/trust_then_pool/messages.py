"""What travels along an edge, and what is made of it on arrival."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedmixtures._types import Array
from fedmixtures.methods.base import Inbox
from fedmixtures.methods.trust_then_pool.moments import (
    Moments,
    as_letter,
    as_mixture,
    like,
    sound,
)
from fedmixtures.methods.trust_then_pool.state import State
from fedmixtures.mixture.mixture import Mixture


class Scalars(eqx.Module):
    """What every neighbour is told: a few numbers beside the letter."""

    rows: Float[Array, "*nodes"]
    degree: Float[Array, "*nodes"]
    tag: Float[Array, "*nodes t"]


class Received(eqx.Module):
    """A round's messages, what is not finite taken out."""

    scalars: Scalars
    letter: Moments
    heard: Bool[Array, "nodes s"]
    trusted: Bool[Array, "nodes s"]
    """Both bits, in the two messages of this round, say so."""


def received_in(state: State, inbox: Inbox) -> Received:
    """What came, with own numbers in place of any that are not finite."""
    bit, letter = inbox.per_slot
    scalars: Scalars = inbox.broadcast
    heard = (inbox.weight > 0) & jnp.isfinite(bit) & (scalars.rows > 0)
    for part in jax.tree.leaves((scalars, letter)):
        heard = heard & jnp.isfinite(part).reshape(*heard.shape, -1).all(-1)
    mine = as_letter(state.theta)
    clean = lambda got, own: jnp.where(like(heard, got), got, own)
    letter = jax.tree.map(lambda got, own: clean(got, own[:, None]), letter, mine)
    scalars = jax.tree.map(lambda got: clean(got, jnp.ones_like(got)), scalars)
    return Received(scalars, letter, heard, heard & state.slots.listens & (bit > 0.5))


def mixtures_in(
    received: Received, state: State, least: float | Array
) -> tuple[Mixture, Bool[Array, "n s"]]:
    """Letters as mixtures; the own one in place of what is none."""
    theirs = as_mixture(received.letter)
    fine = received.heard & sound(theirs, least)
    own = jax.tree.map(lambda part: part[:, None], state.theta)
    pick = lambda a, b: jnp.where(like(fine, a), a, b)
    return Mixture(*map(pick, theirs.parts, own.parts)), fine
