"""Steps 3 and 6, everyone and group: exact EM of all members' rows together, by sums.

A member adds its statistics under the common mixture; the total gives the next one. What it would
have been without a fold of a node's own rows the node works out at home.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.fits.checked import are_mixtures, sound
from fedmixtures.fits.em import LEAST, SAME_FIT, Fit, Shrinkage, as_pseudo_data, best_of
from fedmixtures.fits.rows import apart, by_node, nodes_last, together
from fedmixtures.kernels.arrays import (
    at,
    jit_on_gpu,
    repeated,
    replaced,
    where,
    with_either,
    worth_selecting,
    xp,
)
from fedmixtures.methods.protocol import Groups, Request, Sum
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.nodes import Nodes, to_add
from fedmixtures.methods.trust_then_pool.own import Level, Received
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, project_psd


class Pooled(eqx.Module):
    """A pooled mixture of every node, and what its group has beside the node's own rows."""

    theta: Mixture
    rest: Statistics
    shrinkage: Shrinkage
    """(nodes,) what holds covariances."""


class Everyone(NamedTuple):
    """A pooled level, with what stands behind it."""

    level: Level
    pooled: Pooled
    """At the strength of the prior that predicts best."""
    full: Pooled
    """At the full strength."""


class Pooling(NamedTuple):
    """How a level is pooled."""

    strengths: np.ndarray
    """Of the prior, the full one first."""
    ridges: np.ndarray
    """What is added to covariances, the usual one first."""
    steps: tuple[int, int, int]
    """From every start, with every strength, with the one that is chosen."""
    salt: int
    """Of the draws."""


def pooled_level(
    nodes: Nodes, own: Level, received: Received, groups: Groups, live: Array, how: Pooling
) -> Generator[Request, Any, Everyone]:
    """The level of every node's group, with the prior's strength that predicts its rows best.

    All strengths go side by side until the choice; of the full one, if it is not chosen, clusters
    alone are read. A node that is alone keeps its own level.
    """
    first, each, then = how.steps
    starts, known = yield from _starts(nodes, received, own, groups, live, how)
    alone, group = (groups.size == 1) | ~known, np.where(known, groups.label, nodes.lone)
    best = _best(nodes, starts, group, how, first)
    del starts  # the steps drop what they have used, if no name holds it here
    shrinkage = _each(nodes, how.strengths, how.ridges[:1])
    fit, total = repeated((yield from best), len(how.strengths))
    going_on = _stepped(nodes, fit, total, shrinkage, group, each)
    del fit, total
    fit, total = yield from going_on

    def judged(
        part: Nodes, who: slice, fit: Fit, total: Statistics, shrinkage: Any, alone: Any
    ) -> Any:
        """Log-likelihoods of held-out rows, with each of `shrinkage`."""
        mine, several = own.out_of_fold[nodes.tiles(who)], shrinkage.nu.shape[1]
        found = [
            _without_own(part, who, *_number(i, (fit, total, shrinkage)))[0] for i in range(several)
        ]
        found = [by_node(alone, part.node_of, mine, density) for density in found]
        return part.log_likelihoods(found)

    mine = to_add(nodes.in_parts(judged, fit, total, shrinkage, alone), group)
    choice = best_by((yield mine), mine.share)
    full = _number(0, (fit, total, shrinkage))
    fit, total, shrinkage = _of_choice(choice, (fit, total, shrinkage))
    if len(how.ridges) > 1:  # an M-step of the same sums tells what another would bring
        several = repeated(_number(0, (fit, total)), len(how.ridges))
        each_ridge = _each(nodes, how.strengths[:1], how.ridges)._replace(
            nu=repeated(shrinkage.nu[:, 0], len(how.ridges))
        )
        likely, spread = nodes.in_parts(judged, *several, each_ridge, alone)
        first = likely.T[:1] + C.for_a_ridge * nodes.rows_of
        likely = replaced(likely.T, np.zeros(1, int), first).T
        mine = to_add((likely, spread), group)
        ridge = best_by((yield mine), mine.share)
        shrinkage = shrinkage._replace(reg_covar=_of_choice(ridge, each_ridge.reg_covar))
        full = (*full[:2], full[2]._replace(reg_covar=shrinkage.reg_covar[:, 0]))
    full = _behind(full, alone, own.fit)
    fit, total = yield from _stepped(nodes, fit, total, shrinkage, group, then)
    fit, total, shrinkage = _number(0, (fit, total, shrinkage))
    out_of_fold, rest = nodes.in_parts(_without_own, fit, total, shrinkage)
    level = Level(fit.theta, out_of_fold, fit.theta).where(nodes, alone, own)
    pooled = Pooled(level.fit, rest, shrinkage)
    full = _first_of(choice, pooled, full)
    return Everyone(replace(level, clusters=full.theta), pooled, full)


