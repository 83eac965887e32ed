"""Steps 4 and 7, personal and near: levels that a node works out at home from what it has."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.fits.em import Shrinkage, as_pseudo_data
from fedmixtures.fits.rows import ALL_STEPS, nodes_first, nodes_last
from fedmixtures.kernels.arrays import counted, jit_on_gpu, lines_with, pick, where, xp
from fedmixtures.methods.protocol import Sum
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.nodes import Nodes, to_add
from fedmixtures.methods.trust_then_pool.own import Level, Received
from fedmixtures.methods.trust_then_pool.pool import Everyone, Pooled, best_by
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True, eq=False)
class Personal:
    """The personal level, and what a fit needs to go on from it."""

    level: Level
    others: PseudoData
    extra_mass: Array
    shrinkage: Shrinkage


def personal_level(
    nodes: Nodes, own: Level, everyone: Everyone, group: np.ndarray
) -> Generator[Sum, Any, Personal]:
    """Step 4: everyone's mixture moved to own rows, each component held by rows of the others.

    From M(the others' sums), EM on own rows with at most `held_by` rows of the others in each
    component; weights are drawn to the others' by one row. By how many is what predicts the rows
    of the whole network best. Where totals were false, so that nothing comes of it, it is `own`.
    """
    pooled, held_by = everyone.pooled, nodes.options.held_by
    moved = [nodes.in_parts(partial(_moved, held_by=held), pooled) for held in held_by]
    densities = [density for _, density in moved]
    mine = to_add(nodes.log_likelihoods(densities), group)
    best = best_by((yield mine), mine.share)
    fit, folds = pick(best, [mixtures for mixtures, _ in moved])
    out_of_fold, held = _of_best(best, nodes.node_of, densities, held_by)
    del moved, densities
    clusters = nodes.in_parts(_clusters, everyone.full, held)
    start, others = nodes.in_parts(_start, pooled, held)
    level = Level(fit, out_of_fold, clusters, folds).where(nodes, _lost(fit), own)
    return Personal(level, others, start.weights, pooled.shrinkage)


@jit_on_gpu
def _of_best(best: Array, node_of: Array, densities: list[Array], held_by: Any) -> tuple[Any, Any]:
    """Densities by row of the best, and by how many rows (nodes, 1) it is held."""
    return pick(best[node_of], densities), xp.asarray(held_by)[best][:, None]


@jit_on_gpu
def _lost(theta: Mixture) -> Any:
    """(nodes,) whether there is no mixture."""
    return ~xp.isfinite(theta.weights).all(1)


def _moved(
    part: Nodes, who: slice, pooled: Pooled, held_by: float
) -> tuple[tuple[Mixture, Mixture], Any]:
    """Mixtures of all rows and of the folds (nodes, folds, ...); densities out of fold."""
    start, others = _start(part, who, pooled, held_by)
    steps = start.weights, C.personal_steps
    fit, folds = part.halves(part.fit_with_pseudodata(start, others, pooled.shrinkage, *steps))
    return (fit, nodes_first(folds, part.n)), part.out_of_fold(folds)


def _clusters(part: Nodes, who: slice, full: Pooled, held_by: Array) -> Mixture:
    """Mixtures of all rows."""
    start, others = _start(part, who, full, held_by)
    steps = start.weights, C.personal_steps
    return part.fit_with_pseudodata(start, others, full.shrinkage, *steps, folds=False)


def _start(part: Nodes, _: slice, pooled: Pooled, held_by: Any) -> tuple[Mixture, PseudoData]:
    """The mixture of the others, and those of their rows that hold it."""
    start = part.m_step(pooled.theta, pooled.rest, pooled.shrinkage)
    return start, as_pseudo_data(pooled.theta, pooled.rest, held_by)


def near_level(nodes: Nodes, own: Level, received: Received, chosen_edges: Array) -> Level:
    """Step 7: own rows with the releases of those listened to.

    `chosen_edges` (1 + folds, edges) for the fit of all rows, and for each fold, without a look at
    the rows of that fold.
    """

    def fitted(part: Nodes, who: slice, fit: Mixture, folds: Mixture) -> tuple[Mixture, Array]:
        here = slice(*np.searchsorted(received.receiver, (who.start, who.stop)))
        used = lines_with(xp.reshape(chosen_edges[:, here], -1))
        edges = received.receiver[here] - who.start, received.sender[here]
        points = _points(used, *edges, received.rows, part.n)
        node, leave = part.all_and_folds()
        entries = part.table.with_points(node, leave, *points)
        start = _one_after_another([fit, nodes_last(folds)])
        found = part.fit(entries, start, nodes.nu, C.near_steps, **ALL_STEPS).theta
        alone = counted(points[0], len(node)) == 0
        fit, folds = part.halves(where(alone, start, found))
        return fit, part.out_of_fold(folds)

    fit, out_of_fold = nodes.in_parts(fitted, own.fit, own.folds)
    return Level(fit, out_of_fold, fit)


@jit_on_gpu
def _one_after_another(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: xp.concatenate(parts), *trees)


@jit_on_gpu
def _points(index: Array, receiver: Array, sender: Array, rows: Array, n: Any) -> tuple[Any, ...]:
    """Fit (ascending, since receivers are), source and weight of places in (fits, edges)."""
    fold, edge = xp.divmod(index, len(receiver))
    source = xp.asarray(sender)[edge]
    return fold * n + xp.asarray(receiver)[edge], source, xp.asarray(rows)[source]
