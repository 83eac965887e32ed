"""Step 5, listen: whose release helps a node to predict its own held-out rows; communities."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedmixtures._types import Array
from fedmixtures.fits.batches import ALL
from fedmixtures.fits.em import Shrinkage, as_pseudo_data
from fedmixtures.fits.held_out import HeldOut
from fedmixtures.fits.rows import by_node
from fedmixtures.kernels.arrays import (
    Segments,
    at,
    jit_on_gpu,
    placed,
    where,
    worth_selecting,
    xp,
)
from fedmixtures.kernels.dispatch import edges_at_once
from fedmixtures.methods.protocol import Block, PerNeighbour, Request
from fedmixtures.methods.trust_then_pool.communities import communities
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.nodes import Nodes
from fedmixtures.methods.trust_then_pool.own import Level, Received
from fedmixtures.methods.trust_then_pool.personal import Personal
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


@dataclass(frozen=True, eq=False)
class Listened:
    """Who listens to whom; each (edges,), seen from the receiver."""

    gain: Array
    """Nats per own held-out row by the neighbour's release."""
    listens: Array
    """Whether there is a gain."""
    both: Array
    """Whether both ends listen."""
    trusted: Array
    """Whether they are of one community as well."""
    used: Array
    """(1 + folds, edges) from whom the level near learns, at most `C.nearest` at each receiver:
    those trusted; without a look at the receiver's rows of each fold, where both listen."""


def listening(
    block: Block, nodes: Nodes, own: Level, personal: Personal, received: Received
) -> Generator[Request, Any, Listened]:
    """Step 5: a bit to every neighbour, whether its release helps; then communities."""
    gain = gains(nodes, own, personal, received)
    listens = gain.mean > 0
    both, by_fold = both_ways(listens, gain.without, (yield PerNeighbour(listens)))
    trusted = yield from communities(block, both, gain.mean)
    wanted = zip([trusted, *by_fold], [gain.mean, *gain.without], strict=True)
    used = xp.stack([nearest(flags, more, received.receiver) for flags, more in wanted])
    return Listened(gain.mean, listens, both, trusted, used)


def nearest(flags: Array, gain: Array, receiver: np.ndarray) -> Any:
    """(edges,) where there are flags, at every receiver at most `C.nearest`: by their gains."""
    most = np.bincount(receiver[np.asarray(flags)]).max(initial=0)
    return flags if most <= C.nearest else _first_few(flags, gain, receiver)


def _first_few(flags: Array, gain: Array, receiver: np.ndarray) -> Any:
    flags = np.asarray(flags)
    size = -np.round(np.asarray(gain, np.float64), 6)  # equals stay as they stand
    order = np.lexsort((size, ~flags, receiver))
    place = np.arange(len(order)) - np.searchsorted(receiver, receiver)
    few = np.zeros(len(order), bool)
    few[order] = place < C.nearest
    return xp.asarray(few & flags)


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


def gains(nodes: Nodes, own: Level, personal: Personal, received: Received) -> Gains:
    """Out-of-fold gain of own rows when a neighbour's points are added to the fit.

    The fit is the better of what the node has without groups: own rows alone, or own rows held by
    everyone's. Where even that is no worse without the neighbour, the gain is negative. One step of
    EM tells: with two more, 97 to 100 of 100 edges had the same sign on four networks.
    """
    n_edges, at_once = len(received.receiver), edges_at_once()
    better = _better(own.out_of_fold, personal.level.out_of_fold, nodes.count, nodes.tiles_of)
    known = by_node(better, nodes.node_of, own.out_of_fold, personal.level.out_of_fold)
    judged = nodes.held_out()
    begun, known = _begun(nodes, judged, own, personal, better), judged.tiled(known)
    parts = [xp.zeros((nodes.n_folds, 0))]
    for first in range(0, n_edges, at_once):
        part = slice(first, min(first + at_once, n_edges))
        parts.append(_gains(nodes, judged, begun, received, known, part))
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
    gain = xp.where(count > 0, density - own.out_of_fold[rows.tile], 0.0)
    variance = xp.maximum(add(gain**2) / m - (add(gain) / m) ** 2, 0.0)
    gain = gain + (C.margin * xp.sqrt(variance / m))[rows.owner][:, None]
    small = xp.asarray(2 * received.rows[sender] <= m)
    gain = xp.where(small[rows.owner][:, None], C.least_gain, gain)
    of_fold = lambda f: xp.where(nodes.fold[rows.tile] == f, gain, 0.0)
    return np.asarray(xp.stack([add(of_fold(f)) for f in range(nodes.n_folds)]))