def pooled_level_of_groups(
    nodes: Nodes, own: Level, received: Received, groups: Groups, live: Array, how: Pooling
) -> Generator[Request, Any, Level]:
    """The pooled level, worked out for nodes that are not alone: the others keep their own level.

    Where all are alone, one of them works, since every node makes the same requests.
    """
    who = worth_selecting(groups.size > 1)
    if len(who) == nodes.n:
        return (yield from pooled_level(nodes, own, received, groups, live, how)).level
    who = who if len(who) else np.zeros(1, np.int64)
    part, (of_part, edges) = nodes.only(who), received.only(who, nodes.n)
    some, here = Groups(*(of[who] for of in groups)), np.asarray(live)[edges]
    steps, reply = pooled_level(part, own.only(part, who), of_part, some, here, how), None
    try:
        while True:  # pooling asks for sums alone
            reply = yield replace(steps.send(reply), who=who)
    except StopIteration as end:
        return own.put(part, who, end.value.level)


def _starts(
    nodes: Nodes, received: Received, own: Level, groups: Groups, live: Array, how: Pooling
) -> Generator[Request, Any, tuple[Mixture, np.ndarray]]:
    """Starts (nodes, starts, ...), the same for all members: leaders offer, a sum hands round.

    A leader clusters the points of its own and its live neighbours' releases, and the last start is
    the first leader's release as it is, if it has all components: nothing but releases is in them.
    Returned with (nodes,) whether there is any: where nobody offers one, `own` stands in, and
    nothing is pooled.
    """
    leads = np.flatnonzero(groups.rank < C.leaders)
    place = np.full(nodes.n, -1)
    place[leads] = np.arange(len(leads))
    edge = np.flatnonzero(np.asarray(live) & (place[received.receiver] >= 0))
    fit = np.concatenate([np.arange(len(leads)), place[received.receiver[edge]]])
    source = np.concatenate([nodes.block.line[leads], received.sender[edge]])
    order = np.argsort(fit, kind="stable")
    fit, source = fit[order], source[order]
    release = at(received.theta, nodes.block.line)
    best, lost = at(release, leads), np.zeros(len(leads), dtype=bool)
    if len(leads):
        points = nodes.table.of_points_alone
        entries = nodes.table.of_points(fit, source, received.rows[source], len(leads))
        keys = [nodes.keys(leads, how.salt, t) for t in range(C.tries)]
        present = _present(nodes.present[leads], fit, received.theta.weights, source)
        best = best_of(
            [
                nodes.fresh(entries, how.strengths[0], C.start_steps, key, present, points)
                for key in keys
            ]
        )
        np.logical_or.at(lost, fit, received.lost[source])
    whole = ((received.rows > 0) & ~received.lost)[nodes.block.line]
    offers = _offers(release, best, lost, leads, groups.rank, whole)
    starts, known = _filled((yield Sum(offers, groups.label, spread=0.0)), own.fit)
    return starts, np.asarray(known)


@jit_on_gpu
def _present(own: Array, fit: Array, weights: Array, source: Array) -> Any:
    """(leaders, k) components: as many as anyone has whose points a leader clusters.

    A leader of few rows must not hold the others down, nor a release that has lost some.
    """
    return with_either(own, fit, xp.asarray(weights)[source] > 0)


@jit_on_gpu
def _offers(
    release: Mixture, best: Mixture, lost: Array, leads: Array, rank: Array, whole: Array
) -> Mixture:
    """(nodes, starts, ...) what each node offers, or zeros."""
    nothing = jax.tree.map(xp.zeros_like, release)
    put = lambda part, new: replaced(part, leads, new)
    clustered = jax.tree.map(put, nothing, where(lost, _widened(best), best))
    offered = [where(rank == leader, clustered, nothing) for leader in range(C.leaders)]
    offered.append(where((rank == 0) & whole, release, nothing))
    return jax.tree.map(lambda *parts: xp.stack(parts, axis=1), *offered)


