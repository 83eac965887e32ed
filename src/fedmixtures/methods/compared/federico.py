r"""FedeRiCo: every node keeps a model, and weighs the models of its neighbours by its own rows.

Sui, Wen, Lau, Ross and Cresswell (2022, arXiv 2210.06597), *Find your friends*. Node i predicts
with $\sum_j \pi_{ij}\, p_j$. EM: with a hidden choice of one model per node,
$w_{ij} \propto \pi_{ij} \exp \sum_x \ln p_j(x)$ over the rows of node i, $\pi_{ij} = w_{ij}$, and
model j is refitted to the rows of all nodes with weights $w_{ij}$. The formulas are from the
abstract and from memory; no code is public. It is the nearest relative of weighing several
densities per node.
"""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.baselines import FromLocalFits
from fedmixtures.methods.compared.pooling import (
    density_rows,
    e_step,
    over_edges,
    padded_rows,
    summed,
)
from fedmixtures.methods.conversation import Block, Broadcast, PerNeighbour
from fedmixtures.mixture.mixture import Mixture

REFIT_STEPS = 20  # EM steps on the rows that do not judge, from the fit of all rows
SMALLEST_SHARE = 1e-6  # a neighbour with a smaller weight is left out of the result


class FedeRiCo(FromLocalFits):
    """Local fits to begin with; per round a model to all neighbours and statistics back.

    A mixture's M-step replaces the authors' gradient step: a node sends every neighbour the
    statistics of its rows under the neighbour's model, times the weight it gives it. The result of
    a node is one mixture with the components of all models that it weighs.

    Parameters
    ----------
    choice
        ``"row"``: the hidden choice is per row, so that weights stay those of a mixture.
        ``"node"``: one choice for all rows, as the authors have it; weights soon are 0 or 1.
    held_out_share
        Rows of a node that judge models and are fitted in the last round alone. 0 is the reference
        behaviour: a model that was fitted to the very rows wins, and the result is Local.
    n_rounds
        Exchanges.
    """

    choice: Literal["row", "node"] = "row"
    held_out_share: float = 0.2
    n_rounds: int = 20

    def __check_init__(self):
        _checks.one_of("choice", self.choice, ("row", "node"))
        _checks.share("held_out_share", self.held_out_share, 0.5)
        _checks.whole("n_rounds", self.n_rounds, minimum=1)

    def run(self, block: Block):
        """Exchange models, weigh them, exchange statistics, refit."""
        rows, counts = padded_rows(block.data)
        n, judging = len(rows), self._judging(counts)
        fitted = np.where(judging, 0.0, counts) if self.held_out_share else counts
        theta = self.local_fits(block)
        for _ in range(REFIT_STEPS if self.held_out_share else 0):
            theta = self.m_step_on_host(theta, e_step(theta, rows, fitted))
        # a node looks at its own model and at one over every edge: the first n views, and the rest.
        node = np.concatenate([np.arange(n), block.receiver])
        share = 1 / np.bincount(node)[node]
        for t in range(self.n_rounds):
            models = self._models(theta, (yield Broadcast(theta)), block)
            density = density_rows(models, rows[node])
            share = weighed(share, density, np.where(judging, counts, 0.0), node, self.choice)
            used = counts if t == self.n_rounds - 1 else fitted
            s = e_step(models, rows[node], share[:, None] * used[node])
            came = yield PerNeighbour(jax.tree.map(lambda part: part[n:], s))
            add = lambda own, came: own[:n] + summed(np.asarray(came), block.receiver, n)
            theta = self.m_step_on_host(theta, jax.tree.map(add, s, came))
        models = self._models(theta, (yield Broadcast(theta)), block)
        return Outcome(joined(models, share, node), edges={"share": share[n:]})

    def _models(self, own: Mixture, table: Mixture, block: Block) -> Mixture:
        """The models of all views."""
        heard = over_edges(table, block)
        return jax.tree.map(lambda a, b: np.concatenate([a, b]), own, heard)

    def _judging(self, counts: np.ndarray) -> np.ndarray:
        """The rows that judge models: every fifth, say, or all."""
        if not self.held_out_share:
            return counts > 0
        every = max(2, round(1 / self.held_out_share))
        return (counts > 0) & (np.cumsum(counts > 0, axis=1) % every == 0)


def weighed(
    share: np.ndarray, density: np.ndarray, counts: np.ndarray, node: np.ndarray, choice: str
) -> np.ndarray:
    """New weights (views,) from log-densities (views, rows) of the nodes' rows."""
    n = len(counts)
    with np.errstate(divide="ignore"):
        before = np.log(share)
    if choice == "node":
        return _normalised(before + (density * counts[node]).sum(-1), node, n)
    chosen = _normalised(before[:, None] + density, node, n)
    mass = (chosen * counts[node]).sum(-1)
    total = np.bincount(node, mass, minlength=n)[node]
    return np.where(total > 0, mass / np.where(total > 0, total, 1.0), share)


def _normalised(logarithm: np.ndarray, node: np.ndarray, n: int) -> np.ndarray:
    """Numbers in proportion to the exponentials, with sum one over the views of each node."""
    largest = np.full((n, *logarithm.shape[1:]), -np.inf)
    np.maximum.at(largest, node, logarithm)
    parts = np.exp(logarithm - largest[node])
    return parts / summed(parts, node, n)[node]


def joined(models: Mixture, share: np.ndarray, node: np.ndarray) -> Mixture:
    r"""$\sum_j \pi_{ij}\, p_j$ of every node as one mixture."""
    share, found = np.where(share > SMALLEST_SHARE, share, 0.0), []
    for i in range(node.max() + 1):
        used = np.flatnonzero((node == i) & (share > 0))
        found.append(models.at(used).summed(share[used] / share[used].sum()))
    return Mixture.stack(found)
