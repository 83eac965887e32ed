"""Steps 3 and 6, everyone and group: exact EM of all members' rows together, by sums.

A member adds its statistics under the common mixture; the total gives the next one. What it would
have been without a fold of a node's own rows the node works out at home.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from itertools import chain
from typing import Any

import equinox as eqx
import jax
import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.kernels.arrays import fused, replaced, with_either, worth_selecting, xp
from fedmixtures.methods.conversation import Groups, Request, Sum
from fedmixtures.methods.trust_then_pool.batches import ALL
from fedmixtures.methods.trust_then_pool.fits import LEAST, Base, Fit, best_of
from fedmixtures.methods.trust_then_pool.nodes import (
    Nodes,
    all_and_each,
    all_fits,
    at,
    by_fit,
    chosen,
    repeated,
)
from fedmixtures.methods.trust_then_pool.own import Heard, Level
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, possible

LEADERS = 3
"""Members whose neighbourhoods give a start."""
TRIES = 3
"""k-means++ starts that a leader compares at home."""
START_STEPS = 20
LESS = 0.5
"""Rows that a total may have less than the node itself, by rounding."""
MOST = 1e30
"""No sum over rows in common units is larger."""
FEW = 100.0
"""Sums of more rows have a covariance for sure."""


class Pooled(eqx.Module):
    """A pooled mixture of every node, and what its group has beside the node's own rows."""

    theta: Mixture
    rest: Statistics
    nu: Any
    """(nodes,) strength of the prior."""


def pooled_level(
    nodes: Nodes,
    own: Level,
    heard: Heard,
    groups: Groups,
    live: Array,
    strengths: np.ndarray,
    steps: tuple[int, int, int],
    salt: int,
) -> Generator[Request, Any, tuple[Level, Pooled, Pooled]]:
    """The level of every node's group, with the prior's strength that foretells its rows best.

    Returned with what stands behind it, and the same at the first (full) strength. All strengths
    go side by side until the choice; of the full one, if it is not chosen, clusters alone are read.
    A node that is alone keeps its own level.
    """
    first, each, then = steps
    starts, known = yield from _starts(nodes, heard, own, groups, live, strengths[0], salt)
    alone, group = (groups.size == 1) | ~known, np.where(known, groups.label, nodes.lone)
    all_nodes, nu = np.arange(nodes.n), np.tile(strengths, (nodes.n, 1))

    def level_of(number: int, *found: Any) -> tuple[Level, Pooled]:
        """With one of several strengths."""
        fit, total, nu = at(found, (all_nodes, number))
        density, rest = nodes.in_parts(_without_own, fit.theta, fit.own, total, nu)
        level = Level(fit.theta, density, fit.theta).but(nodes, alone, own)
        return level, Pooled(level.theta, rest, nu.astype(density.dtype))

    best = yield from _best(nodes, starts, group, strengths[0], first)
    best = repeated(best, len(strengths))
    del starts
    fit, total = yield from _stepped(nodes, *best, nu, group, each)
    level, full = level_of(0, fit, total, nu)
    more = (level_of(i, fit, total, nu)[0].density for i in range(1, len(strengths)))
    told = nodes.likelihoods(chain([level.density], more), group)
    choice = first_greatest(usable((yield told), told.share))[:, None]
    fit, total, nu = at((fit, total, nu), (all_nodes[:, None], choice))
    fit, total = yield from _stepped(nodes, fit, total, nu, group, then)
    level, pooled = level_of(0, fit, total, nu)
    full = chosen(choice[:, 0] == 0, pooled, full)
    return replace(level, clusters=full.theta), pooled, full


def pooled_level_of_groups(
    nodes: Nodes, own: Level, heard: Heard, groups: Groups, live: Array, *more: Any
) -> Generator[Request, Any, Level]:
    """The same, worked out for nodes that are not alone: the others keep their own level.

    Where all are alone, one of them works, since every node makes the same requests.
    """
    who = worth_selecting(groups.size > 1)
    if len(who) == nodes.n:
        return (yield from pooled_level(nodes, own, heard, groups, live, *more))[0]
    who = who if len(who) else np.zeros(1, np.int64)
    part, (of_part, edges) = nodes.only(who), heard.only(who, nodes.n)
    given = part, own.only(part, who), of_part, Groups(*(of[who] for of in groups))
    steps, reply = pooled_level(*given, np.asarray(live)[edges], *more), None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration as end:
            return own.put(part, who, end.value[0])
        assert isinstance(request, Sum), "pooling asks for sums alone"
        reply = yield replace(request, who=who)