@jit_on_gpu
def _filled(starts: Mixture, own: Mixture) -> tuple[Mixture, Any]:
    """Starts (nodes, starts, ...), the first in place of what is none; whether there is any."""
    there = are_mixtures(starts)  # a group may have fewer members than leaders, or a liar
    known = there.any(1)
    first = at(starts, (xp.arange(len(known)), there.argmax(1)))
    spare = where(known, first, own)
    fill = lambda part, other: xp.where(
        there.reshape(*there.shape, *(1,) * (part.ndim - 2)), part, other[:, None]
    )
    return jax.tree.map(fill, starts, spare), known


@jit_on_gpu
def _widened(theta: Mixture) -> Mixture:
    """Mixtures at the same places with equal weights, each as wide as the whole mixture."""
    weights, means, covariances = theta.parts
    off = means - xp.einsum("nk,nki->ni", weights, means)[:, None]
    varying = off[..., : theta.n_continuous]
    spread = covariances + varying[..., :, None] * varying[..., None, :]
    whole = xp.einsum("nk,nkij->nij", weights, spread)[:, None]
    equal = (weights > 0) / (weights > 0).sum(-1, keepdims=True)
    return Mixture(equal.astype(weights.dtype), means, xp.repeat(whole, means.shape[1], axis=1))


def _best(
    nodes: Nodes, starts: Mixture, group: np.ndarray, how: Pooling, n_steps: int
) -> Generator[Request, Any, tuple[Fit, Statistics]]:
    """A few steps from every start; each group goes on from its best."""
    n_starts = starts.weights.shape[1]
    shrinkage = _each(nodes, how.strengths[:1], how.ridges[:1])
    shrinkage = Shrinkage(*(np.repeat(of, n_starts, axis=1) for of in shrinkage))
    begun = _begun(nodes, starts, shrinkage, group)
    del starts
    fit, total = yield from _stepped(nodes, *(yield from begun), shrinkage, group, n_steps)

    def judged(part: Nodes, _: slice, theta: Mixture) -> tuple[Any, Any]:
        density = part.densities(part.all_rows(n_starts), nodes_last(theta))
        return part.log_likelihoods(_by_start(density, n_starts))

    return _best_start(fit, total, (yield to_add(nodes.in_parts(judged, fit.theta), group)))


@partial(jit_on_gpu, static_argnums=1)
def _by_start(density: Array, n_starts: int) -> Any:
    """(starts, tiles, rows)."""
    return density.reshape(n_starts, -1, density.shape[-1])


@jit_on_gpu
def _best_start(fit: Fit, total: Statistics, log_likelihood: Array) -> tuple[Fit, Statistics]:
    """By the score of each, from totals (nodes, starts)."""
    rows = total.mass.sum(-1)
    best = first_greatest(fit.score(log_likelihood, rows), -1, rows.max(-1), SAME_FIT)
    return at((fit, total), (xp.arange(len(best)), best))


@jit_on_gpu
def _of_choice(choice: Array, tree: Any) -> Any:
    """(nodes, 1, ...) that of each node's choice, from (nodes, choices, ...)."""
    return at(tree, (xp.arange(len(choice))[:, None], choice[:, None]))


@partial(jit_on_gpu, static_argnums=0)
def _number(choice: int, tree: Any) -> Any:
    """(nodes, ...) that of one choice, from (nodes, choices, ...)."""
    return jax.tree.map(lambda part: xp.asarray(part)[:, choice], tree)


@jit_on_gpu
def _first_of(choice: Array, pooled: Pooled, first: Pooled) -> Pooled:
    """That of the first choice, whatever was chosen."""
    return where(choice == 0, pooled, first)


def _each(nodes: Nodes, strengths: np.ndarray, ridges: np.ndarray) -> Shrinkage:
    """(nodes, several) of either; the other has one."""
    several = max(len(strengths), len(ridges))
    wide = lambda each: np.broadcast_to(each.astype(nodes.dtype), (nodes.n, several)).copy()
    return Shrinkage(wide(strengths), wide(ridges))


