"""Steps 3 and 6, everyone and group: exact EM of all members' rows together, by sums.

A member adds its statistics under the common mixture; the total gives the next one. What it would
have been without a fold of a node's own rows the node works out at home.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.methods.base import Groups, Request, Sum
from fedmixtures.methods.trust_then_pool.fits import Base, Fit, best_of
from fedmixtures.methods.trust_then_pool.nodes import Nodes, at, chosen, pick, repeated
from fedmixtures.methods.trust_then_pool.own import Heard, Level
from fedmixtures.methods.trust_then_pool.tiles import ALL
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

LEADERS = 3
"""Members whose neighbourhoods give a start."""
TRIES = 3
"""k-means++ starts that a leader compares at home."""
START_STEPS = 20
MOST = 1e30
"""No sum over rows in common units is larger."""


class Pooled:
    """A pooled level, and what the others of the group have that the node has not."""

    def __init__(self, level: Level, theta: Mixture, rest: Statistics, nu: np.ndarray):
        self.level, self.theta, self.rest, self.nu = level, theta, rest, nu


def pooled_level(
    nodes: Nodes,
    own: Level,
    heard: Heard,
    groups: Groups,
    live: np.ndarray,
    strengths: np.ndarray,
    steps: tuple[int, int],
    salt: int,
) -> Generator[Request, Any, tuple[Pooled, Pooled]]:
    """The level of every node's group, with the prior's strength that foretells its rows best.

    Returned with it: the same at the first (full) strength. A node that is alone keeps its own.
    """
    first, then = steps
    alone, group = groups.size == 1, groups.label
    starts = yield from _starts(nodes, own, heard, groups, live, strengths[0], salt)
    theta = yield from _best(nodes, starts, group, strengths[0], first)
    n_nu = len(strengths)
    theta, nu = repeated(theta, n_nu), np.repeat(strengths, nodes.n)
    for _ in range(then):
        _, total = yield from _total(nodes, theta, group, n_nu)
        theta = _next(nodes, theta, total, nu)
    fit, total = yield from _total(nodes, theta, group, n_nu)
    mine = fit.own
    rest = jax.tree.map(lambda a, b: a - b, chosen(sound(total), total, mine), mine)
    found = []
    for i, strength in enumerate(strengths):
        here = slice(i * nodes.n, (i + 1) * nodes.n)
        found.append(_without_own(nodes, own, at(theta, here), at(rest, here), strength, alone))
    own_gain = np.stack([nodes.per_node(p.level.density * nodes.count) for p in found], axis=-1)
    gain = yield Sum(own_gain, group)
    best = first_greatest(usable(gain, own_gain))
    return _picked(nodes, found, best), found[0]


def _starts(
    nodes: Nodes, own: Level, heard: Heard, groups: Groups, live: np.ndarray, nu: float, salt: int
) -> Generator[Request, Any, Mixture]:
    """Starts (starts, nodes, ...), the same for all members: leaders offer, a sum hands round.

    A leader clusters the points of its own and its live neighbours' releases: nothing that it has
    not been told. The last start is the first leader's release as it is.
    """
    leads = np.flatnonzero(groups.rank < LEADERS)
    place = np.full(nodes.n, -1)
    place[leads] = np.arange(len(leads))
    edge = np.flatnonzero(live & (place[heard.receiver] >= 0))
    fit = np.concatenate([np.arange(len(leads)), place[heard.receiver[edge]]])
    source = np.concatenate([nodes.block.line[leads], heard.sender[edge]])
    order = np.argsort(fit, kind="stable")
    fit, source = fit[order], source[order]
    offers = jax.tree.map(np.zeros_like, own.theta)
    if len(leads):
        entries = nodes.table.of_points(fit, source, heard.rows[source], len(leads))
        keys = [nodes.keys(leads, salt, t) for t in range(TRIES)]
        # As many as anyone there has: a leader of few rows must not hold the others down.
        present = np.zeros((len(leads), own.theta.n_components), dtype=bool)
        np.logical_or.at(present, fit, heard.theta.weights[source] > 0)
        fits = [nodes.fresh(entries, nu, START_STEPS, key, present) for key in keys]
        offers = _put(offers, leads, best_of(fits).theta)
    share = lambda theta, rank: chosen(
        groups.rank == rank, theta, jax.tree.map(np.zeros_like, theta)
    )
    offered = [*(share(offers, rank) for rank in range(LEADERS)), share(own.theta, 0)]
    stacked = jax.tree.map(lambda *parts: np.stack(parts, axis=1), *offered)
    total = yield Sum(stacked, groups.label)
    starts = jax.tree.map(lambda part: np.swapaxes(part, 0, 1), total)
    there = _is_mixture(starts)  # a group may have fewer members than leaders, or a liar
    spare = chosen(there[-1], at(starts, -1), own.theta)
    fill = lambda part, other: np.where(
        there.reshape(*there.shape, *(1,) * (part.ndim - 2)), part, other[None]
    )
    return jax.tree.map(fill, starts, spare)


def _is_mixture(theta: Mixture) -> np.ndarray:
    """Which of the stacked mixtures (starts, nodes, ...) can be such."""
    numbers = [part.reshape(*theta.weights.shape[:2], -1) for part in theta.parts]
    finite = (np.abs(np.concatenate(numbers, axis=-1)) < MOST).all(-1)
    variances = np.diagonal(theta.covariances, axis1=-2, axis2=-1)
    positive = ((variances > 0).all(-1) | (theta.weights <= 0)).all(-1)
    return finite & positive & (theta.weights >= 0).all(-1) & (theta.weights.sum(-1) > 0)


def _best(
    nodes: Nodes, starts: Mixture, group: np.ndarray, nu: float, n_steps: int
) -> Generator[Request, Any, Mixture]:
    """A few steps from every start; each group goes on from its best."""
    n_starts = len(starts.weights)
    theta = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), starts)
    for _ in range(n_steps):
        _, total = yield from _total(nodes, theta, group, n_starts)
        theta = _next(nodes, theta, total, nu)
    fit, total = yield from _total(nodes, theta, group, n_starts, nu)
    score = fit.score(total.log_likelihood, total.mass.sum(-1)).reshape(n_starts, -1)
    best = first_greatest(score, axis=0)
    return at(theta, best * nodes.n + np.arange(nodes.n))


def _total(
    nodes: Nodes, theta: Mixture, group: np.ndarray, times: int, nu: float = 1.0
) -> Generator[Request, Any, tuple[Fit, Statistics]]:
    """Own statistics under several mixtures per node (times x nodes), and their groups' totals."""
    node = np.tile(np.arange(nodes.n), times)
    entries = nodes.table.of_rows(node, np.full(len(node), ALL))
    fit = nodes.fitted(entries, theta, nu, 0)
    by_node = jax.tree.map(
        lambda part: np.swapaxes(part.reshape(times, nodes.n, *part.shape[1:]), 0, 1), fit.own
    )
    total = yield Sum(by_node, group)
    flat = lambda part: np.swapaxes(part, 0, 1).reshape(-1, *part.shape[2:])
    return fit, jax.tree.map(flat, total)