def _starts(
    nodes: Nodes, heard: Heard, own: Level, groups: Groups, live: Array, nu: float, salt: int
) -> Generator[Request, Any, tuple[Mixture, np.ndarray]]:
    """Starts (nodes, starts, ...), the same for all members: leaders offer, a sum hands round.

    A leader clusters the points of its own and its live neighbours' releases, and the last start is
    the first leader's release as it is, if it has all components: nothing but releases is in them.
    Returned with (nodes,) whether there is any: where nobody offers one, `own` stands in, and
    nothing is pooled.
    """
    leads = np.flatnonzero(groups.rank < LEADERS)
    place = np.full(nodes.n, -1)
    place[leads] = np.arange(len(leads))
    edge = np.flatnonzero(np.asarray(live) & (place[heard.receiver] >= 0))
    fit = np.concatenate([np.arange(len(leads)), place[heard.receiver[edge]]])
    source = np.concatenate([nodes.block.line[leads], heard.sender[edge]])
    order = np.argsort(fit, kind="stable")
    fit, source = fit[order], source[order]
    release = at(heard.theta, nodes.block.line)
    offers = jax.tree.map(xp.zeros_like, release)
    if len(leads):
        entries = nodes.table.of_points(fit, source, heard.rows[source], len(leads))
        keys = [nodes.keys(leads, salt, t) for t in range(TRIES)]
        # As many as anyone there has: a leader of few rows must not hold the others down, nor a
        # release that has lost some.
        present = with_either(nodes.present[leads], fit, heard.theta.weights[source] > 0)
        fits = [nodes.fresh(entries, nu, START_STEPS, key, present) for key in keys]
        best = best_of(fits).theta
        lost = with_either(np.zeros(len(leads), dtype=bool), fit, heard.lost[source])
        offers = jax.tree.map(
            lambda part, new: replaced(part, leads, new), offers, chosen(lost, _widened(best), best)
        )
    share = lambda theta, offers: chosen(offers, theta, jax.tree.map(xp.zeros_like, theta))
    offered = [share(offers, groups.rank == rank) for rank in range(LEADERS)]
    whole = (heard.rows > 0) & ~heard.lost
    offered.append(share(release, (groups.rank == 0) & whole[nodes.block.line]))
    total = yield Sum(_side_by_side(offered), groups.label, spread=0.0)
    starts, known = _filled(total, own.theta)
    return starts, np.asarray(known)


@fused
def _side_by_side(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: xp.stack(parts, axis=1), *trees)


@fused
def _filled(starts: Mixture, own: Mixture) -> tuple[Mixture, Any]:
    """Starts (nodes, starts, ...), the first in place of what is none; whether there is any."""
    there = _is_mixture(starts)  # a group may have fewer members than leaders, or a liar
    known = there.any(1)
    first = at(starts, (xp.arange(len(known)), there.argmax(1)))
    spare = chosen(known, first, own)
    fill = lambda part, other: xp.where(
        there.reshape(*there.shape, *(1,) * (part.ndim - 2)), part, other[:, None]
    )
    return jax.tree.map(fill, starts, spare), known


@fused
def _widened(theta: Mixture) -> Mixture:
    """The same places with equal weights, each as wide as the whole mixture."""
    weights, means, covariances = theta.parts
    off = means - xp.einsum("nk,nki->ni", weights, means)[:, None]
    spread = covariances + off[..., :, None] * off[..., None, :]
    whole = xp.einsum("nk,nkij->nij", weights, spread)[:, None]
    equal = (weights > 0) / (weights > 0).sum(-1, keepdims=True)
    return Mixture(equal.astype(weights.dtype), means, xp.repeat(whole, means.shape[1], axis=1))


def _is_mixture(theta: Mixture) -> Any:
    """Which of the mixtures (nodes, starts, ...) can be such."""
    numbers = [part.reshape(*theta.weights.shape[:2], -1) for part in theta.parts]
    finite = (abs(xp.concatenate(numbers, axis=-1)) < MOST).all(-1)
    variances = xp.diagonal(theta.covariances, axis1=-2, axis2=-1)
    positive = ((variances > 0).all(-1) | (theta.weights <= 0)).all(-1)
    some = (theta.weights >= 0).all(-1) & (theta.weights.sum(-1) > 0)
    return finite & positive & some


