r"""Local fits, then averages over edges: GraphFed-EM, C-ColME and FedeRiCo.

**GraphFed-EM** (Abdurakhmanova and Jung, 2025, arXiv 2509.13855): a local EM step, then a step
towards the neighbours' parameters. With matched components, $N_{jc}$ the summed responsibilities
and A the edge weights, after every EM step

$$\theta_{ic} \leftarrow (1 - \alpha)\, \theta_{ic} + \alpha\,
  \frac{\sum_j A_{ij} N_{jc}\, \theta_{jc}}{\sum_j A_{ij} N_{jc}}$$

for weights, means and covariances. No code is public, and the weights of the sum are as we read the
paper's words: parameters of neighbours are weighted by their responsibilities.

**C-ColME** (Galante, Neglia and Leonardi, AAAI 2025, arXiv 2402.12812) estimates means from a
stream. A node with mean $\bar x$ of n rows of noise $\sigma$ keeps a neighbour while
$|\bar x_i - \bar x_j| \le \beta_i + \beta_j$ with

$$\beta = \sigma \sqrt{\tfrac2n \left(1 + \tfrac1n\right) \ln\frac{\sqrt{n+1}}{\gamma}},$$

and averages over kept edges: $y_i \leftarrow (1 - a)\, \bar x_i + a \sum_j W_{ij} y_j$ with
$a = t/(t+1)$ in round t since the last cut and W symmetric. Of the methods compared here this is
the nearest to Trust-then-Pool in idea.

**FedeRiCo** (Sui, Wen, Lau, Ross and Cresswell, 2022, arXiv 2210.06597, *Find your friends*): every
node keeps a model, and predicts with $\sum_j \pi_{ij}\, p_j$. EM: with a hidden choice of one model
per node, $w_{ij} \propto \pi_{ij} \exp \sum_x \ln p_j(x)$ over the rows of node i,
$\pi_{ij} = w_{ij}$, and model j is refitted to the rows of all nodes with weights $w_{ij}$. The
formulas are from the abstract and from memory; no code is public. It is the nearest relative of
weighing several densities per node.
"""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.baselines import FromLocalFits
from fedmixtures.methods.compared.pooling import (
    about_means,
    density_rows,
    e_step,
    explained,
    matched,
    moment_match,
    over_edges,
    padded_rows,
    reordered,
    summed,
)
from fedmixtures.methods.protocol import Block, Broadcast, PerNeighbour
from fedmixtures.mixture.covariance_types import of_type
from fedmixtures.mixture.m_step import EMPTY
from fedmixtures.mixture.mixture import Mixture

REFIT_STEPS = 20  # EM steps on the rows that do not judge, from the fit of all rows
SMALLEST_SHARE = 1e-6  # a neighbour with a smaller weight is left out of the result


class GraphFedEM(FromLocalFits):
    """EM and averaging in turn, from the local fits; k-means alone in the paper.

    Parameters
    ----------
    alpha
        How far to go towards the neighbours: 0 is Local, 1 forgets the own step. Between groups
        with edges across, the authors find 0.4 best.
    n_rounds
        EM steps, each with one exchange.
    """

    alpha: float = 0.4
    n_rounds: int = 40

    def __check_init__(self):
        _checks.share("alpha", self.alpha)
        _checks.whole("n_rounds", self.n_rounds, minimum=0)

    def run(self, block: Block):
        """EM step, exchange, blend."""
        rows, counts = padded_rows(block.data)
        theta = yield self.local(block)
        for _ in range(self.n_rounds):
            s = e_step(theta, rows, counts)
            theta = self.m_step_on_host(theta, s)
            mass, theirs = over_edges((yield Broadcast((s.mass, theta))), block)
            order = matched(theta.means[block.receiver], theirs.means)
            mass, theirs = reordered((mass, theirs), order)
            weight = block.weight[:, None] * mass
            theta = blended(theta, theirs, weight, block.receiver, self.alpha)
            theta = of_type(theta, self.covariance_type)
        return Outcome(theta)