def _next(nodes: Nodes, theta: Mixture, total: Statistics, nu: Any) -> Mixture:
    """The M-step of totals; a bad total, which a liar can make, keeps the last good mixture."""
    good = sound(total)
    kept = chosen(good, total, jax.tree.map(np.ones_like, total))
    return chosen(good, nodes.advanced(theta, kept, nu), theta)


def sound(total: Statistics) -> np.ndarray:
    """Which totals can be sums over rows: finite, with masses and variances not below zero."""
    flat = np.concatenate([part.reshape(len(total.mass), -1) for part in jax.tree.leaves(total)], 1)
    variances = np.diagonal(total.second, axis1=-2, axis2=-1).reshape(len(flat), -1)
    finite = (np.abs(flat) < MOST).all(1)
    return finite & (total.mass >= 0).all(1) & (variances >= 0).all(1)


def usable(total: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Totals by which something is chosen; a node that got a bad one goes by its own."""
    return np.where(np.isfinite(total).all(-1, keepdims=True), total, own)


def _without_own(
    nodes: Nodes, own: Level, theta: Mixture, rest: Statistics, nu: float, alone: np.ndarray
) -> Pooled:
    """The level with out-of-fold densities: the others' sums stay, the own folds are left out."""
    base = Base.of(theta, rest)
    strength = np.full(nodes.n, nu, theta.means.dtype)
    models = nodes.beside(theta, base, strength, base.mass + 1.0, 1)
    theta, folds = chosen(alone, own.theta, theta), nodes.halves(models)[1]
    folds = chosen(np.tile(alone, nodes.n_folds), own.folds, folds)
    return Pooled(Level(theta, folds, nodes.out_of_fold(folds), theta), theta, rest, strength)


def _picked(nodes: Nodes, found: list[Pooled], best: np.ndarray) -> Pooled:
    """Node by node the pooled level at the strength `best`; clusters at the first."""
    theta, rest, nu = pick(best, [(p.theta, p.rest, p.nu) for p in found])
    folds = pick(best, [p.level.folds for p in found])
    density = pick(best[nodes.node_of], [p.level.density for p in found])
    return Pooled(Level(theta, folds, density, found[0].theta), theta, rest, nu)


def _put(tree: Any, index: np.ndarray, new: Any) -> Any:
    def put(part, lines):
        part = part.copy()
        part[index] = lines
        return part

    return jax.tree.map(put, tree, new)
