"""Step 1, own: fits of every node's own rows; step 2, release: what it tells of them, once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.kernels.arrays import at, chosen, replaced, xp
from fedmixtures.methods.protocol import Release
from fedmixtures.methods.trust_then_pool.fits import best_of, quick
from fedmixtures.methods.trust_then_pool.nodes import Nodes, by_node, nodes_first
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points

SHORT_STEPS, FIT_STEPS = 5, 20
"""EM steps of a fit from every fresh start, and then from the best of them."""


@dataclass(frozen=True, eq=False)
class Level:
    """One density of every node."""

    theta: Mixture
    """(nodes, ...)"""
    density: Array
    """By row: out-of-fold log-density."""
    clusters: Mixture
    """(nodes, ...) the fit with the full strength of the prior: what clusters are read from."""

    def where(self, nodes: Nodes, condition: Array, other: Level) -> Level:
        """The same with the level `other` at the nodes where the condition holds."""
        return Level(
            chosen(condition, other.theta, self.theta),
            by_node(condition, nodes.node_of, other.density, self.density),
            chosen(condition, other.clusters, self.clusters),
        )

    def only(self, part: Nodes, who: np.ndarray) -> Level:
        """The level of some of the nodes."""
        theta, clusters = at((self.theta, self.clusters), who)
        return Level(theta, self.density[part.tile], clusters)

    def put(self, part: Nodes, who: np.ndarray, new: Level) -> Level:
        """The level with another at some of the nodes."""
        put = lambda old, fresh, at_: jax.tree.map(lambda a, b: replaced(a, at_, b), old, fresh)
        return Level(
            put(self.theta, new.theta, who),
            put(self.density, new.density, part.tile),
            put(self.clusters, new.clusters, who),
        )


def own_level(nodes: Nodes, nu: float, n_starts: int) -> tuple[Level, Mixture]:
    """Step 1: MAP fits of all own rows, the best of several fresh starts.

    And (nodes, folds, ...) the same without each fold.
    """

    def fitted(part: Nodes, _: slice) -> tuple[Mixture, Mixture, Array]:
        node, leave = part.all_and_folds()
        entries, present = part.table.of_rows(node, leave), at(part.present, node)
        keys = [part.keys(node, 2, leave + 1, start) for start in range(n_starts)]
        short = best_of([part.fresh(entries, nu, SHORT_STEPS, key, present) for key in keys])
        found = part.fitted(entries, short, nu, FIT_STEPS, sums=False).theta
        theta, folds = part.halves(found)
        return theta, nodes_first(folds, part.n), part.out_of_fold(folds)

    theta, folds, density = nodes.in_parts(fitted)
    return Level(theta, density, theta), folds


def released(nodes: Nodes, own: Level) -> Release:
    """Step 2; the release of a node that lacks a feature counts for nothing."""
    rows = np.where(nodes.blind, 0.0, nodes.rows_of)
    return Release(own.theta, rows.astype(own.theta.means.dtype))


_points = quick(sigma_points)


class Received:
    """The releases of neighbours and of the nodes themselves, as points in the tiles."""

    def __init__(self, nodes: Nodes, table: Release):
        self.theta, self.rows = jax.tree.map(xp.asarray, table.theta), np.asarray(table.rows)
        nowhere = np.zeros(len(self.rows), dtype=bool)
        self.lost = nowhere if table.lost is None else np.asarray(table.lost)
        block = nodes.block
        self.receiver, self.sender = block.receiver, block.sender
        n, _, d = self.theta.means.shape
        with precision(block.dtype):
            points, weights = map(xp.asarray, _points(self.theta))
        nodes.table.put_points(points.reshape(n, -1, d), weights.reshape(n, -1))

    def only(self, who: np.ndarray, n: int) -> tuple[Received, np.ndarray]:
        """What some of `n` nodes have received, with their own numbers; and over which edges."""
        number = np.full(n, -1)
        number[who] = np.arange(len(who))
        edges = np.flatnonzero(number[self.receiver] >= 0)
        part = copy.copy(self)
        part.receiver, part.sender = number[self.receiver[edges]], self.sender[edges]
        return part, edges

    def weight(self, nodes: Nodes, edges: slice, most: float) -> np.ndarray:
        """Rows that the senders of `edges` count for at the receiver: at most `most` times."""
        own = nodes.rows_of[self.receiver[edges]]
        return np.minimum(self.rows[self.sender[edges]], most * own)
