r"""GraphFed-EM: a local EM step, then a step towards the neighbours' parameters.

Abdurakhmanova and Jung (2025, arXiv 2509.13855). With matched components, $N_{jc}$ the summed
responsibilities and A the edge weights, after every EM step

$$\theta_{ic} \leftarrow (1 - \alpha)\, \theta_{ic} + \alpha\,
  \frac{\sum_j A_{ij} N_{jc}\, \theta_{jc}}{\sum_j A_{ij} N_{jc}}$$

for weights, means and covariances. No code is public, and the weights of the sum are as we read the
paper's words: parameters of neighbours are weighted by their responsibilities.
"""

from __future__ import annotations

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Array
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.from_local_fits import (
    FromLocalFits,
    e_step,
    matched,
    over_edges,
    padded_rows,
    reordered,
)
from fedmixtures.methods.compared.pooling import check_share, summed
from fedmixtures.methods.conversation import Block, Broadcast
from fedmixtures.mixture.covariance_types import of_type
from fedmixtures.mixture.em import EMPTY
from fedmixtures.mixture.mixture import Mixture


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
        check_share("alpha", self.alpha)
        _checks.whole("n_rounds", self.n_rounds, minimum=0)

    def run(self, block: Block):
        """EM step, exchange, blend."""
        rows, counts = padded_rows(block.data)
        theta = self.local_fits(block)
        for _ in range(self.n_rounds):
            s = e_step(theta, rows, counts)
            theta = self.m_step(theta, s)
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
