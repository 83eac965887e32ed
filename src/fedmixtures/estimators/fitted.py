"""The half of the estimator that holds a fitted model: taking it over, telling of it, saving."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.categories import Categories
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.transform import Transform, TransformedMixture, to_fit
from fedmixtures.engine.solution import Solution
from fedmixtures.estimators import resolve
from fedmixtures.estimators.atlas import Atlas, checked_names
from fedmixtures.estimators.columns import without_node_column
from fedmixtures.estimators.description import Description
from fedmixtures.estimators.names import aligned, named_newcomer
from fedmixtures.estimators.node_scores import NodeScores
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.sklearn_api import NestedParameters
from fedmixtures.estimators.solutions import joined, unknown
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Trust


class FittedNetwork(NodeScores, NestedParameters):
    """What needs a solution, its network and the settings of the fit."""

    n_components: Any
    standardize: bool | None
    dtype: str
    network_: Network
    cluster_names_: tuple[str, ...]

    def adopt(
        self,
        solution: Solution,
        network: Network,
        *,
        labelled: bool = True,
        feature_names: Sequence[str] | None = None,
        transform: Transform | None = None,
        categories: Categories | None = None,
        described: Description | None = None,
    ):
        """Take over a solution made elsewhere: by `solve`, from a file, between silos.

        Parameters
        ----------
        solution
            What a run gave back; kept as `solution_`.
        network
            The graph it ran on.
        labelled
            Whether rows come with node labels; without, the solution must have a single node.
        feature_names
            Names of the columns, if they have any.
        transform
            How columns were taken; None: as they are.
        categories
            Which columns of the table are categories; None: none.
        described
            Columns that were not fitted, by the clusters of this solution.
        """
        d = solution.theta.n_features
        self.n_clusters_ = solution.n_clusters
        held = (np.asarray(solution.theta.weights) > 0).sum(-1).tolist()
        same = len(set(held)) == 1
        self.n_components_ = held[0] if same else dict(zip(solution.labels, held, strict=True))
        self.transform_ = taken = Transform.none(d) if transform is None else transform
        if feature_names is not None:
            self.feature_names_in_ = np.array(feature_names, dtype=object)
        self.solution_, self.network_, self.labelled_ = solution, network, labelled
        self.nodes_ = _label_array(solution.labels)
        self.categories_, self.described_ = categories, described
        self.n_features_in_ = d if categories is None else categories.n_columns
        each = (solution.theta.at(i).trimmed() for i in range(len(solution.labels)))
        if not taken.is_identity:
            each = (TransformedMixture(mixture, taken) for mixture in each)
        self.mixtures_ = dict(zip(solution.labels, each, strict=True))
        shown = solution.theta if labelled else solution.theta.at(0)
        self.weights_, self.means_, self.covariances_ = taken.users(shown).parts
        self.history_, self.status_ = solution.history, str(solution.status)
        self.converged_, self.n_iter_ = solution.converged, solution.n_rounds
        self.lower_bounds_ = (-solution.history.objective).tolist()
        self.lower_bound_ = self.lower_bounds_[-1]
        self.certificate_, self.traffic_ = solution.certificate, solution.traffic
        self.shards_, self.levels_ = solution.shards, solution.levels
        self.diagnostics_ = solution.diagnostics
        self.trust_ = Trust.of(solution.diagnostics, network)
        return self

    def adapt(self, X: Any, node: Label, sample_weight: Any = None):
        """Make `node`, which was not fitted, a node of the network; the others stay as they are.

        Where nodes have levels, it gets them: its own fit, everyone's mixture moved to its rows,
        everyone's, weighed by its rows beside the weights of the network. Other methods fit it to
        its own rows alone. It has no neighbours: to be listened to, it must be fitted with them.

        Parameters
        ----------
        X : array or table (rows, features)
            Rows of the node; a table may have the node column of `fit`.
        node
            Its label.
        sample_weight : array or None
            As for `fit`.
        """
        check_is_fitted(self)
        label = _checks.plain(node)
        if not self.labelled_:
            raise ValueError("the model was fitted without `nodes`: it has no network to join.")
        if label in self.solution_.labels:
            raise ValueError(
                f"`node` is {label!r}, which is a node already. Fit again to change it."
            )
        X = without_node_column(X, getattr(self, "node_column_", None), label)
        X, _ = self._read(X, None, reset=False)
        own = self._node_data(X, None, sample_weight)
        data = dataclasses.replace(own, labels=(label,))
        seed = resolve.resolve_seed(self.random_state)
        known = self.solution_, self.network_, self.resolved_method()
        inside = self._to_fit(data, self.transform_, seed)
        solution, network = joined(*known, inside, seed, self.dtype, self.standardize)
        volume = np.append(np.zeros(len(known[0].labels)), self.transform_.volume(data))
        in_users = solution.changed(lambda theta: theta, volume)
        solution = dataclasses.replace(in_users, history=solution.history)
        solution = named_newcomer(solution, label)
        return self.adopt(solution, network, labelled=True, **self._beside())

    @property
    def atlas_(self) -> Atlas:
        """The clusters of the whole network: sizes, profiles, what sets them apart, where they are.

        In the units of the rows, with the numbers that `predict` gives and the names that
        `name_clusters` has set.
        """
        check_is_fitted(self)
        names = getattr(self, "cluster_names_", None)
        known = self.solution_, self._features(), names, self.transform_
        return Atlas.of(*known, self.described_)

    def name_clusters(self, names: Sequence[str]):
        """Call the clusters by names, one for each number; saved with the model."""
        check_is_fitted(self)
        self.cluster_names_ = checked_names(names, self.solution_.n_clusters)
        return self

    def align_components(self):
        """Give alike clusters the same number at all nodes, as `fit` does by itself.

        For solutions that were taken over by `adopt`. Returns the estimator.
        """
        check_is_fitted(self)
        solution, kept = aligned(self.solution_, self.network_), self._beside()
        if not np.array_equal(solution.clusters.weights, self.solution_.clusters.weights):
            kept["described"] = None  # was by the numbers of before
        return self.adopt(solution, self.network_, labelled=self.labelled_, **kept)

    def _beside(self) -> dict[str, Any]:
        """What is known beside the solution, as `adopt` takes it."""
        kept = {"transform": self.transform_, "categories": self.categories_}
        return {**kept, "described": self.described_}

    def report(
        self,
        path: str | Path,
        X: Any,
        nodes: Any = None,
        *,
        held_out: tuple[Any, Any] | None = None,
        static: bool = False,
        include_rows: bool = False,
    ) -> Path:
        """Write the report page: one HTML file that works offline.

        Parameters
        ----------
        path
            File to write.
        X, nodes
            The rows the model was fitted on, for counts and smoothed densities.
        held_out : (X, nodes) or None
            Rows that were not fitted: with them the page says whether listening helped, and whom.
            Every node is then also fitted with its own data only.
        static
            Pictures only, no script: for mail and print.
        include_rows
            Also show every row as a dot; the page then holds your rows.
        """
        from fedmixtures.estimators.reporting import write_report

        data = self._grouped(X, nodes)
        held = None if held_out is None else self._grouped(*held_out)
        if new := unknown(self.solution_, [*data.labels, *(held.labels if held else ())]):
            raise ValueError(
                f"`nodes` names {_checks.listed(new)}, which the report knows nothing of."
            )
        labels = self.solution_.labels
        if data.labels != labels and set(data.labels) == set(labels):  # one has joined later
            data = data.at([data.labels.index(label) for label in labels])
        problem = self._problem(data, self.network_)
        return write_report(self, problem, path, held, static=static, include_rows=include_rows)

    def explain(self, node: Label) -> str:
        """One node in words: whom it listens to, on what evidence, with which weight."""
        from fedmixtures.estimators.reporting import explained

        check_is_fitted(self)
        return explained(self, node)

    def _html_repr(self) -> str:
        """What notebooks show: scikit-learn's diagram, and the network once it is fitted."""
        from fedmixtures.estimators.reporting import in_short, picture

        diagram = super()._html_repr()
        if not hasattr(self, "solution_"):
            return diagram
        return f'<div style="max-width:420px">{picture(self)}<p>{in_short(self)}</p></div>{diagram}'

    def save(self, path: str | Path) -> Path:
        """Write the fitted model as safetensors with a JSON header; `fedmixtures.load` reads it."""
        from fedmixtures.estimators.persist import save

        check_is_fitted(self)
        known = self.solution_, self.network_, self.get_params(deep=False)
        names = getattr(self, "feature_names_in_", None)
        called = getattr(self, "cluster_names_", None)
        return save(
            path,
            *known,
            labelled=self.labelled_,
            feature_names=names,
            cluster_names=called,
            **self._beside(),
        )

    def _to_fit(self, data: NodeData, transform: Transform, seed: int) -> NodeData:
        """Rows as the fit sees them: transformed, atoms spread, categories softened."""
        data = to_fit(data, transform, seed)
        return data if self.categories_ is None else self.categories_.softened(data)

    def _problem(self, data: NodeData, graph: Any) -> Problem:
        """What these settings make of rows; everything that can be checked is."""
        method, k = self.resolved_method(), self.n_components
        if isinstance(k, str):
            k = getattr(self, "n_components_", k)  # until others are found
        return Problem.of(data, graph, method, k, self.standardize)


def _label_array(labels: tuple[Label, ...]) -> np.ndarray:
    """Labels as an array: of their own type where NumPy has one, of objects otherwise."""
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    kinds = {type(label) for label in labels}
    return np.array(labels) if kinds <= {int} or kinds <= {str} else array