def _begun(
    nodes: Nodes, theta: Mixture, shrinkage: Shrinkage, group: np.ndarray
) -> Generator[Request, Any, tuple[Fit, Statistics]]:
    """Statistics under mixtures (nodes, several, ...), and their totals."""
    fit = nodes.in_parts(_sums, theta, shrinkage)
    del theta
    return fit, (yield from _total(nodes, fit, group))


def _stepped(
    nodes: Nodes, fit: Fit, total: Statistics, shrinkage: Shrinkage, group: np.ndarray, n_steps: int
) -> Generator[Request, Any, tuple[Fit, Statistics]]:
    """EM by sums, from fits (nodes, several, ...) whose totals are known."""
    for _ in range(n_steps):
        theta = fit.theta
        del fit  # what is done with makes room for what comes
        fit = nodes.in_parts(_next_sums, theta, total, shrinkage)
        del theta, total
        total = yield from _total(nodes, fit, group)
    return fit, total


def _total(nodes: Nodes, fit: Fit, group: np.ndarray) -> Generator[Request, Any, Statistics]:
    """Of the statistics of all members of a group."""
    return (yield Sum(fit.own, group, fit.theta))


def _next_sums(
    part: Nodes, _: slice, theta: Mixture, total: Statistics, shrinkage: Shrinkage
) -> Fit:
    """Own statistics after an M-step."""
    several = theta.weights.shape[1]
    return part.sums(apart(_next(part, *together((theta, total, shrinkage))), several), shrinkage)


def _sums(part: Nodes, _: slice, theta: Mixture, shrinkage: Shrinkage) -> Fit:
    """Own statistics under several mixtures (nodes, several, ...)."""
    return part.sums(theta, shrinkage)


def _next(nodes: Nodes, theta: Mixture, total: Statistics, shrinkage: Shrinkage) -> Mixture:
    """The M-step of totals; a bad total, which a liar can make, keeps the last good mixture."""
    good, kept = _kept(total)
    return where(good, nodes.m_step(theta, kept, shrinkage), theta)


@jit_on_gpu
def _kept(total: Statistics) -> tuple[Any, Statistics]:
    """Which totals are good, and harmless ones in place of the others."""
    good = sound(total)
    return good, where(good, total, jax.tree.map(xp.ones_like, total))


@jit_on_gpu
def best_by(total: Array, own: Array) -> Any:
    """The choice with the greatest total; a node that got a bad one goes by its own."""
    good = xp.isfinite(total).all(-1, keepdims=True)
    return first_greatest(xp.where(good, total, own), within=C.same_total)


@jit_on_gpu
def _others(total: Statistics, mine: Statistics) -> Statistics:
    """A total without the own part; nothing where that is not in it."""
    more = xp.where(total.mass > 0, total.mass - mine.mass, 0.0).sum(1)
    whole = sound(total) & (more >= -C.less)
    return jax.tree.map(lambda a, b: a - b, where(whole, total, mine), mine)


@jit_on_gpu
def _beside(theta: Mixture, rest: Statistics) -> tuple[PseudoData, Any]:
    """The others' rows, and what they count for in weights."""
    others = as_pseudo_data(theta, rest)
    return others, others.mass + 1.0


def _without_own(
    part: Nodes, _: slice, fit: Fit, total: Statistics, shrinkage: Shrinkage
) -> tuple[Array, Statistics]:
    """Out-of-fold densities: the others' sums, which stay, and the own rows without each fold."""
    rest = project_psd(_others(total, fit.own), C.few, LEAST)
    others, extra_mass = _beside(fit.theta, rest)
    found = part.fit_with_pseudodata(fit.theta, others, shrinkage, extra_mass, 1)
    return part.out_of_fold(part.halves(found)[1]), rest


def _behind(pooled: tuple[Fit, Statistics, Shrinkage], alone: np.ndarray, own: Mixture) -> Pooled:
    """What stands behind a level; `own` where a node is alone."""
    fit, total, shrinkage = pooled
    rest = project_psd(_others(total, fit.own), C.few, LEAST)
    return Pooled(where(alone, own, fit.theta), rest, shrinkage)
