"""Step 5, listen: whose release helps a node to foretell its own held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmixtures.methods.trust_then_pool.fits import Base
from fedmixtures.methods.trust_then_pool.nodes import Nodes, at, chosen
from fedmixtures.methods.trust_then_pool.own import Heard, Level
from fedmixtures.methods.trust_then_pool.personal import Adapted
from fedmixtures.methods.trust_then_pool.tiles import ALL

LISTEN_STEPS = 4
MOST_TIMES = 10.0
"""A neighbour's release counts at most this many times the own rows."""
EDGES_AT_ONCE = 20_000


@dataclass(frozen=True, eq=False)
class Gains:
    """What each end of an edge would gain, in nats of its own held-out rows."""

    mean: np.ndarray
    """(edges,) per row."""
    without: np.ndarray
    """(folds, edges) total over the rows outside each fold."""


def gains(nodes: Nodes, own: Level, personal: Adapted, heard: Heard, nu: float) -> Gains:
    """Out-of-fold gain of own rows when a neighbour's points are added to the fit.

    The fit is the better of what the node has without groups: own rows alone, or own rows held by
    everyone's. Where even that is no worse without the neighbour, the gain is negative.
    """
    n_edges = len(heard.receiver)
    mean, without = np.zeros(n_edges), np.zeros((nodes.n_folds, n_edges))
    better = nodes.per_node((own.density - personal.level.density) * nodes.count) > 0
    for first in range(0, n_edges, EDGES_AT_ONCE):
        part = np.arange(first, min(first + EDGES_AT_ONCE, n_edges))
        by_fold = _gains(nodes, own, personal, heard, nu, better, part)
        total = by_fold.sum(0)
        mean[part] = total / nodes.rows_of[heard.receiver[part]]
        without[:, part] = total - by_fold
    return Gains(mean, without)


def _gains(nodes, own, personal, heard, nu, better, edges) -> np.ndarray:
    """(folds, edges) total gain of the rows of each fold, by fits that have not seen them."""
    n = len(edges)
    node = np.tile(heard.receiver[edges], nodes.n_folds)
    leave = np.repeat(np.arange(nodes.n_folds), n)
    weight = np.tile(heard.weight(nodes, MOST_TIMES)[edges], nodes.n_folds)
    sender = np.tile(heard.sender[edges], nodes.n_folds)
    entries = nodes.table.with_points(node, leave, np.arange(len(node)), sender, weight)
    alone = better[node]
    fold = leave * nodes.n + node
    start = chosen(alone, at(own.folds, fold), at(personal.level.folds, fold))
    base = at(personal.base, node)
    base = Base(np.where(alone[:, None], 0.0, base.mass), base.means, base.covariances)
    pseudo = np.where(alone[:, None], 1.0, personal.pseudo[node])
    strength = np.where(alone, nu, personal.nu[node])
    more = {"base": base, "pseudo": pseudo, "tolerance": 0.0}
    theta = nodes.fitted(entries, start, strength, LISTEN_STEPS, **more).theta
    rows = nodes.table.of_rows(node, np.full(len(node), ALL))
    density = nodes.densities(rows, theta)
    known = np.where(better[nodes.node_of, None], own.density, personal.level.density)
    judged = nodes.fold[rows.tile] == leave[rows.owner][:, None]
    gain = np.where(judged, (density - known[rows.tile]) * nodes.count[rows.tile], 0.0)
    return np.bincount(rows.owner, gain.sum(-1), len(node)).reshape(nodes.n_folds, n)
