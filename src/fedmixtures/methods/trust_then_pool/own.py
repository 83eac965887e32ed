"""Step 1, own: fits of every node's own rows; step 2, release: what it tells of them, once."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.fits.em import best_of, quick
from fedmixtures.fits.rows import apart, by_node, nodes_first
from fedmixtures.kernels.arrays import at, replaced, where, xp
from fedmixtures.methods.protocol import Release
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.nodes import Nodes
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points


@dataclass(frozen=True, eq=False)
class Level:
    """One density of every node, and what is known of it."""

    fit: Mixture
    """(nodes, ...) fitted to all rows."""
    out_of_fold: Array
    """By row: its log-density under the fit without its fold."""
    clusters: Mixture
    """(nodes, ...) the fit with the full strength of the prior: what clusters are read from."""
    folds: Mixture | None = None
    """(nodes, folds, ...) the fits without each fold, where a later step begins with them."""

    def without_folds(self) -> Level:
        """The level without the fits of its folds, which take most of the memory."""
        return replace(self, folds=None)

    def where(self, nodes: Nodes, condition: Array, other: Level) -> Level:
        """The level, with `other` at the nodes where the condition holds."""
        both = self.folds is not None and other.folds is not None
        return Level(
            where(condition, other.fit, self.fit),
            by_node(condition, nodes.node_of, other.out_of_fold, self.out_of_fold),
            where(condition, other.clusters, self.clusters),
            where(condition, other.folds, self.folds) if both else None,
        )

    def only(self, part: Nodes, who: np.ndarray) -> Level:
        """The level of some of the nodes."""
        fit, clusters = at((self.fit, self.clusters), who)
        return Level(fit, self.out_of_fold[part.tile], clusters)

    def put(self, part: Nodes, who: np.ndarray, new: Level) -> Level:
        """The level with another at some of the nodes."""
        put = lambda old, fresh, at_: jax.tree.map(lambda a, b: replaced(a, at_, b), old, fresh)
        return Level(
            put(self.fit, new.fit, who),
            put(self.out_of_fold, new.out_of_fold, part.tile),
            put(self.clusters, new.clusters, who),
        )


def own_level(nodes: Nodes, judged: bool = True) -> Level:
    """Step 1: MAP fits of all own rows and of own folds, each the best of several fresh starts.

    A level that is not to be `judged` has no fits of folds, and says that its rows are unlikely.
    """
    nu, n_starts = nodes.nu, nodes.options.n_starts

    def fitted(part: Nodes, _: slice) -> tuple[Mixture, Mixture, Array]:
        node, leave = part.all_and_folds()
        if not judged:
            node, leave = node[: part.n], leave[: part.n]
        entries, present = part.table.of_rows(node, leave), at(part.present, node)
        keys = [part.keys(node, 2, leave + 1, start) for start in range(n_starts)]
        short = best_of([part.fresh(entries, nu, C.short_steps, key, present) for key in keys])
        found = part.fit(entries, short, nu, C.fit_steps, sums=False).theta
        if not judged:
            lowest = xp.where(part.count > 0, C.lowest, 0.0).astype(found.means.dtype)
            return found, apart(at(found, xp.repeat(node, part.n_folds)), part.n_folds), lowest
        fit, folds = part.halves(found)
        return fit, nodes_first(folds, part.n), part.out_of_fold(folds)

    fit, folds, out_of_fold = nodes.in_parts(fitted)
    return Level(fit, out_of_fold, fit, folds)


def released(nodes: Nodes, own: Level) -> Release:
    """Step 2; the release of a node that lacks a feature counts for nothing."""
    rows = np.where(nodes.lacks_feature, 0.0, nodes.rows_of)
    return Release(own.fit, rows.astype(own.fit.means.dtype))


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
