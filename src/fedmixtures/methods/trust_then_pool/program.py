"""Trust-then-Pool as a node program: what is sent in a round, and which phase receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Bool, Float

from fedmixtures import _checks
from fedmixtures._types import Array, NodeKeys, PerSlot
from fedmixtures.methods.base import Inbox, Info, Keys, NodeProgram, NodeRows, Outgoing
from fedmixtures.methods.gtvmin import squared_distance
from fedmixtures.methods.pooling import counts, shown
from fedmixtures.methods.trust_then_pool import agree, evidence, local, pool, refit, trust
from fedmixtures.methods.trust_then_pool.moments import (
    Moments,
    as_letter,
    as_mixture,
    like,
    maximised,
    moments,
    sound,
)
from fedmixtures.methods.trust_then_pool.personal import personal_weights, safeguarded
from fedmixtures.methods.trust_then_pool.schedule import Kind, kind_of
from fedmixtures.methods.trust_then_pool.scores import log_densities
from fedmixtures.methods.trust_then_pool.settings import FitSettings
from fedmixtures.methods.trust_then_pool.state import Fits, Neighbours, State
from fedmixtures.mixture.em import ShapePrior
from fedmixtures.mixture.mixture import Mixture

ORDER, FOLDS, FITS = 100_001, 100_002, 100_003
"""What the keys before the first round are for; rounds have small numbers."""


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


class TrustThenPool(NodeProgram):
    """Nodes decide from their own held-out rows whom to pool with, and then pool exactly.

    One letter of the size of a mixture, three numbers, a tag and a bit per edge and round. No hub,
    no number of groups, no labels; rows stay where they are.

    Parameters
    ----------
    prior
        Shape prior of all fits; None is maximum likelihood.
    ridge
        Added to the diagonal of every covariance, in squared units of the features.
    n_starts, n_folds
        k-means++ starts of every fit; folds of the out-of-fold densities.
    caution
        The gate's z: standard errors a gain may lie below zero before a node stops its ears.
    level
        A neighbour whose statistics have a smaller p-value than this is cut off.
    prior_odds
        Nats of evidence in its own rows that a node needs to refuse a group's mixture, or to leave
        the group's mixture weights for its own.
    agree_rounds
        Rounds in which groups agree on an order of components: how many hops a group may span.
    """

    prior: ShapePrior | None = ShapePrior()
    ridge: float = 1e-3
    n_starts: int = 4
    n_folds: int = 5
    caution: float = 1.0
    level: float = 1e-3
    prior_odds: float = 5.0
    agree_rounds: int = 10

    def __check_init__(self):
        if self.prior is not None and not isinstance(self.prior, ShapePrior):
            raise ValueError(f"`prior` is {self.prior!r}. Give a ShapePrior or None.")
        _checks.positive("ridge", self.ridge)
        _checks.whole("n_starts", self.n_starts)
        _checks.whole("n_folds", self.n_folds, minimum=2)
        _checks.positive("caution", self.caution, allow_zero=True)
        _checks.positive("level", self.level)
        _checks.positive("prior_odds", self.prior_odds, allow_zero=True)
        _checks.whole("agree_rounds", self.agree_rounds)

    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> State:
        """Local fits and their out-of-fold densities; nothing is sent."""
        of = lambda purpose: jax.vmap(lambda key: jr.fold_in(key, purpose))(keys)
        rows, weights = data.rows, counts(data)
        present = theta.weights > 0
        fitted = local.local_fit(of(FITS), present, theta, rows, weights, self._fit)
        fold = local.fold_of_rows(of(FOLDS), weights, self.n_folds)
        models = local.fold_fits(of(FITS), present, rows, weights, fold, self.n_folds, self._fit)
        alone = local.out_of_fold(models, rows, fold)
        order = jax.vmap(lambda key: jr.uniform(key, (), rows.dtype))(of(ORDER))
        tag = jnp.stack([jnp.zeros_like(order)] * 3 + [order], axis=-1)
        fits = Fits(
            present, data.total_weight, fitted, fitted, fold, _nodes_first(models), alone, alone
        )
        begun = jnp.zeros(len(rows), jnp.int32)
        return State(begun, fitted, fits, order, tag, moments(fitted, rows, weights), None)

    def meet(self, state: State, weight: PerSlot) -> State:
        """Room for what is kept of every neighbour."""
        nodes, slots = weight.shape
        spread = lambda part: jnp.broadcast_to(part[:, None], (nodes, slots, *part.shape[1:]))
        blank = jax.tree.map(lambda part: jnp.zeros_like(spread(part)), state.own)
        nobody, zero = jnp.zeros(weight.shape, bool), jnp.zeros_like(weight)
        neighbours = Neighbours(
            jax.tree.map(spread, state.theta),
            zero,
            nobody,
            nobody,
            blank,
            blank,
            blank,
            jnp.zeros((nodes, slots, 4), weight.dtype),
            zero + 1,
            nobody,
        )
        return eqx.tree_at(lambda s: s.slots, state, neighbours, is_leaf=lambda x: x is None)

    def outgoing(self, state: State, weight: PerSlot) -> Outgoing:
        """The round's letter, and the bit of each edge."""
        del weight
        kept = state.slots
        kind = kind_of(state.round[0], self.agree_rounds)
        same = lambda part, old: jnp.broadcast_to(part[:, None], old.shape)
        mixture = jax.tree.map(same, as_letter(state.theta), kept.answer)
        sums = jax.tree.map(same, pool.pooled(state.own, kept.flow), kept.answer)
        letter = jax.tree.map(
            lambda theta, answer, s: jnp.where(
                kind == Kind.POOL, s, jnp.where(kind == Kind.EVIDENCE, answer, theta)
            ),
            mixture,
            kept.answer,
            sums,
        )
        bit = kept.listens.astype(state.order.dtype)
        degree = kept.trusted.sum(-1).astype(state.order.dtype)
        rows = state.fits.rows
        return Outgoing(Scalars(rows, degree, state.tag), (bit, letter))

    def step(self, state: State, inbox: Inbox, data: NodeRows, keys: Keys) -> tuple[State, Info]:
        """Whatever this round is for."""
        received = self._received(state, inbox)
        phases: list[Callable[..., State]] = [
            self._gate,
            self._refit,
            self._answer,
            self._evidence,
            self._agree,
            self._pool,
        ]
        kind = kind_of(state.round[0], self.agree_rounds)
        # bound methods carry traced numbers, which a branch must not be known by
        branches = [lambda *args, phase=phase: phase(*args) for phase in phases]
        after = jax.lax.switch(kind, branches, state, received, data, keys.node)
        kept = eqx.tree_at(lambda s: s.trusted, after.slots, received.trusted)
        after = eqx.tree_at(lambda s: (s.slots, s.round), after, (kept, state.round + 1))
        loss = -(data.row_weights * log_densities(state.theta, data.rows)).sum(-1)
        return after, shown(loss, squared_distance(state.theta, after.theta))

    def result(self, state: State, data: NodeRows) -> Mixture:
        """What the own rows leave standing, with personal weights."""
        theta, _ = self.kept(state, data)
        return personal_weights(theta, data.rows, counts(data), self.prior_odds)

    def kept(self, state: State, data: NodeRows) -> tuple[Mixture, Array]:
        """The mixture a node keeps, and whether it is the pooled (0), refitted (1) or local (2)."""
        fits = state.fits
        choices = [(state.theta, fits.held), (fits.anchor, fits.alone)]
        return safeguarded(choices, fits.local, data.rows, counts(data), self.prior_odds)

    def account(self, state: State, data: NodeRows) -> tuple[dict, dict]:
        """What each node kept; for each neighbour the tests, and whether it is trusted."""
        kept = state.slots
        of_slots = {
            "trusted": kept.trusted & kept.listens,
            "pooled": kept.same_tag & kept.trusted,
            "tests": kept.tests,
            "p_value": kept.p_value,
        }
        return {"kept": self.kept(state, data)[1]}, of_slots

    @property
    def descends(self) -> bool:
        """Pooling may cost a node likelihood on its own rows; only NaN is a failure."""
        return False

    @property
    def _fit(self) -> FitSettings:
        return FitSettings(self.prior, self.ridge, self.n_starts)

    def _received(self, state: State, inbox: Inbox) -> Received:
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

    def _mixtures(self, received: Received, state: State) -> tuple[Mixture, Bool[Array, "n s"]]:
        """Letters as mixtures; the own one in place of what is none."""
        theirs = as_mixture(received.letter)
        fine = received.heard & sound(theirs, 1e-3 * self.ridge)
        own = jax.tree.map(lambda part: part[:, None], state.theta)
        pick = lambda a, b: jnp.where(like(fine, a), a, b)
        return Mixture(*map(pick, theirs.parts, own.parts)), fine

    def _gate(self, state: State, received: Received, data: NodeRows, keys: NodeKeys) -> State:
        """Local mixtures came: whom to listen to."""
        del keys
        fits = state.fits
        own = trust.OwnRows(
            data.rows, counts(data), fits.fold, _nodes_first(fits.fold_models), fits.alone
        )
        theirs, fine = self._mixtures(received, state)
        tests = trust.gate(theirs, received.scalars.rows, own, self._fit)
        gain, error = tests[..., 0::2], tests[..., 1::2]
        listens = fine & (gain + self.caution * error > 0).any(-1)
        return eqx.tree_at(
            lambda s: (s.slots.summary, s.slots.rows, s.slots.listens, s.slots.tests),
            state,
            (theirs, received.scalars.rows, listens, tests),
        )

    def _refit(self, state: State, received: Received, data: NodeRows, keys: NodeKeys) -> State:
        """Bits came: fit with those who are trusted, and begin a tag of one's own."""
        points = self._pool_points(state, received, data)
        present = local.affordable(state.fits.wanted, points[1])
        candidates = [state.theta, state.fits.local]
        theta = refit.joint_refit(keys, candidates, present, points, self._fit)
        held = refit.held_out_in_pool(theta, points, state.fits.fold, self.n_folds, self._fit)
        trusted_rows = jnp.where(received.trusted, state.slots.rows, 0.0).sum(-1)
        size = (theta.weights > 0).sum(-1).astype(trusted_rows.dtype)
        tag = jnp.stack([size, data.total_weight, trusted_rows, state.order], axis=-1)
        own = moments(theta, data.rows, counts(data))
        return eqx.tree_at(
            lambda s: (s.theta, s.fits.anchor, s.fits.held, s.tag, s.own),
            state,
            (theta, theta, held, tag, own),
        )

    def _answer(self, state: State, received: Received, data: NodeRows, keys: NodeKeys) -> State:
        """Refitted mixtures came: own statistics under each."""
        del keys
        theirs, _ = self._mixtures(received, state)
        found = evidence.answers(theirs, data.rows, counts(data))
        return eqx.tree_at(lambda s: s.slots.answer, state, found)

    def _evidence(self, state: State, received: Received, data: NodeRows, keys: NodeKeys) -> State:
        """Answers came: stop listening where they contradict."""
        del keys
        own = moments(state.theta, data.rows, counts(data))
        p = evidence.contradictions(own, received.letter, state.theta, received.trusted)
        listens = state.slots.listens & (p >= self.level)
        return eqx.tree_at(lambda s: (s.slots.listens, s.slots.p_value), state, (listens, p))

    def _agree(self, state: State, received: Received, data: NodeRows, keys: NodeKeys) -> State:
        """Mixtures and tags came: follow the largest."""
        del keys
        theirs, fine = self._mixtures(received, state)
        on_offer = received.trusted & fine
        slot = agree.largest(received.scalars.tag, on_offer)
        nodes = jnp.arange(len(slot))
        theta, tag = agree.agree(
            state.theta,
            state.tag,
            theirs.at((nodes, slot)),
            received.scalars.tag[nodes, slot],
            on_offer.any(-1),
            self._pool_points(state, received, data),
            state.fits.held,
            self.prior_odds,
            self._fit,
        )
        own = moments(theta, data.rows, counts(data))
        return eqx.tree_at(lambda s: (s.theta, s.tag, s.own), state, (theta, tag, own))

    def _pool(self, state: State, received: Received, data: NodeRows, keys: NodeKeys) -> State:
        """Pooled statistics came: push the flows, then one damped EM step."""
        del keys
        kept = state.slots
        same = (received.scalars.tag == state.tag[:, None]).all(-1) & received.trusted
        sent = pool.pooled(state.own, kept.flow)
        degree = kept.trusted.sum(-1).astype(state.order.dtype)
        flow = pool.pushed(
            kept.flow,
            kept.flow_before,
            sent,
            received.letter,
            same,
            degree,
            received.scalars.degree,
        )
        before = jax.tree.map(lambda old: jnp.where(like(same, old), old, 0.0), kept.flow)
        rows = data.total_weight + jnp.where(received.trusted, kept.rows, 0.0).sum(-1)
        together = pool.pooled(state.own, flow)
        theta = maximised(state.theta, together, rows, self.ridge, self.prior)
        own = pool.refreshed(state.own, moments(theta, data.rows, counts(data)))
        return eqx.tree_at(
            lambda s: (s.theta, s.own, s.slots.flow, s.slots.flow_before, s.slots.same_tag),
            state,
            (theta, own, flow, before, same),
        )

    def _pool_points(self, state: State, received: Received, data: NodeRows) -> refit.Pool:
        kept = state.slots
        return refit.pool_of(data.rows, counts(data), kept.summary, kept.rows, received.trusted)


def _nodes_first(models: Any) -> Any:
    """Swap the axes of folds and nodes."""
    return jax.tree.map(lambda part: jnp.swapaxes(part, 0, 1), models)
