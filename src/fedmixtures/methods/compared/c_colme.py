r"""C-ColME: cut edges by a confidence test, average over those that are left.

Galante, Neglia and Leonardi (AAAI 2025, arXiv 2402.12812) estimate means from a stream. A node with
mean $\bar x$ of n rows of noise $\sigma$ keeps a neighbour while
$|\bar x_i - \bar x_j| \le \beta_i + \beta_j$ with

$$\beta = \sigma \sqrt{\tfrac2n \left(1 + \tfrac1n\right) \ln\frac{\sqrt{n+1}}{\gamma}},$$

and averages over kept edges: $y_i \leftarrow (1 - a)\, \bar x_i + a \sum_j W_{ij} y_j$ with
$a = t/(t+1)$ in round t since the last cut and W symmetric. Of the methods compared here this is
the nearest to Trust-then-Pool in idea.
"""

from __future__ import annotations

import numpy as np

from fedmixtures import _checks
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.from_local_fits import (
    FromLocalFits,
    about_means,
    component_moments,
    e_step,
    matched,
    over_edges,
    padded_rows,
    reordered,
)
from fedmixtures.methods.compared.pooling import moment_match
from fedmixtures.methods.conversation import Block, Broadcast, PerNeighbour
from fedmixtures.mixture.mixture import Mixture


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
        result = self.m_step(Mixture(theta.weights, means, theta.covariances), pooled)
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
