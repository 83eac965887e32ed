"""The half of the estimator that is asked about rows: scores, clusters, criteria, samples."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.categories import Categories, found_in, with_codes
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.transform import Transform
from fedmixtures.engine.solution import FitWarning, Solution
from fedmixtures.estimators import resolve
from fedmixtures.estimators.columns import check_finite, refuse_dates, split_nodes, text_column
from fedmixtures.estimators.description import without_described
from fedmixtures.estimators.scoring import (
    DENSITY,
    assigned,
    log_joints,
    mixture_at,
    node_places,
    probabilities,
    user_densities,
)
from fedmixtures.estimators.sklearn_api import to_sklearn
from fedmixtures.estimators.solutions import newcomer_density, warn_of_newcomers
from fedmixtures.init import node_seed
from fedmixtures.methods.base import Method
from fedmixtures.mixture.covariance_types import is_of_type, n_parameters
from fedmixtures.mixture.density import conditional_draws, conditional_means


class NodeScores:
    """What needs only a solution and how rows are read."""

    method: Any
    covariance_type: str
    random_state: Any
    solution_: Solution
    labelled_: bool
    transform_: Transform
    categorical: Any
    categories_: Categories | None
    n_features_in_: int

    def _read(self, X: Any, nodes: Any, *, reset: bool) -> tuple[np.ndarray, Any]:
        """Validated rows and their labels (None if there are none)."""
        if not reset:
            fitted = getattr(self, "feature_names_in_", ())
            X = without_described(X, getattr(self, "described_", None), tuple(fitted))
        given, labels = split_nodes(X, nodes)
        refuse_dates(given)
        if reset:
            able = self.resolved_method().supports_categories
            self.categories_ = found_in(given, self.categorical, able)
        if self.categories_ is not None:
            given = self._with_codes(given)
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
        names, gaps = (
            getattr(self, "feature_names_in_", None),
            self.resolved_method().supports_missing,
        )
        check_finite(X, labels, names, gaps)
        return X, labels

    def _with_codes(self, X: Any) -> Any:
        """The table with numbers in place of categories; a warning of what is unknown."""
        assert self.categories_ is not None
        X, unknown = with_codes(X, self.categories_)
        for name, values in unknown:
            warnings.warn(
                f"column {name!r} holds {_checks.listed(values)}, which the model was not fitted "
                "on: taken as missing.",
                FitWarning,
                stacklevel=5,
            )
        return X

    def _node_data(self, X: np.ndarray, labels: Any, sample_weight: Any = None) -> NodeData:
        """Rows by node; categories as one-hot columns, which come last."""
        if self.categories_ is None:
            return NodeData.from_rows(X, labels, sample_weight)
        data = NodeData.from_rows(self.categories_.encoded(X), labels, sample_weight)
        return dataclasses.replace(data, categories=self.categories_.sizes)

    def _rows_of(self, rows: np.ndarray, label: Label) -> NodeData:
        """Rows of one node in the units of the fit."""
        sizes = () if self.categories_ is None else self.categories_.sizes
        return dataclasses.replace(NodeData.from_rows(rows), labels=(label,), categories=sizes)

    def _given_features(self) -> tuple[str, ...]:
        """Names of the columns of the table, or x0, x1, ..."""
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{i}" for i in range(self.n_features_in_)] if names is None else names
        return tuple(map(str, names))

    def _features(self) -> tuple[str, ...]:
        """Names of the columns of the fit: categories are one-hot."""
        names, kinds = self._given_features(), self.categories_
        return names if kinds is None else kinds.names(names)

    def resolved_method(self) -> Method:
        """The method with the covariance type."""
        return resolve.resolve_method(self.method, self.covariance_type)

    def _grouped(self, X: Any, nodes: Any) -> NodeData:
        """Rows to be scored, by node, in units of the fit."""
        data = self._as_given(X, nodes)
        return dataclasses.replace(data, rows=self.transform_.apply(data.rows))

    def _as_given(self, X: Any, nodes: Any) -> NodeData:
        """Rows to be scored, by node; a warning of nodes that were not fitted."""
        check_is_fitted(self)
        X, labels = self._read(X, nodes, reset=False)
        if self.labelled_ and labels is None:
            raise ValueError(
                "`nodes` is missing. The model was fitted with it: give a label per row."
            )
        if not self.labelled_ and labels is not None:
            raise ValueError("`nodes` was given, but the model was fitted without. Leave it out.")
        data = self._node_data(X, labels)
        warn_of_newcomers(self.solution_, data.labels)
        return data

    def score_samples(self, X: Any, nodes: Any = None) -> np.ndarray:
        """Log-density of every row at its node: of the node's mixture, or of its levels weighed.

        A node that was not fitted is taken as everyone, with a warning.
        """
        data = self._as_given(X, nodes)
        return user_densities(self.solution_, self.transform_, data)

    def score(self, X: Any, y: Any = None, nodes: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density over rows."""
        del y
        return float(np.average(self.score_samples(X, nodes), weights=sample_weight))

    def predict(self, X: Any, nodes: Any = None) -> np.ndarray:
        """Most probable cluster of every row; a number means the same at every node."""
        data = self._grouped(X, nodes)
        return assigned(log_joints(self.solution_, data))

    def predict_proba(self, X: Any, nodes: Any = None) -> np.ndarray:
        """Probability of every cluster for every row; a column means the same at every node."""
        data = self._grouped(X, nodes)
        return probabilities(log_joints(self.solution_, data))

    def sample(self, n_samples: int = 1, nodes: Any = None) -> tuple[Any, np.ndarray]:
        """Draw rows and their components: `n_samples` from the node `nodes`, or from every node.

        With categories the rows are a pandas table.

        Rows come node after node, in the order of `nodes_`. Where a node has several levels, they
        are drawn from its density, and the component is the most probable one.
        """
        check_is_fitted(self)
        _checks.whole("n_samples", n_samples)
        solution = self.solution_
        seed = resolve.resolve_seed(self.random_state)
        rows, components = [], []
        for label in solution.labels if nodes is None else [nodes]:
            density = mixture_at(solution, label, DENSITY)
            x, component = density.sample(n_samples, node_seed(seed, label))
            if solution.levels is not None:
                own = self._rows_of(x, label)
                component = assigned(log_joints(solution, own))
            rows.append(self.transform_.invert(x))
            components.append(component)
        found = np.concatenate(rows)
        return self._as_table(found, seed), np.concatenate(components)

    def _as_table(self, rows: np.ndarray, seed: int | None) -> Any:
        """Rows as they are; with categories a pandas table of them, drawn if there is a seed."""
        if self.categories_ is None:
            return rows
        import pandas as pd

        rng = None if seed is None else np.random.default_rng([seed, len(rows)])
        return pd.DataFrame(self.categories_.decoded(rows, self._given_features(), rng))

    def impute(
        self, X: Any, nodes: Any = None, *, n_draws: int | None = None, random_state: Any = None
    ) -> Any:
        """Rows with their missing cells (NaN) filled in by what the node's density says of them.

        Parameters
        ----------
        X, nodes
            As for `score_samples`.
        n_draws : int or None
            None: expectations given the other cells of the row (of transformed columns taken in
            units of the fit, so that they are more like medians). A number: so many draws, which
            keep the spread and the dependence that expectations lose.
        random_state
            Seeds the draws; None is the estimator's.

        Returns
        -------
        ndarray or table
            A table is given back as one of its kind, with all its columns; a category that was
            missing is the most probable one. An array as one of its shape, with categories as a
            pandas table. Of draws (n_draws, rows, features), or a list of tables.
        """
        if n_draws is not None:
            _checks.whole("n_draws", n_draws)
        given, solution, taken = self._as_given(X, nodes), self.solution_, self.transform_
        data = dataclasses.replace(given, rows=taken.apply(given.rows))
        seed = resolve.resolve_seed(self.random_state if random_state is None else random_state)
        shape = data.rows.shape if n_draws is None else (n_draws, *data.rows.shape)
        filled = np.empty(shape)
        for i, label in enumerate(data.labels):
            rows, _ = data.of(i)
            new = label not in solution.labels
            density = newcomer_density(solution) if new else mixture_at(solution, label, DENSITY)
            if n_draws is None:
                found = conditional_means(density, rows)
            else:
                rng = np.random.default_rng(node_seed(seed, label))
                found = conditional_draws(density, rows, n_draws, rng)
            here, (known, _) = data.source_index[data.offsets[i] : data.offsets[i + 1]], given.of(i)
            filled[..., here, :] = np.where(np.isnan(known), taken.invert(found), known)
        if self.categories_ is None and not hasattr(X, "columns"):
            return filled
        if n_draws is None:
            return self._as_given_table(X, filled, None)
        return [self._as_given_table(X, filled[i], seed + i) for i in range(n_draws)]

    def _as_given_table(self, X: Any, rows: np.ndarray, seed: int | None) -> Any:
        """The table that was given, with the columns that have gaps replaced."""
        import narwhals as nw

        frame = nw.from_native(X, eager_only=True, pass_through=True)
        names = getattr(self, "feature_names_in_", None)
        if not isinstance(frame, nw.DataFrame) or names is None:
            return self._as_table(rows, seed)
        names = tuple(map(str, names))
        if self.categories_ is None:
            columns = dict(zip(names, rows.T, strict=True))
        else:
            rng = None if seed is None else np.random.default_rng([seed, len(rows)])
            columns = self.categories_.decoded(rows, names, rng)
        kind = nw.get_native_namespace(frame)
        new = []
        for name, values in columns.items():
            gone = np.array([cell is None or cell != cell for cell in frame[name].to_list()])
            if gone.any():
                new.append(nw.new_series(name, values.tolist(), backend=kind))
        return frame.with_columns(*new).to_native() if new else X

    def bic(self, X: Any, nodes: Any = None) -> float:
        """Bayesian information criterion, summed over nodes; lower is better."""
        return self._criterion(X, nodes, np.log)

    def aic(self, X: Any, nodes: Any = None) -> float:
        """Akaike information criterion, summed over nodes; lower is better."""
        return self._criterion(X, nodes, lambda rows: 2.0)

    def _criterion(self, X: Any, nodes: Any, price: Callable[[np.ndarray], Any]) -> float:
        """Of the clusters: a density of several levels has no number of parameters of its own."""
        given = self._as_given(X, nodes)
        data = dataclasses.replace(given, rows=self.transform_.apply(given.rows))
        k = (self.solution_.theta.weights[node_places(self.solution_, data)] > 0).sum(1)
        g, kinds = data.n_continuous, data.categories
        free = n_parameters(self.resolved_method().covariance_type, k, g)
        free = free + k * (sum(kinds) - len(kinds))
        joint = log_joints(self.solution_, data)
        fit = (
            np.logaddexp.reduce(joint, axis=1).sum() + self.transform_.log_slopes(given.rows).sum()
        )
        return float(-2 * fit + (free * price(data.counts)).sum())

    def node(self, label: Label, level: str | None = None):
        """One node's mixture as a fitted scikit-learn `GaussianMixture` of the covariance type.

        (Of full covariances where levels of several tied ones are joined.) Where columns are
        transformed, it is one of ``transform_.apply(X)``.

        Parameters
        ----------
        label
            The node.
        level : str or None
            None: its clusters, what `predict` assigns to. A name of `levels_.names`: that level.
            ``"density"``: what `score_samples` scores, all levels weighed.
        """
        check_is_fitted(self)
        mixture = mixture_at(self.solution_, label, level)
        kind = self.resolved_method().covariance_type
        if self.categories_ is not None:
            raise ValueError(
                "the model has categorical columns, which scikit-learn's GaussianMixture does not "
                "know. Take `mixtures_` or `atlas_`."
            )
        return to_sklearn(mixture, kind if is_of_type(mixture, kind) else "full")
