r"""FedGenGMM: local mixtures once to the hub, which fits a mixture to what it draws from them.

Pettersson, Liang and Andresen (2025). The hub forms the union $\sum_i \frac{m_i}{\sum_j m_j} p_i$
of the local mixtures, draws H rows per local component from it, fits one mixture to these rows by
EM and sends it to all nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.init.kmeans import node_seed
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.baselines import EMFits, OneFit
from fedmixtures.mixture.mixture import Mixture

HUB = "the hub"


class FedGenGMM(EMFits):
    """One exchange: local fits up, one mixture of synthetic rows down.

    Nodes may have different numbers of components; the hub's mixture has as many as the largest.
    All settings of the fits hold for nodes and hub alike.

    Parameters
    ----------
    samples_per_component
        H: rows the hub draws per component of the union. (100 is what we remember of the authors'
        setting; no code is public.)
    """

    samples_per_component: int = 100

    def __check_init__(self):
        _checks.whole("samples_per_component", self.samples_per_component)

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """Local fits, synthetic rows, one fit of them."""
        local = self.fit_nodes(data, n_components, theta, seed)
        rows = self.synthetic_rows(local.mixtures, data, seed)
        task = OneFit(HUB, rows, np.ones(len(rows)), max(n_components), node_seed(seed, HUB))
        pooled = self.fit_all([task])
        model = pooled.mixtures[0]
        size = lambda mixture: sum(part.size for part in mixture.parts)
        sent = np.array([size(mixture) + 1 for mixture in local.mixtures])
        received = np.full(data.n_nodes, size(model))
        message = local.message(self.max_iter) or pooled.message(self.max_iter)
        theta = Mixture.stack([model] * data.n_nodes)
        return Outcome(theta, message, sent=sent, received=received)

    def synthetic_rows(self, mixtures: Sequence[Mixture], data: NodeData, seed: int) -> np.ndarray:
        """Rows drawn from the union of the local mixtures, H per component."""
        order = np.argsort([label_hash(label) for label in data.labels], kind="stable")
        rows = data.total_weights()
        weights = np.concatenate([rows[i] * mixtures[i].weights for i in order])
        means = np.concatenate([mixtures[i].means for i in order])
        factors = np.linalg.cholesky(np.concatenate([mixtures[i].covariances for i in order]))
        rng = np.random.default_rng(seed)
        n = self.samples_per_component * len(weights)
        component = rng.choice(len(weights), size=n, p=weights / weights.sum())
        noise = rng.standard_normal((n, data.n_features))
        return means[component] + np.einsum("nij,nj->ni", factors[component], noise)