def blended(
    own: Mixture, theirs: Mixture, weight: np.ndarray, here: np.ndarray, alpha: float
) -> Mixture:
    """A step of `alpha` towards the mean of the neighbours by `weight` (edges, k).

    Edges end at the nodes `here`; a component that no neighbour has mass for stays.
    """
    total = summed(weight, here, len(own.weights))
    share = weight / np.maximum(total, EMPTY)[here]
    step = np.where(total > EMPTY, alpha, 0.0)

    def blend(part: Array, others: Array) -> Array:
        per = lambda values: values.reshape(*values.shape, *(1,) * (part.ndim - 2))
        mean = summed(per(share) * others, here, len(part))
        return (1 - per(step)) * part + per(step) * mean

    both = zip(own.parts, theirs.parts, strict=True)
    weights, means, covariances = (blend(part, others) for part, others in both)
    return Mixture(weights / weights.sum(-1, keepdims=True), means, covariances)


class CColME(FromLocalFits):
    r"""Local fits, one test per edge, consensus on the components' moments.

    For mixtures $\bar x$ are the means of matched components, a test per component and feature
    ($\gamma = \delta$ over neighbours, components and features), $\sigma$ the component's own
    standard deviation and n its mass. What is averaged are mass, mean and covariance (as moments,
    so that large components count more), not means alone; a prior is applied to the result, with
    the mass of the closed neighbourhood. All rows are there from the beginning, so that edges are
    cut once. Where all nodes keep all edges this is one-shot consensus of matched moments.

    Parameters
    ----------
    delta
        Chance that a node cuts any neighbour of its own kind.
    n_rounds
        Rounds of averaging.
    """

    delta: float = 0.1
    n_rounds: int = 40

    def __check_init__(self):
        _checks.positive("delta", self.delta)
        _checks.whole("n_rounds", self.n_rounds, minimum=0)

    def run(self, block: Block):
        """Fit, test, average."""
        theta, here = (yield self.local(block)), block.receiver
        n, k, d = theta.means.shape
        own = explained(theta, e_step(theta, *padded_rows(block.data)))
        tests = np.maximum(np.bincount(here, minlength=n), 1) * k * d
        deviations = np.sqrt(np.diagonal(theta.covariances, axis1=-2, axis2=-1))
        widths = half_widths(deviations, own[0], self.delta / tests)
        means, their_widths = over_edges((yield Broadcast((own[1], widths))), block)
        order = matched(own[1][here], means)
        means, their_widths = reordered((means, their_widths), order)
        near = np.abs(own[1][here] - means) <= widths[here] + their_widths
        kept = near.all((-2, -1))
        kept = kept & (yield PerNeighbour(kept))
        degree = np.bincount(here, kept, minlength=n)
        degrees = over_edges((yield Broadcast(degree)), block)
        share = np.where(kept, 1 / (1 + np.maximum(degree[here], degrees)), 0.0)
        mixed = own
        for t in range(1, self.n_rounds + 1):
            theirs = reordered(over_edges((yield Broadcast(mixed)), block), order)
            mixed = averaged(own, mixed, theirs, share, here, t / (t + 1))
        mass, means, covariances = mixed
        pooled = about_means(mass * (1 + degree)[:, None], covariances)
        result = self.m_step_on_host(Mixture(theta.weights, means, theta.covariances), pooled)
        return Outcome(result, edges={"kept": kept})


def half_widths(deviations: np.ndarray, mass: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    r"""$\beta$ of every component and feature; `gamma` (nodes,), `mass` (nodes, k)."""
    logarithm = np.log(np.sqrt(mass + 1) / gamma[:, None])
    return deviations * np.sqrt(2 / mass * (1 + 1 / mass) * logarithm)[..., None]


def averaged(
    own: tuple, mixed: tuple, theirs: tuple, share: np.ndarray, here: np.ndarray, a: float
) -> tuple:
    """One round: own moments with weight 1 - a, those of the closed neighbourhood with a W.

    `share` is W over edges, which end at the nodes `here`; moments lead with nodes or edges.
    """
    n, k, d = own[1].shape
    rest = 1 - np.bincount(here, share, minlength=n)
    weights = np.concatenate([np.full(n, 1 - a), a * rest, a * share])
    node = np.concatenate([np.arange(n), np.arange(n), here])
    mass, means, covariances = map(np.concatenate, zip(own, mixed, theirs, strict=True))
    component = (node[:, None] * k + np.arange(k)).reshape(-1)
    flat = (
        (weights[:, None] * mass).reshape(-1),
        means.reshape(-1, d),
        covariances.reshape(-1, d, d),
    )
    found = moment_match(*flat, component, n * k)
    return tuple(part.reshape(n, k, *part.shape[1:]) for part in found)


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
        theta = yield self.local(block)
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
