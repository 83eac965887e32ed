"""Local: every node fits its own mixture and nobody says a word. The floor of cooperation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.methods.em_fits import EMFits
from fedmixtures.methods.one_shot import Outcome
from fedmixtures.mixture.mixture import Mixture


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
        nothing = np.zeros(data.n_nodes, dtype=np.int64)
        message = fits.message(self.max_iter)
        return Outcome(Mixture.stack(fits.mixtures), nothing, nothing, message)
