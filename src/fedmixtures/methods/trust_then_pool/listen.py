"""Step 5, listen: whose release helps a node to predict its own held-out rows; communities."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedmixtures._types import Array
from fedmixtures.kernels.arrays import Segments, at, chosen, jit_on_gpu, most_voted, tally, xp
from fedmixtures.kernels.dispatch import edges_at_once
from fedmixtures.methods.protocol import Block, PerNeighbour, Request
from fedmixtures.methods.trust_then_pool.batches import ALL
from fedmixtures.methods.trust_then_pool.nodes import Nodes, by_node
from fedmixtures.methods.trust_then_pool.own import Level, Received
from fedmixtures.methods.trust_then_pool.personal import Adapted
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture

LISTEN_STEPS = 3
MOST_TIMES = 10.0
"""A neighbour's release counts at most this many times the own rows."""
MARGIN = 4.0
"""Standard errors by which a release that lost components may be worse than what the node has."""
LEAST_GAIN = 1e-3
"""Of listening to a smaller neighbour that wants it, in nats."""
VOTE_ROUNDS = 16


@dataclass(frozen=True, eq=False)
class Gains:
    """What each end of an edge would gain, in nats of its own held-out rows."""

    mean: Array
    """(edges,) per row."""
    without: Array
    """(folds, edges) total over the rows outside each fold."""


@jit_on_gpu
def both_ways(listens: Array, without: Array, returned: Array) -> tuple[Any, Any]:
    """(edges,) where both ends listen; (folds, edges) the same without a look at the fold."""
    return listens & returned, (without > 0) & returned


def gains(
    nodes: Nodes, own: Level, folds: Mixture, personal: Adapted, received: Received, nu: float
) -> Gains:
    """Out-of-fold gain of own rows when a neighbour's points are added to the fit.

    The fit is the better of what the node has without groups: own rows alone, or own rows held by
    everyone's. Where even that is no worse without the neighbour, the gain is negative.
    """
    n_edges, at_once = len(received.receiver), edges_at_once()
    better = _better(own.density, personal.level.density, nodes.count, nodes.tiles_of)
    known = by_node(better, nodes.node_of, own.density, personal.level.density)
    parts = [xp.zeros((nodes.n_folds, 0))]
    for first in range(0, n_edges, at_once):
        part = slice(first, min(first + at_once, n_edges))
        parts.append(_gains(nodes, folds, personal, received, nu, better, known, part))
    by_fold = _side_by_side(parts)
    if received.lost.any():
        coarse = received.lost[received.sender] | received.lost[nodes.block.line[received.receiver]]
        judged = np.zeros((nodes.n_folds, n_edges))
        judged[:, coarse] = _not_worse(nodes, own, received, np.flatnonzero(coarse))
        by_fold = xp.where(coarse, judged, by_fold)
    return Gains(*_mean_and_without(by_fold, nodes.rows_of[received.receiver]))


def _not_worse(nodes: Nodes, own: Level, received: Received, edges: np.ndarray) -> np.ndarray:
    """(folds, edges) the same where a release at one of the ends has lost components on its way.

    Its points would hurt a fit that has them all. So: how much better it predicts own rows than
    the own fits without them do, and a margin for chance. A neighbour of less than half the rows,
    or one that may not speak, decides for both.
    """
    node, sender = received.receiver[edges], received.sender[edges]
    rows = nodes.table.of_rows(node, np.full(len(node), ALL))
    count, m = nodes.count[rows.tile], nodes.rows_of[node]
    add = lambda by_row: rows.sums((by_row * count).sum(-1))
    density = nodes.densities(rows, at(received.theta, sender))
    gain = xp.where(count > 0, density - own.density[rows.tile], 0.0)
    variance = xp.maximum(add(gain**2) / m - (add(gain) / m) ** 2, 0.0)
    gain = gain + (MARGIN * xp.sqrt(variance / m))[rows.owner][:, None]
    small = xp.asarray(2 * received.rows[sender] <= m)
    gain = xp.where(small[rows.owner][:, None], LEAST_GAIN, gain)
    of_fold = lambda f: xp.where(nodes.fold[rows.tile] == f, gain, 0.0)
    return np.asarray(xp.stack([add(of_fold(f)) for f in range(nodes.n_folds)]))


