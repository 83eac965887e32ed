"""No cooperation, and all rows in one place: the two ends between which federation lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.em_fits import EMFits, OneFit
from fedmixtures.mixture.mixture import Mixture

POOL = "all nodes together"


class Local(EMFits):
    """An ordinary Gaussian mixture at every node (scikit-learn's, as in the paper).

    With few rows per component near-singular components are normal, and so is a likelihood far
    below that of the training rows. That is what cooperation mends; a larger `reg_covar` hides it.
    """

    @property
    def recipients(self) -> Literal["hub", "nobody"]:
        """Nothing is sent."""
        return "nobody"

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """One fit per node, seeded by its label."""
        fits = self.fit_nodes(data, n_components, theta, seed)
        return Outcome(Mixture.stack(fits.mixtures), fits.message(self.max_iter))


class Centralized(EMFits):
    """An ordinary Gaussian mixture of all nodes' rows (scikit-learn's, as in the paper).

    The upper bound where nodes share one distribution; where they do not, it blends them. Every
    row leaves its node.
    """

    moves_rows: ClassVar[bool] = True

    @property
    def recipients(self) -> Literal["hub", "nobody"]:
        """Rows go to the hub."""
        return "hub"

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """One mixture for all has one number of components."""
        del network
        _checks.same_components("Centralized", n_components)

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """One fit of the pooled rows; a given start is that of the first node."""
        start = None if theta is None else theta.at(0).trimmed()
        fits = self.fit_all(
            [OneFit(POOL, data.rows, data.row_weights, n_components[0], seed, start)]
        )
        weighted = not (data.row_weights == 1).all()
        sent = data.counts * (data.n_features + weighted)
        model = fits.mixtures[0]
        received = np.full(data.n_nodes, sum(part.size for part in model.parts))
        theta = Mixture.stack([model] * data.n_nodes)
        return Outcome(theta, fits.message(self.max_iter), sent=sent, received=received)
