"""Trust-then-Pool with one part taken out."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fedmixtures.methods.base import Inbox, Info, Keys, NodeRows
from fedmixtures.methods.trust_then_pool.program import TrustThenPool
from fedmixtures.methods.trust_then_pool.schedule import Kind, kind_of
from fedmixtures.methods.trust_then_pool.state import State
from fedmixtures.mixture.mixture import Mixture


class OpenGate(TrustThenPool):
    """Nodes listen to whoever sends a mixture."""

    def step(self, state: State, inbox: Inbox, data: NodeRows, keys: Keys) -> tuple[State, Info]:
        """After the gate all slots with a neighbour are listened to."""
        after, info = super().step(state, inbox, data, keys)
        gate = kind_of(state.round[0], self.agree_rounds) == Kind.GATE
        listens = jnp.where(gate, inbox.weight > 0, after.slots.listens)
        return eqx.tree_at(lambda s: s.slots.listens, after, listens), info


class SubstituteOnly(TrustThenPool):
    """The gate without its second test."""

    def step(self, state: State, inbox: Inbox, data: NodeRows, keys: Keys) -> tuple[State, Info]:
        """The harmless test is not looked at."""
        after, info = super().step(state, inbox, data, keys)
        tests = after.slots.tests
        passed = tests[..., 0] + self.caution * tests[..., 1] > 0
        gate = kind_of(state.round[0], self.agree_rounds) == Kind.GATE
        listens = after.slots.listens & jnp.where(gate, passed, True)
        return eqx.tree_at(lambda s: s.slots.listens, after, listens), info


class NoEvidence(TrustThenPool):
    """The evidence round cuts nobody off."""

    def step(self, state: State, inbox: Inbox, data: NodeRows, keys: Keys) -> tuple[State, Info]:
        """Who was listened to is listened to."""
        after, info = super().step(state, inbox, data, keys)
        evidence = kind_of(state.round[0], self.agree_rounds) == Kind.EVIDENCE
        listens = jnp.where(evidence, state.slots.listens, after.slots.listens)
        return eqx.tree_at(lambda s: s.slots.listens, after, listens), info


class NoTest(OpenGate, NoEvidence):
    """Everybody pools with every neighbour."""


class NoSafeguard(TrustThenPool):
    """What was pooled is kept, whatever the own rows say."""

    def kept(self, state: State, data: NodeRows) -> tuple[Mixture, Array]:
        """The pooled mixture."""
        return state.theta, jnp.zeros(len(data.rows), data.rows.dtype)


class PooledWeights(TrustThenPool):
    """Mixture weights of the group, for all its members."""

    def result(self, state: State, data: NodeRows) -> Mixture:
        """What the own rows leave standing."""
        return self.kept(state, data)[0]


class RefitOnly(TrustThenPool):
    """Nothing is pooled: the refit with trusted neighbours' summaries is the result."""

    def kept(self, state: State, data: NodeRows) -> tuple[Mixture, Array]:
        """The refit, unless the own rows prefer the local fit."""
        return super().kept(eqx.tree_at(lambda s: s.theta, state, state.fits.anchor), data)


PARTS: dict[str, tuple[type[TrustThenPool], dict[str, Any]]] = {
    "no test at all": (NoTest, {}),
    "no gate": (OpenGate, {}),
    "no harmless test": (SubstituteOnly, {}),
    "no evidence round": (NoEvidence, {}),
    "no safeguard": (NoSafeguard, {}),
    "no personal weights": (PooledWeights, {}),
    "no pooling": (RefitOnly, {}),
    "no prior": (TrustThenPool, {"prior": None}),
    "one start": (TrustThenPool, {"n_starts": 1}),
}
"""What is taken out, by name: the program without it, and options that take it out."""
