"""What kind of round follows which: the same for all nodes, known from the round's number."""

from __future__ import annotations

from enum import IntEnum

import jax
import jax.numpy as jnp


class Kind(IntEnum):
    """What a round's letters carry, and what is done with them."""

    GATE = 0
    """Local mixtures; nodes decide whom they listen to."""
    REFIT = 1
    """The bits of the gate; nodes fit their rows and the summaries of those they trust."""
    ANSWER = 2
    """Refitted mixtures; nodes work out their own rows' statistics under each of them."""
    EVIDENCE = 3
    """These statistics; nodes stop listening where they contradict their own."""
    AGREE = 4
    """Mixtures and tags; components take the order of the best informed trusted node."""
    POOL = 5
    """Pooled statistics; flows along trusted edges make them equal."""


OPENING = (Kind.GATE, Kind.REFIT, Kind.ANSWER, Kind.EVIDENCE, Kind.REFIT)
"""The first rounds: who may belong, who does not, and a fit with those who do."""


def kind_of(t: jax.Array, agree_rounds: int) -> jax.Array:
    """Kind of round `t` (counted from 0): the opening, then agreement, then pooling to the end."""
    opening = jnp.asarray([int(kind) for kind in OPENING])
    later = jnp.where(t < len(OPENING) + agree_rounds, int(Kind.AGREE), int(Kind.POOL))
    return jnp.where(t < len(OPENING), opening[jnp.minimum(t, len(OPENING) - 1)], later)