def _gains(nodes, folds, personal, received, nu, better, known, edges) -> Any:
    """(folds, edges) total gain of the rows of each fold, by fits that have not seen them."""
    weight = received.weight(nodes, edges, MOST_TIMES)
    of_edges = received.receiver[edges], received.sender[edges], weight
    node, sender, weight, leave = _by_fold(of_edges, nodes.n_folds)
    entries = nodes.table.with_one(node, leave, sender, weight)
    held = personal.base, personal.pseudo, personal.nu
    models = folds, personal.folds
    start, base, pseudo, strength = _from(node, leave, better, models, held, nu)
    more = {"base": base, "pseudo": pseudo, "tolerance": 0.0, "sums": False}
    theta = nodes.fitted(entries, start, strength, LISTEN_STEPS, **more).theta
    rows = nodes.table.of_rows(node, np.full(len(node), ALL))
    density = nodes.densities(rows, theta)
    gain = _gain(density, known, nodes.fold, nodes.count, rows.tile, leave, rows.owner)
    return rows.sums(gain).reshape(nodes.n_folds, -1)


@jit_on_gpu
def _better(own: Array, personal: Array, count: Array, tiles_of: Segments) -> Any:
    """(nodes,) whether own rows alone predict own held-out rows better."""
    return tiles_of.sums(((own - personal) * count).sum(-1)) > 0


@jit_on_gpu
def _side_by_side(parts: list[Array]) -> Any:
    return xp.concatenate(parts, axis=1)


@jit_on_gpu
def _mean_and_without(by_fold: Array, rows: Array) -> tuple[Any, Any]:
    """Of all folds by row, and the total without each."""
    total = by_fold.sum(0)
    return total / rows, total - by_fold


@partial(jit_on_gpu, static_argnums=1)
def _by_fold(of_edges: tuple[Array, ...], n_folds: int) -> tuple[Any, ...]:
    """The same for every fold, and the fold."""
    again = [xp.tile(xp.asarray(part), n_folds) for part in of_edges]
    return *again, xp.repeat(xp.arange(n_folds), len(of_edges[0]))


@jit_on_gpu
def _from(
    node: Array,
    leave: Array,
    better: Array,
    folds: tuple[Mixture, Mixture],
    held: tuple[PseudoData, Array, Array],
    nu: Any,
) -> tuple[Mixture, PseudoData, Any, Any]:
    """Where a fit begins and what it has beside own rows; nothing, where they alone are better."""
    alone = better[node]
    base, pseudo, strength = at(held, node)
    mass = xp.where(alone[:, None], 0.0, base.mass)
    return (
        chosen(alone, *at(folds, (node, leave))),
        PseudoData(mass, base.means, base.covariances),
        xp.where(alone[:, None], 1.0, pseudo),
        xp.where(alone, nu, strength),
    )


@jit_on_gpu
def _gain(density, known, fold, count, tile, leave, owner) -> Any:
    """By tile what rows of the fold that was left out gain."""
    judged = fold[tile] == xp.asarray(leave)[owner][:, None]
    return xp.where(judged, (density - known[tile]) * count[tile], 0.0).sum(-1)


@jit_on_gpu
def _in_turn(t: Any, hashes: Array, new: Array, label: Array) -> Any:
    """New labels at the half of the nodes whose turn it is."""
    bit = xp.asarray(1 + t).astype(np.uint64)
    return xp.where((hashes >> bit) & np.uint64(1) == t % 2, new, label)


def inside(block: Block, live: Array, gain: Array) -> Generator[Request, Any, Any]:
    """Which live edges lie inside a community, by label propagation.

    Every node begins with a label of its own and takes that for which most speaks among its live
    neighbours (each by the root of what it gains from them), half of the nodes at a time. An edge
    between two labels is cut if one of its ends has two neighbours of its own label, so that one
    edge that is live by chance does not join two groups; chains and stars, where nobody has two,
    stay whole.
    """
    hashes, receiver = xp.asarray(block.data.label_hashes), xp.asarray(block.receiver)
    label, weight = _votes(hashes, live, gain)
    for t in range(VOTE_ROUNDS):
        received = yield PerNeighbour(at(label, receiver))
        label = _in_turn(t, hashes, most_voted(receiver, received, weight, label), label)
    received = yield PerNeighbour(at(label, receiver))
    same, settled = _settled(live, received, label, receiver)
    return _kept(live, same, settled, (yield PerNeighbour(settled)))


@jit_on_gpu
def _votes(hashes: Array, live: Array, gain: Array) -> tuple[Any, Any]:
    """The label that each node begins with; what each neighbour's vote weighs."""
    weight = xp.where(live, xp.sqrt(xp.maximum(gain, 0.0)), 0.0)
    return (hashes >> np.uint64(1)).astype(np.int64), weight


@jit_on_gpu
def _settled(live: Array, received: Array, label: Array, receiver: Array) -> tuple[Any, Any]:
    """Which live edges join equal labels; at which the receiver has two of those."""
    same = live & (received == label[receiver])
    return same, (tally(same, receiver, len(label)) >= 2)[receiver]


@jit_on_gpu
def _kept(live: Array, same: Array, settled: Array, there: Array) -> Any:
    return live & (same | ~(settled | there))
