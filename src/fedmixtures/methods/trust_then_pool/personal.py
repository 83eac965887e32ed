"""Steps 4 and 7, personal and near: levels that a node works out at home from what it has.

A node that comes later has its own rows and what the network has found: own is fitted as at the
start, everyone is what it is, and personal is everyone's mixture moved to its rows. It listens to
nobody yet, so that near and group are own. No other node changes.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.kernels.arrays import chosen, counted, jit_on_gpu, lines_with, pick, repeated, xp
from fedmixtures.methods.base import Levels
from fedmixtures.methods.protocol import Sum
from fedmixtures.methods.trust_then_pool.fits import as_pseudo_data
from fedmixtures.methods.trust_then_pool.nodes import (
    Nodes,
    Units,
    nodes_first,
    nodes_last,
    to_add,
)
from fedmixtures.methods.trust_then_pool.own import Level, Received
from fedmixtures.methods.trust_then_pool.pool import Pooled, best_by
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture, distinct
from fedmixtures.mixture.moments import Statistics

PERSONAL_STEPS = 8
NEAR_STEPS = 3


@dataclass(frozen=True, eq=False)
class Adapted:
    """The personal level, and what a fit needs to go on from it."""

    level: Level
    folds: Mixture
    """(nodes, folds, ...) the level, fitted without each fold."""
    base: PseudoData
    pseudo: Array
    nu: Array


def personal_level(
    nodes: Nodes,
    own: Level,
    own_folds: Mixture,
    everyone: Pooled,
    full: Pooled,
    held_by: tuple[float, ...],
    group: np.ndarray,
) -> Generator[Sum, Any, Adapted]:
    """Step 4: everyone's mixture moved to own rows, each component held by rows of the others.

    From M(the others' sums), EM on own rows beside at most `held_by` rows of the others in each
    component; weights are drawn to the others' by one row. By how many is what predicts the rows
    of the whole network best. Where totals were false, so that nothing comes of it, it is `own`.
    """
    moved = [nodes.in_parts(partial(_moved, held_by=held), everyone) for held in held_by]
    densities = [density for _, density in moved]
    told = to_add(nodes.log_likelihoods(densities), group)
    best = best_by((yield told), told.share)
    theta, folds = pick(best, [mixtures for mixtures, _ in moved])
    density, held = _of_best(best, nodes.node_of, densities, held_by)
    del moved, densities
    clusters = nodes.in_parts(_clusters, full, held)
    others, base = nodes.in_parts(_start, everyone, held)
    lost = _lost(theta)
    level = Level(theta, density, clusters).where(nodes, lost, own)
    return Adapted(level, chosen(lost, own_folds, folds), base, others.weights, everyone.nu)


@jit_on_gpu
def _of_best(best: Array, node_of: Array, densities: list[Array], held_by: Any) -> tuple[Any, Any]:
    """Densities by row of the best, and by how many rows (nodes, 1) it is held."""
    return pick(best[node_of], densities), xp.asarray(held_by)[best][:, None]


@jit_on_gpu
def _lost(theta: Mixture) -> Any:
    return ~xp.isfinite(theta.weights).all(1)


def _moved(
    part: Nodes, who: slice, pooled: Pooled, held_by: float
) -> tuple[tuple[Mixture, Mixture], Any]:
    """Mixtures of all rows and of the folds (nodes, folds, ...); densities."""
    start, base = _start(part, who, pooled, held_by)
    models = part.fit_with_pseudodata(start, base, pooled.nu, start.weights, PERSONAL_STEPS)
    theta, folds = part.halves(models)
    return (theta, nodes_first(folds, part.n)), part.out_of_fold(folds)


def _clusters(part: Nodes, who: slice, full: Pooled, held_by: Array) -> Mixture:
    """Mixtures of all rows."""
    start, base = _start(part, who, full, held_by)
    return part.fit_with_pseudodata(
        start, base, full.nu, start.weights, PERSONAL_STEPS, folds=False
    )


def _start(part: Nodes, _: slice, pooled: Pooled, held_by: Any) -> tuple[Mixture, PseudoData]:
    """The mixture of the others, and those of their rows that hold it."""
    start = part.m_step(pooled.theta, pooled.rest, pooled.nu)
    return start, as_pseudo_data(pooled.theta, pooled.rest, held_by)


def near_level(
    nodes: Nodes,
    own: Level,
    own_folds: Mixture,
    received: Received,
    live: Array,
    blind: Array,
    nu: float,
) -> Level:
    """Step 7: own rows with the releases of those listened to.

    `live` (edges,) chooses them for the fit of all rows; `blind` (folds, edges) for each fold,
    without a look at the rows of that fold.
    """

    def fitted(part: Nodes, who: slice, theta: Mixture, folds: Mixture) -> tuple[Mixture, Array]:
        here = slice(*np.searchsorted(received.receiver, (who.start, who.stop)))
        chosen_by = lines_with(_one_after_another([live[here], *blind[:, here]]))
        edges = received.receiver[here] - who.start, received.sender[here]
        points = _points(chosen_by, *edges, received.rows, part.n)
        node, leave = part.all_and_folds()
        entries = part.table.with_points(node, leave, *points)
        start = _one_after_another([theta, nodes_last(folds)])
        found = part.fitted(entries, start, nu, NEAR_STEPS, tolerance=0.0, sums=False).theta
        alone = counted(points[0], len(node)) == 0
        theta, folds = part.halves(chosen(alone, start, found))
        return theta, part.out_of_fold(folds)

    theta, density = nodes.in_parts(fitted, own.theta, own_folds)
    return Level(theta, density, theta)


@jit_on_gpu
def _one_after_another(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: xp.concatenate(parts), *trees)


@jit_on_gpu
def _points(index: Array, receiver: Array, sender: Array, rows: Array, n: Any) -> tuple[Any, ...]:
    """Fit (ascending, since receivers are), source and weight of places in (fits, edges)."""
    fold, edge = xp.divmod(index, len(receiver))
    source = xp.asarray(sender)[edge]
    return fold * n + xp.asarray(receiver)[edge], source, xp.asarray(rows)[source]


class Known:
    """What a network has found: everyone's mixture, its rows, and how levels weigh there."""

    def __init__(self, levels: Levels, rows: np.ndarray, nu: np.ndarray, covariance_type: str):
        """`rows` and `nu` (nodes,): how many rows nodes have, and the strength of the prior."""
        share = rows / rows.sum()
        mixtures, shares = distinct(levels.theta.at(levels.names.index("everyone")), share)
        largest = int(first_greatest(shares))  # of the parts, where the network has several
        users = mixtures.at(slice(largest, largest + 1))
        self.rows, self.nu = rows.sum() * shares[largest], np.full(1, np.median(nu))
        self.weights = share @ levels.weights
        self.units = _units_of(users, covariance_type)
        self.everyone = self.units.of_users(users)

    def pooled(self, nodes: Nodes) -> tuple[Level, Pooled]:
        """Everyone's level at a node whose rows are not in it: no fold is left out of it."""
        theta = self.everyone
        mass = self.rows * theta.weights
        second = mass[..., None, None] * theta.covariances
        rest = Statistics(np.zeros(1), mass, np.zeros_like(theta.means), second)
        folds = nodes_last(repeated(theta, nodes.n_folds))
        level = Level(theta, nodes.out_of_fold(folds), theta)
        return level, Pooled(theta, rest, self.nu)


def by_oneself(steps: Generator[Sum, Any, Any]) -> Any:
    """The end of steps that ask for nothing but sums, of one node alone."""
    reply = None
    while True:
        try:
            reply = steps.send(reply).share
        except StopIteration as end:
            return end.value


def _units_of(theta: Mixture, covariance_type: str) -> Units:
    """Centre and scale of the rows that a mixture (1, ...) stands for."""
    weights, means, covariances = (part[0] for part in theta.parts)
    centre = cast(np.ndarray, weights @ means)  # of NumPy mixtures, as levels are
    g = theta.n_continuous
    variance = weights @ (means - centre) ** 2
    variance[:g] += weights @ np.diagonal(covariances, axis1=1, axis2=2)
    return Units.of(centre, np.sqrt(variance), g, covariance_type)
