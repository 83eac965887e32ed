r"""FedeRiCo: every node keeps a model, and weighs the models of its neighbours by its own rows.

Sui, Wen, Lau, Ross and Cresswell (2022, arXiv 2210.06597), *Find your friends*. Node i predicts
with $\sum_j \pi_{ij}\, p_j$. EM: with a hidden choice of one model per node, $w_{ij} \propto \pi_{ij}
\exp \sum_x \ln p_j(x)$ over the rows of node i, $\pi_{ij} = w_{ij}$, and model j is refitted to the
rows of all nodes with weights $w_{ij}$. The formulas are from the abstract and from memory; no code
is public. It is the nearest relative of weighing several densities per node.
"""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures.methods.base import Block, Broadcast, Outcome, PerNeighbour
from fedmixtures.methods.compared.from_local_fits import (
    FromLocalFits,
    density_rows,
    e_step,
    padded_rows,
)
from fedmixtures.methods.compared.pooling import check_share
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.statistics import Statistics

SMALLEST_SHARE = 1e-6
"""A neighbour with a smaller weight is left out of the result."""


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
        check_share("held_out_share", self.held_out_share, 0.5)
        _checks.whole("n_rounds", self.n_rounds, minimum=1)

    def run(self, block: Block):
        """Exchange models, weigh them, exchange statistics, refit."""
        rows, counts = padded_rows(block.data)
        judging = self._judging(counts)
        fitted = np.where(judging, 0.0, counts) if self.held_out_share else counts
        present = np.concatenate([np.ones((len(rows), 1), bool), block.present], axis=1)
        share = present / present.sum(1, keepdims=True)
        theta = self.local_fits(block)
        if self.held_out_share:
            theta = self._refitted(theta, rows, fitted)
        for t in range(self.n_rounds):
            theirs = yield Broadcast(theta)
            models = jax.tree.map(lambda a, b: np.concatenate([a[:, None], b], 1), theta, theirs)
            models = filled(models, theta, present)
            log_density = density_rows(models, rows)
            share = weighed(share, log_density, np.where(judging, counts, 0.0), self.choice)
            used = counts if t == self.n_rounds - 1 else fitted
            s = statistics_of_slots(models, rows, share[..., None] * used[:, None])
            answers = yield PerNeighbour(jax.tree.map(lambda part: part[:, 1:], s))
            total = jax.tree.map(lambda own, came: own[:, 0] + came.sum(1), s, answers)
            theta = self.m_step(theta, total)
        theirs = yield Broadcast(theta)
        models = jax.tree.map(lambda a, b: np.concatenate([a[:, None], b], 1), theta, theirs)
        return Outcome(joined(models, share), slots={"share": share[:, 1:]})

    def _judging(self, counts: np.ndarray) -> np.ndarray:
        """The rows that judge models: every fifth, say, or all."""
        if not self.held_out_share:
            return counts > 0
        every = max(2, round(1 / self.held_out_share))
        return (counts > 0) & (np.arange(counts.shape[1]) % every == every - 1)

    def _refitted(self, theta: Mixture, rows: np.ndarray, counts: np.ndarray) -> Mixture:
        """EM on the rows that do not judge, from the fit of all rows."""
        for _ in range(REFIT_STEPS):
            theta = self.m_step(theta, e_step(theta, rows, counts))
        return theta


REFIT_STEPS = 20


def weighed(
    share: np.ndarray, log_density: np.ndarray, counts: np.ndarray, choice: str
) -> np.ndarray:
    """New weights (nodes, models) from log-densities (nodes, models, rows)."""
    with np.errstate(divide="ignore"):
        before = np.log(share)
    if choice == "node":
        joint = before + (log_density * counts[:, None]).sum(-1)
        return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    joint = before[..., None] + log_density
    chosen = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    mass = (chosen * counts[:, None]).sum(-1)
    total = mass.sum(1, keepdims=True)
    return np.where(total > 0, mass / np.where(total > 0, total, 1.0), share)


def filled(models: Mixture, own: Mixture, present: np.ndarray) -> Mixture:
    """The own model where there is no neighbour, so that every slot holds a mixture."""
    empty = lambda part: ~present.reshape(*present.shape, *(1,) * (part.ndim - 2))
    return jax.tree.map(lambda part, a: np.where(empty(part), a[:, None], part), models, own)


def statistics_of_slots(models: Mixture, rows: np.ndarray, counts: np.ndarray) -> Statistics:
    """Statistics of each node's rows under each of its models, (nodes, models, ...)."""
    n, s = counts.shape[:2]
    flat = jax.tree.map(lambda part: part.reshape(n * s, *part.shape[2:]), models)
    found = e_step(flat, np.repeat(rows, s, axis=0), counts.reshape(n * s, -1))
    return jax.tree.map(lambda part: part.reshape(n, s, *part.shape[1:]), found)


def joined(models: Mixture, share: np.ndarray) -> Mixture:
    r"""$\sum_j \pi_{ij}\, p_j$ of every node as one mixture."""
    share = np.where(share > SMALLEST_SHARE, share, 0.0)
    found = []
    for i, own in enumerate(share / share.sum(1, keepdims=True)):
        used = np.flatnonzero(own)
        weights, means, covariances = (part[i, used] for part in models.parts)
        flat = lambda part: part.reshape(-1, *part.shape[2:])
        found.append(Mixture(flat(own[used, None] * weights), flat(means), flat(covariances)))
    return Mixture.stack(found)
