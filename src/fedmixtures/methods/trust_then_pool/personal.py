"""Steps 4 and 7, personal and near: levels that a node works out at home from what it has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmixtures.methods.trust_then_pool.fits import Base
from fedmixtures.methods.trust_then_pool.nodes import Nodes, chosen
from fedmixtures.methods.trust_then_pool.own import Heard, Level
from fedmixtures.methods.trust_then_pool.pool import Pooled
from fedmixtures.mixture.mixture import Mixture

PERSONAL_STEPS = 8
NEAR_STEPS = 10


@dataclass(frozen=True, eq=False)
class Adapted:
    """The personal level, and what a fit needs to go on from it."""

    level: Level
    base: Base
    pseudo: np.ndarray
    nu: np.ndarray


def personal_level(nodes: Nodes, everyone: Pooled, full: Pooled, held_by: float) -> Adapted:
    """Step 4: everyone's mixture moved to own rows, each component held by rows of the others.

    From M(the others' sums), EM on own rows beside at most `held_by` rows of the others in each
    component; weights are drawn to the others' by one row.
    """
    found = _adapted(nodes, everyone, held_by)
    clusters = _adapted(nodes, full, held_by).level.theta
    level = Level(found.level.theta, found.level.folds, found.level.density, clusters)
    return Adapted(level, found.base, found.pseudo, found.nu)


def _adapted(nodes: Nodes, pooled: Pooled, held_by: float) -> Adapted:
    start = nodes.advanced(pooled.theta, pooled.rest, pooled.nu)
    base = Base.of(pooled.theta, pooled.rest, held_by)
    models = nodes.beside(start, base, pooled.nu, start.weights, PERSONAL_STEPS)
    theta, folds = nodes.halves(models)
    level = Level(theta, folds, nodes.out_of_fold(folds), theta)
    return Adapted(level, base, start.weights, pooled.nu)


def near_level(
    nodes: Nodes, own: Level, heard: Heard, live: np.ndarray, blind: np.ndarray, nu: float
) -> Level:
    """Step 7: own rows with the releases of those listened to.

    `live` (edges,) chooses them for the fit of all rows; `blind` (folds, edges) for each fold,
    without a look at the rows of that fold.
    """
    folds = [live, *blind]
    fit = np.concatenate([f * nodes.n + heard.receiver[e] for f, e in enumerate(folds)])
    source = np.concatenate([heard.sender[e] for e in folds])
    order = np.argsort(fit, kind="stable")
    fit, source = fit[order], source[order]
    entries = nodes.table.with_points(nodes.every, nodes.leave, fit, source, heard.rows[source])
    start = Mixture(*map(np.concatenate, zip(own.theta.parts, own.folds.parts, strict=True)))
    found = nodes.fitted(entries, start, nu, NEAR_STEPS, tolerance=0.0).theta
    alone = np.bincount(fit, minlength=len(nodes.every)) == 0
    theta, folds = nodes.halves(chosen(alone, start, found))
    return Level(theta, folds, nodes.out_of_fold(folds), theta)
