"""Steps 4 and 7, personal and near: levels that a node works out at home from what it has."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.kernels.arrays import counted, xp
from fedmixtures.methods.conversation import Sum
from fedmixtures.methods.trust_then_pool.fits import Base
from fedmixtures.methods.trust_then_pool.nodes import Nodes, chosen, pick
from fedmixtures.methods.trust_then_pool.own import Heard, Level
from fedmixtures.methods.trust_then_pool.pool import Pooled, usable
from fedmixtures.mixture.mixture import Mixture

PERSONAL_STEPS = 8
NEAR_STEPS = 3


@dataclass(frozen=True, eq=False)
class Adapted:
    """The personal level, and what a fit needs to go on from it."""

    level: Level
    base: Base
    pseudo: Array
    nu: Array


def personal_level(
    nodes: Nodes,
    own: Level,
    everyone: Pooled,
    full: Pooled,
    held_by: tuple[float, ...],
    group: np.ndarray,
) -> Generator[Sum, Any, Adapted]:
    """Step 4: everyone's mixture moved to own rows, each component held by rows of the others.

    From M(the others' sums), EM on own rows beside at most `held_by` rows of the others in each
    component; weights are drawn to the others' by one row. By how many is what foretells the rows
    of the whole network best. Where totals were false, so that nothing comes of it, it is `own`.
    """
    moved = [_moved(nodes, everyone, held) for held in held_by]
    densities = [nodes.out_of_fold(folds) for _, _, folds in moved]
    told = nodes.likelihoods(densities, group)
    best = first_greatest(usable((yield told), told.share))
    base, theta, folds = (pick(best, [each[i] for each in moved]) for i in range(3))
    density = pick(best[nodes.node_of], densities)
    start, beside = _start(nodes, full, xp.asarray(held_by)[best][:, None])
    clusters = nodes.beside(start, beside, full.nu, start.weights, PERSONAL_STEPS, folds=False)
    others = nodes.advanced(everyone.theta, everyone.rest, everyone.nu)
    lost = ~xp.isfinite(theta.weights).all(1)
    level = Level(theta, folds, density, clusters).but(nodes, lost, own)
    return Adapted(level, base, others.weights, everyone.nu)


def _moved(nodes: Nodes, pooled: Pooled, held_by: float) -> tuple[Base, Mixture, Mixture]:
    """Base, mixtures of all rows, and of the folds."""
    start, base = _start(nodes, pooled, held_by)
    models = nodes.beside(start, base, pooled.nu, start.weights, PERSONAL_STEPS)
    return base, *nodes.halves(models)


def _start(nodes: Nodes, pooled: Pooled, held_by: Any) -> tuple[Mixture, Base]:
    """The mixture of the others, and those of their rows that hold it."""
    start = nodes.advanced(pooled.theta, pooled.rest, pooled.nu)
    return start, Base.of(pooled.theta, pooled.rest, held_by)


def near_level(
    nodes: Nodes, own: Level, heard: Heard, live: Array, blind: Array, nu: float
) -> Level:
    """Step 7: own rows with the releases of those listened to.

    `live` (edges,) chooses them for the fit of all rows; `blind` (folds, edges) for each fold,
    without a look at the rows of that fold.
    """
    folds = [live, *blind]
    receiver, sender, rows = map(xp.asarray, (heard.receiver, heard.sender, heard.rows))
    fit = xp.concatenate([f * nodes.n + receiver[e] for f, e in enumerate(folds)])
    source = xp.concatenate([sender[e] for e in folds])
    order = xp.argsort(fit, stable=True)
    fit, source = fit[order], source[order]
    entries = nodes.table.with_points(nodes.every, nodes.leave, fit, source, rows[source])
    start = Mixture(*map(xp.concatenate, zip(own.theta.parts, own.folds.parts, strict=True)))
    found = nodes.fitted(entries, start, nu, NEAR_STEPS, tolerance=0.0, sums=False).theta
    alone = counted(fit, len(nodes.every)) == 0
    theta, folds = nodes.halves(chosen(alone, start, found))
    return Level(theta, folds, nodes.out_of_fold(folds), theta)