class Begun(NamedTuple):
    """Of every fold: the mixture without it, and what counts beside a neighbour's points.

    These are the own rows as they are shared out under the mixture, with the others' that hold it.
    """

    theta: Mixture
    others: PseudoData
    extra_mass: Array
    shrinkage: Shrinkage


def _begun(nodes: Nodes, judged: HeldOut, own: Level, personal: Personal, better: Array) -> Begun:
    """An E-step of own rows without each fold: it is the same whoever is listened to."""
    node, leave = judged.node, judged.fold
    pseudo_data, models = (
        (personal.others, personal.extra_mass, personal.shrinkage),
        (own.folds, personal.level.folds),
    )
    usual = Shrinkage(nodes.nu, nodes.reg_covar)
    start, others, extra_mass, shrinkage = _from(node, leave, better, models, pseudo_data, usual)
    sums = nodes.fit(nodes.table.of_rows(node, leave), start, shrinkage, 0).own
    others, extra_mass = _with_own(start, others, extra_mass, sums)
    return Begun(start, others, extra_mass, shrinkage)


def _gains(
    nodes: Nodes, judged: HeldOut, begun: Begun, received: Received, known: Array, edges: slice
) -> Any:
    """(folds, edges) total gain of the rows of each fold, by fits that have not seen them."""
    line = judged.line.T[:, received.receiver[edges]].reshape(-1)
    fits = worth_selecting(line >= 0)
    edge, there = fits % (edges.stop - edges.start), np.maximum(line[fits], 0)
    weight = received.weight(nodes, edges, C.most_times)[edge]
    entries = nodes.table.of_each(received.sender[edges][edge], weight)
    of = at(begun, there)
    beside = {"pseudo_data": of.others, "extra_mass": of.extra_mass}
    theta = nodes.step_by_points(entries, of.theta, of.shrinkage, **beside)
    gain = xp.where(line[fits] >= 0, judged.gains(there, theta, known), 0.0)
    return placed(len(line), fits, gain, 0.0, gain.dtype).reshape(nodes.n_folds, -1)


@jit_on_gpu
def _with_own(
    theta: Mixture, others: PseudoData, extra_mass: Array, own: Statistics
) -> tuple[PseudoData, Any]:
    """Rows of others, and the prior's mass, with own rows among them."""
    return as_pseudo_data(theta, others.added(theta, own)), extra_mass + own.mass


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


@jit_on_gpu
def _from(
    node: Array,
    leave: Array,
    better: Array,
    folds: tuple[Mixture, Mixture],
    pseudo_data: tuple[PseudoData, Array, Shrinkage],
    usual: Shrinkage,
) -> tuple[Mixture, PseudoData, Any, Shrinkage]:
    """Where a fit begins and what it has beside own rows; nothing, where they alone are better."""
    alone = better[node]
    others, extra_mass, shrinkage = at(pseudo_data, node)
    mass = xp.where(alone[:, None], 0.0, others.mass)
    return (
        where(alone, *at(folds, (node, leave))),
        PseudoData(mass, others.means, others.covariances),
        xp.where(alone[:, None], 1.0, extra_mass),
        Shrinkage(*(xp.where(alone, *two) for two in zip(usual, shrinkage, strict=True))),
    )