def _best(
    nodes: Nodes, starts: Mixture, group: np.ndarray, nu: float, n_steps: int
) -> Generator[Request, Any, tuple[Fit, Statistics]]:
    """A few steps from every start; each group goes on from its best."""
    strength = xp.full(starts.weights.shape[:2], nu)
    fit = nodes.in_parts(_sums, starts, strength)
    total = yield from _total(nodes, fit, group)
    fit, total = yield from _stepped(nodes, fit, total, strength, group, n_steps)
    judged = lambda part, _, theta: part.log_likelihoods(part.of_all_rows(theta))
    told = nodes.told(*nodes.in_parts(judged, fit.theta), group)
    score = fit.score((yield told), total.mass.sum(-1))
    return at((fit, total), (xp.arange(nodes.n), first_greatest(score)))


def _stepped(
    nodes: Nodes, fit: Fit, total: Statistics, nu: Array, group: np.ndarray, n_steps: int
) -> Generator[Request, Any, tuple[Fit, Statistics]]:
    """EM by sums, from fits (nodes, several, ...) whose totals are known."""
    for _ in range(n_steps):
        fit = nodes.in_parts(_next_sums, fit.theta, total, nu)
        total = yield from _total(nodes, fit, group)
    return fit, total


def _total(nodes: Nodes, fit: Fit, group: np.ndarray) -> Generator[Request, Any, Statistics]:
    """The total of the statistics of a group."""
    return (yield Sum(fit.own, group, fit.theta.covariances))


def _sums(part: Nodes, _: slice, theta: Mixture, nu: Array) -> Fit:
    """Own statistics under several mixtures (nodes, several, ...)."""
    node = xp.repeat(xp.arange(part.n), theta.weights.shape[1])
    entries = part.table.of_rows(node, xp.full(len(node), ALL))
    return by_fit(part.fitted(entries, all_fits(theta), nu.reshape(-1), 0), part.n)


def _next_sums(part: Nodes, who: slice, theta: Mixture, total: Statistics, nu: Array) -> Fit:
    """The same after an M-step."""
    new = _next(part, *all_fits((theta, total, nu)))
    return _sums(part, who, by_fit(new, part.n), nu)


def _next(nodes: Nodes, theta: Mixture, total: Statistics, nu: Any) -> Mixture:
    """The M-step of totals; a bad total, which a liar can make, keeps the last good mixture."""
    good, kept = _kept(total)
    return chosen(good, nodes.advanced(theta, kept, nu), theta)


@fused
def _kept(total: Statistics) -> tuple[Any, Statistics]:
    """Which totals are good, and harmless ones in place of the others."""
    good = sound(total)
    return good, chosen(good, total, jax.tree.map(xp.ones_like, total))


def sound(total: Statistics) -> Any:
    """Which totals can be sums over rows: finite, with masses and variances not below zero."""
    flat = xp.concatenate([part.reshape(len(total.mass), -1) for part in jax.tree.leaves(total)], 1)
    variances = xp.diagonal(total.second, axis1=-2, axis2=-1).reshape(len(flat), -1)
    finite = (abs(flat) < MOST).all(1)
    return finite & (total.mass >= 0).all(1) & (variances >= 0).all(1)


@fused
def usable(total: Array, own: Array) -> Any:
    """Totals by which something is chosen; a node that got a bad one goes by its own."""
    return xp.where(xp.isfinite(total).all(-1, keepdims=True), total, own)


@fused
def _others(total: Statistics, mine: Statistics) -> Statistics:
    """A total without the own part; nothing where that is not in it."""
    more = xp.where(total.mass > 0, total.mass - mine.mass, 0.0).sum(1)
    whole = sound(total) & (more >= -LESS)
    return jax.tree.map(lambda a, b: a - b, chosen(whole, total, mine), mine)


def _without_own(
    part: Nodes, _: slice, theta: Mixture, mine: Statistics, total: Statistics, nu: Array
) -> tuple[Array, Statistics]:
    """Out-of-fold densities, by the others' sums, and those: own folds are left out of both."""
    rest = possible(_others(total, mine), FEW, LEAST)
    base = Base.of(theta, rest)
    nu = xp.asarray(nu, theta.means.dtype)
    folds = all_and_each(part.beside(theta, base, nu, base.mass + 1.0, 1))[1]
    return part.out_of_fold(folds), rest
