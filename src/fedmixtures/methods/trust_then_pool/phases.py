"""The kinds of rounds: messages in, the new state out. Each phase's own file has its equations."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from fedmixtures._types import NodeKeys
from fedmixtures.methods.base import NodeRows, counts
from fedmixtures.methods.trust_then_pool import agree, evidence, local, pool, refit, trust
from fedmixtures.methods.trust_then_pool.messages import Received, mixtures_in
from fedmixtures.methods.trust_then_pool.moments import like, maximised
from fedmixtures.methods.trust_then_pool.schedule import Kind
from fedmixtures.methods.trust_then_pool.settings import Settings
from fedmixtures.methods.trust_then_pool.state import State


def gate_round(
    method: Settings, state: State, received: Received, data: NodeRows, keys: NodeKeys
) -> State:
    """Local mixtures came: whom to listen to."""
    del keys
    fits = state.fits
    own = trust.OwnRows(
        data.rows, counts(data), fits.fold, nodes_first(fits.fold_models), fits.alone
    )
    theirs, fine = mixtures_in(received, state, 1e-3 * method.ridge)
    rows = received.scalars.rows
    tests = trust.gate(theirs, rows, fine, own, method.caution, method.fit)
    gain, error = tests[..., 0::2], tests[..., 1::2]
    listens = fine & (gain + method.caution * error > 0).any(-1)
    return eqx.tree_at(
        lambda s: (s.slots.summary, s.slots.rows, s.slots.listens, s.slots.tests),
        state,
        (theirs, rows, listens, tests),
    )


def refit_round(
    method: Settings, state: State, received: Received, data: NodeRows, keys: NodeKeys
) -> State:
    """Bits came: fit with those who are trusted, and begin a tag of one's own."""
    points = _pool_points(state, received, data)
    present = local.affordable(state.fits.wanted, points[1])
    candidates = [state.theta, state.fits.local]
    theta = refit.joint_refit(keys, candidates, present, points, method.fit)
    held = refit.held_out_in_pool(theta, points, state.fits.fold, method.n_folds, method.fit)
    trusted_rows = jnp.where(received.trusted, state.slots.rows, 0.0).sum(-1)
    size = (theta.weights > 0).sum(-1).astype(trusted_rows.dtype)
    tag = jnp.stack([size, data.total_weight, trusted_rows, state.order], axis=-1)
    return eqx.tree_at(
        lambda s: (s.theta, s.fits.anchor, s.fits.held, s.tag), state, (theta, theta, held, tag)
    )


def answer_round(
    method: Settings, state: State, received: Received, data: NodeRows, keys: NodeKeys
) -> State:
    """Refitted mixtures came: own statistics under each."""
    del keys
    theirs, _ = mixtures_in(received, state, 1e-3 * method.ridge)
    found = evidence.answers(theirs, data.rows, counts(data))
    return eqx.tree_at(lambda s: s.slots.answer, state, found)


def evidence_round(
    method: Settings, state: State, received: Received, data: NodeRows, keys: NodeKeys
) -> State:
    """Answers came: stop listening where they contradict."""
    del keys, data
    p = evidence.contradictions(state.own, received.letter, state.theta, received.trusted)
    listens = state.slots.listens & (p >= method.level)
    return eqx.tree_at(lambda s: (s.slots.listens, s.slots.p_value), state, (listens, p))


def agree_round(
    method: Settings, state: State, received: Received, data: NodeRows, keys: NodeKeys
) -> State:
    """Mixtures and tags came: follow the largest."""
    del keys
    theirs, fine = mixtures_in(received, state, 1e-3 * method.ridge)
    on_offer = received.trusted & fine
    slot = agree.largest(received.scalars.tag, on_offer)
    nodes = jnp.arange(len(slot))
    theta, tag = agree.agree(
        state.theta,
        state.tag,
        theirs.at((nodes, slot)),
        received.scalars.tag[nodes, slot],
        jnp.any(on_offer, -1),
        _pool_points(state, received, data),
        state.fits.held,
        method.prior_odds,
        method.fit,
    )
    return eqx.tree_at(lambda s: (s.theta, s.tag), state, (theta, tag))


def pool_round(
    method: Settings, state: State, received: Received, data: NodeRows, keys: NodeKeys
) -> State:
    """Pooled statistics came: push the flows, then an M-step (the program takes the E-step)."""
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
    theta = maximised(state.theta, together, rows, method.ridge, method.prior)
    return eqx.tree_at(
        lambda s: (s.theta, s.slots.flow, s.slots.flow_before, s.slots.same_tag),
        state,
        (theta, flow, before, same),
    )


ROUNDS = {
    Kind.GATE: gate_round,
    Kind.REFIT: refit_round,
    Kind.ANSWER: answer_round,
    Kind.EVIDENCE: evidence_round,
    Kind.AGREE: agree_round,
    Kind.POOL: pool_round,
}


def _pool_points(state: State, received: Received, data: NodeRows) -> refit.Pool:
    kept = state.slots
    return refit.pool_of(data.rows, counts(data), kept.summary, kept.rows, received.trusted)


def nodes_first(models: Any) -> Any:
    """Swap the axes of folds and nodes."""
    return jax.tree.map(lambda part: jnp.swapaxes(part, 0, 1), models)
