"""Step 5, listen: whose release helps a node to foretell its own held-out rows; communities."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures._ties import margin
from fedmixtures.methods.conversation import Block, PerNeighbour, Request
from fedmixtures.methods.trust_then_pool.fits import Base
from fedmixtures.methods.trust_then_pool.nodes import Nodes, at, chosen
from fedmixtures.methods.trust_then_pool.own import Heard, Level
from fedmixtures.methods.trust_then_pool.personal import Adapted
from fedmixtures.methods.trust_then_pool.tiles import ALL

LISTEN_STEPS = 3
MOST_TIMES = 10.0
"""A neighbour's release counts at most this many times the own rows."""
EDGES_AT_ONCE = 20_000
MARGIN = 4.0
"""Standard errors by which a release that lost components may be worse than what the node has."""
LEAST_GAIN = 1e-3
"""Of listening to a smaller neighbour that wants it, in nats."""
VOTE_ROUNDS = 16


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
    coarse = heard.lost[heard.sender] | heard.lost[nodes.block.line[heard.receiver]]
    for first in range(0, n_edges, EDGES_AT_ONCE):
        part = np.arange(first, min(first + EDGES_AT_ONCE, n_edges))
        by_fold = _gains(nodes, own, personal, heard, nu, better, part)
        if coarse[part].any():
            by_fold[:, coarse[part]] = _not_worse(nodes, own, heard, part[coarse[part]])
        total = by_fold.sum(0)
        mean[part] = total / nodes.rows_of[heard.receiver[part]]
        without[:, part] = total - by_fold
    return Gains(mean, without)


def _not_worse(nodes: Nodes, own: Level, heard: Heard, edges: np.ndarray) -> np.ndarray:
    """(folds, edges) the same where a release at one of the ends has lost components on its way.

    Its points would hurt a fit that has them all. So: how much better it foretells own rows than
    the own fits without them do, and a margin for chance. A neighbour of less than half the rows,
    or one that may not speak, decides for both.
    """
    node, sender = heard.receiver[edges], heard.sender[edges]
    rows = nodes.table.of_rows(node, np.full(len(node), ALL))
    count, m = nodes.count[rows.tile], nodes.rows_of[node]
    add = lambda by_row: np.bincount(rows.owner, (by_row * count).sum(-1), len(node))
    density = nodes.densities(rows, at(heard.theta, sender))
    gain = np.where(count > 0, density - own.density[rows.tile], 0.0)
    variance = np.maximum(add(gain**2) / m - (add(gain) / m) ** 2, 0.0)
    gain = gain + (MARGIN * np.sqrt(variance / m))[rows.owner][:, None]
    gain = np.where((2 * heard.rows[sender] <= m)[rows.owner][:, None], LEAST_GAIN, gain)
    of_fold = lambda f: np.where(nodes.fold[rows.tile] == f, gain, 0.0)
    return np.stack([add(of_fold(f)) for f in range(nodes.n_folds)])


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


def inside(block: Block, live: np.ndarray, gain: np.ndarray) -> Generator[Request, Any, np.ndarray]:
    """Which live edges lie inside a community, by label propagation.

    Every node begins with a label of its own and takes that for which most speaks among its live
    neighbours (each by the root of what it gains from them), half of the nodes at a time. An edge
    between two labels is cut if one of its ends has two neighbours of its own label, so that one
    edge that is live by chance does not join two groups; chains and stars, where nobody has two,
    stay whole.
    """
    hashes = block.data.label_hashes
    label = (hashes >> np.uint64(1)).astype(np.int64)
    weight = np.where(live, np.sqrt(np.maximum(gain, 0.0)), 0.0)
    for t in range(VOTE_ROUNDS):
        heard = yield PerNeighbour(label[block.receiver])
        turn = (hashes >> np.uint64(1 + t)) & np.uint64(1) == t % 2
        label = np.where(turn, _most_voted(block.receiver, heard, weight, label), label)
    same = live & ((yield PerNeighbour(label[block.receiver])) == label[block.receiver])
    settled = np.bincount(block.receiver[same], minlength=len(label)) >= 2
    settled = settled[block.receiver]
    return live & (same | ~(settled | (yield PerNeighbour(settled))))


def _most_voted(
    receiver: np.ndarray, heard: np.ndarray, weight: np.ndarray, label: np.ndarray
) -> np.ndarray:
    """For every node the label with the largest weight; among equals the smallest."""
    if not weight.any():
        return label
    order = np.lexsort((heard, receiver))
    node, name, weight = receiver[order], heard[order], weight[order]
    first = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(name) != 0)])
    votes, node, name = np.add.reduceat(weight, first), node[first], name[first]
    most = np.zeros(len(label))
    np.maximum.at(most, node, votes)
    winner = (votes >= most[node] * (1 - margin(votes.dtype))) & (votes > 0)
    found = label.copy()
    place = np.flatnonzero(winner)[::-1]  # the smallest is written last
    found[node[place]] = name[place]
    return found
