"""What a fitted network says about rows: densities, assignments, criteria, samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.estimators import resolve
from fedmixtures.estimators.convert import to_sklearn
from fedmixtures.estimators.tables import check_finite, split_nodes, text_column
from fedmixtures.init.kmeans import node_seed
from fedmixtures.mixture.mixture import Mixture


class NodeScores:
    """The half of the estimator that needs only mixtures by node and how rows are read."""

    random_state: Any
    nodes_: np.ndarray
    mixtures_: dict[Label, Mixture]
    _theta: Mixture
    _labelled: bool

    def _read(self, X: Any, nodes: Any, *, reset: bool) -> tuple[np.ndarray, Any]:
        """Validated rows and their labels (None if there are none)."""
        given, labels = split_nodes(X, nodes)
        options = {"ensure_min_samples": 2} if reset else {}
        try:
            X = validate_data(
                self, given, reset=reset, dtype=np.float64, ensure_all_finite=False, **options
            )
        except (ValueError, TypeError) as error:
            named = text_column(given)
            if not named:
                raise
            raise ValueError(named) from error
        check_finite(X, labels, getattr(self, "feature_names_in_", None))
        return X, labels

    def _log_joint(self, X: Any, nodes: Any) -> tuple[np.ndarray, NodeData]:
        check_is_fitted(self)
        X, labels = self._read(X, nodes, reset=False)
        if self._labelled and labels is None:
            raise ValueError(
                "`nodes` is missing. The model was fitted with it: give a label per row."
            )
        if not self._labelled and labels is not None:
            raise ValueError("`nodes` was given, but the model was fitted without. Leave it out.")
        data = NodeData.from_rows(X, labels)
        known = {_checks.plain(label): i for i, label in enumerate(self.nodes_)}
        unknown = [label for label in data.labels if label not in known]
        if unknown:
            raise ValueError(
                f"`nodes` names {_checks.listed(unknown)}, which the model was not fitted on. "
                f"Known nodes are {_checks.listed(known)}."
            )
        theta = self._theta.at(np.array([known[label] for label in data.labels]))
        return log_joint_rows(theta, data), data

    def score_samples(self, X: Any, nodes: Any = None) -> np.ndarray:
        """Log-density of every row under its node's mixture."""
        return np.logaddexp.reduce(self._log_joint(X, nodes)[0], axis=1)

    def score(self, X: Any, y: Any = None, nodes: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density over rows."""
        del y
        return float(np.average(self.score_samples(X, nodes), weights=sample_weight))

    def predict(self, X: Any, nodes: Any = None) -> np.ndarray:
        """Most probable component of every row, in the numbering of its node."""
        return first_greatest(self._log_joint(X, nodes)[0], scale=1.0)

    def predict_proba(self, X: Any, nodes: Any = None) -> np.ndarray:
        """Probability of every component for every row."""
        joint = self._log_joint(X, nodes)[0]
        return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))

    def sample(self, n_samples: int = 1, nodes: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows and their components: `n_samples` from the node `nodes`, or from every node.

        Rows come node after node, in the order of `nodes_`.
        """
        check_is_fitted(self)
        _checks.whole("n_samples", n_samples)
        chosen = list(self.mixtures_) if nodes is None else [nodes]
        seed = resolve.resolve_seed(self.random_state)
        draws = [self._mixture(x).sample(n_samples, node_seed(seed, x)) for x in chosen]
        return np.concatenate([x for x, _ in draws]), np.concatenate([c for _, c in draws])

    def bic(self, X: Any, nodes: Any = None) -> float:
        """Bayesian information criterion, summed over nodes; lower is better."""
        return self._criterion(X, nodes, np.log)

    def aic(self, X: Any, nodes: Any = None) -> float:
        """Akaike information criterion, summed over nodes; lower is better."""
        return self._criterion(X, nodes, lambda rows: 2.0)

    def _criterion(self, X: Any, nodes: Any, price: Callable[[int], float]) -> float:
        joint, data = self._log_joint(X, nodes)
        d = data.n_features
        penalty = 0.0
        for label, rows in zip(data.labels, data.counts, strict=True):
            k = self._mixture(label).n_components
            penalty += (k * (1 + d + d * (d + 1) / 2) - 1) * price(rows)
        return float(-2 * np.logaddexp.reduce(joint, axis=1).sum() + penalty)

    def node(self, label: Label):
        """One node's mixture as a fitted scikit-learn `GaussianMixture`."""
        check_is_fitted(self)
        return to_sklearn(self._mixture(label))

    def _mixture(self, label: Label) -> Mixture:
        label = _checks.plain(label)
        if label not in self.mixtures_:
            raise ValueError(
                f"there is no node {label!r}. Known nodes are {_checks.listed(self.mixtures_)}."
            )
        return self.mixtures_[label]
