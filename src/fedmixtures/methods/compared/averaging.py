r"""Local fits, then averages over edges: GraphFed-EM and C-ColME.

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
"""

from __future__ import annotations

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.baselines import FromLocalFits
from fedmixtures.methods.compared.pooling import (
    about_means,
    component_moments,
    e_step,
    matched,
    moment_match,
    over_edges,
    padded_rows,
    reordered,
    summed,
)
from fedmixtures.methods.conversation import Block, Broadcast, PerNeighbour
from fedmixtures.mixture.covariance_types import of_type
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import EMPTY


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
        theta = self.local_fits(block)
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
        theta, here = self.local_fits(block), block.receiver
        n, k, d = theta.means.shape
        own = component_moments(theta, e_step(theta, *padded_rows(block.data)))
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
