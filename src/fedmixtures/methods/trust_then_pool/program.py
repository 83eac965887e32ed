"""Trust-then-Pool as a node program: what is sent in a round, and which phase receives it."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from fedmixtures import _checks
from fedmixtures._types import Array, NodeKeys, PerSlot
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import (
    Account,
    Inbox,
    Info,
    Keys,
    NodeProgram,
    NodeRows,
    Outgoing,
    counts,
    shown,
    squared_distance,
)
from fedmixtures.methods.trust_then_pool import local, pool
from fedmixtures.methods.trust_then_pool.account import Trust
from fedmixtures.methods.trust_then_pool.messages import Scalars, received_in
from fedmixtures.methods.trust_then_pool.moments import as_letter, moments
from fedmixtures.methods.trust_then_pool.personal import personal_weights, safeguarded
from fedmixtures.methods.trust_then_pool.phases import ROUNDS, nodes_first
from fedmixtures.methods.trust_then_pool.schedule import OPENING, Kind, kind_of
from fedmixtures.methods.trust_then_pool.scores import log_densities
from fedmixtures.methods.trust_then_pool.settings import FitSettings, Settings
from fedmixtures.methods.trust_then_pool.state import Alone, Fits, Neighbours, State
from fedmixtures.mixture.em import ShapePrior
from fedmixtures.mixture.mixture import Mixture

ORDER, FOLDS, FITS = 100_001, 100_002, 100_003
"""What the keys before the first round are for; rounds have small numbers."""


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
        Nats of evidence in its own rows that a node needs to refuse a group's mixture.
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
    agree_rounds: int = 7

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

    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> Alone:
        """Local fits and their out-of-fold densities; nothing is sent."""
        of = lambda purpose: jax.vmap(lambda key: jr.fold_in(key, purpose))(keys)
        rows, weights = data.rows, counts(data)
        present = theta.weights > 0
        fold = local.fold_of_rows(of(FOLDS), weights, self.n_folds)
        fitted, models = local.local_fits(
            of(FITS), theta, rows, weights, fold, self.n_folds, self._settings.fit
        )
        alone = local.out_of_fold(models, rows, fold)
        order = jax.vmap(lambda key: jr.uniform(key, (), rows.dtype))(of(ORDER))
        tag = jnp.stack([jnp.zeros_like(order)] * 3 + [order], axis=-1)
        fits = Fits(
            present, data.total_weight, fitted, fitted, fold, nodes_first(models), alone, alone
        )
        begun = jnp.zeros(len(rows), jnp.int32)
        return Alone(begun, fitted, fits, order, tag, moments(fitted, rows, weights))

    def meet(self, state: Alone, weight: PerSlot) -> State:
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
        return State(
            state.round, state.theta, state.fits, state.order, state.tag, state.own, neighbours
        )

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
        received = received_in(state, inbox)
        kind = kind_of(state.round[0], self.agree_rounds)
        settings = self._settings
        branches = [
            lambda *args, one_round=ROUNDS[kind]: one_round(settings, *args) for kind in Kind
        ]
        after = jax.lax.switch(kind, branches, state, received, data, keys.node)
        own = moments(after.theta, data.rows, counts(data))
        own = pool.refreshed(state.own, own, kind == Kind.POOL)
        kept = eqx.tree_at(lambda s: s.trusted, after.slots, received.trusted)
        after = eqx.tree_at(
            lambda s: (s.own, s.slots, s.round), after, (own, kept, state.round + 1)
        )
        loss = -(data.row_weights * log_densities(state.theta, data.rows)).sum(-1)
        return after, shown(loss, squared_distance(state.theta, after.theta))

    def result(self, state: State, data: NodeRows) -> Mixture:
        """What the own rows leave standing, with personal weights."""
        theta, _ = self.kept(state, data)
        return personal_weights(theta, data.rows, counts(data))

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

    def explain(self, account: Account, network: Network) -> Trust:
        """Who trusted whom, by which test."""
        ends = network.source, network.target
        return Trust.of(network.labels, ends, account.nodes, account.edges, self.caution)

    @property
    def descends(self) -> bool:
        """Pooling may cost a node likelihood on its own rows; only NaN is a failure."""
        return False

    @property
    def opening_rounds(self) -> int:
        """Mixtures rest while nodes find out whom to trust; a round of pooling must follow."""
        return len(OPENING) + self.agree_rounds + 1

    @property
    def _settings(self) -> Settings:
        fit = FitSettings(self.prior, self.ridge, self.n_starts)
        return Settings(fit, self.n_folds, self.caution, self.level, self.prior_odds)
