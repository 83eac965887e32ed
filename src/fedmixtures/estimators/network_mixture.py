"""The scikit-learn face: one Gaussian mixture per node, coupled over a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.transform import in_units_of_fit
from fedmixtures.engine.options import ROUNDS, in_rounds, refuse_idle, used
from fedmixtures.engine.run.watch import Progress, ProgressPrinter
from fedmixtures.estimators import resolve
from fedmixtures.estimators.agreement import of_several
from fedmixtures.estimators.columns import warn_of_columns
from fedmixtures.estimators.default_graph import words_on_default_graph
from fedmixtures.estimators.description import of_solution, take_described
from fedmixtures.estimators.fitted import FittedNetwork
from fedmixtures.estimators.names import aligned, profiles
from fedmixtures.estimators.problem import FitInputs
from fedmixtures.estimators.scoring import assigned, log_joints
from fedmixtures.estimators.search import Search
from fedmixtures.estimators.selection import with_components
from fedmixtures.methods.base import Method


class NetworkGaussianMixture(FittedNetwork, DensityMixin, BaseEstimator):
    """A Gaussian mixture for every node of a network; neighbours borrow strength from each other.

    Every row belongs to a node. Nodes exchange model parameters with their neighbours in `graph`,
    never rows. Without labels and graph this is an ordinary Gaussian mixture; the default method
    gives it a shape prior.

    Parameters
    ----------
    n_components : "auto", range, int or mapping
        Components of every node's mixture, or a mapping from node label to number. With "auto" rows
        that the fits have not seen choose a number (of methods without levels the BIC of each
        node), with a range such as "2:12" one within it.
    n_clusters : "auto", int or None
        Components that unseen rows cannot tell apart are joined into clusters, once for the whole
        network: as far as they go ("auto"), or into so many. None is "auto" where the number of
        components is found, too; where it is given, every component is a cluster. With other
        methods than the default every component is one.
    graph : Network, networkx.Graph, sparse matrix, edge list, "full", "none", "knn:5" or None
        Who may listen to whom, by node label; ``"none"`` is nobody. None: everybody to everybody up
        to 300 nodes, beyond that to the 20 nodes with the most similar means and standard
        deviations; for couplings, which take every edge for true, to the five most similar.
    method : str or object
        ``"trust"``: nodes find out whom to pool with; the paper's ``"gtv-mmd"``, ``"gtv-kl"``,
        ``"gtv-euclidean"``; to compare with, ``"local"``, ``"centralized"``, ``"fedkmeans"``,
        ``"fedgrem"``, ``"consensus-em"``, ``"fedem"``, ``"fedgengmm"``, ``"ifca"``,
        ``"c-colme"``, ``"dfmr"``, ``"fedgem"``, ``"graphfed-em"``, ``"federico"``; or an object
        that carries its own settings, such as ``GTVMin(MMD(), alpha=0.3)``.
    covariance_type : "full", "tied", "diag" or "spherical"
        As in scikit-learn: a matrix for each component, one for all of them, variances of features
        alone, one variance for each component. With few rows or many features the fewer numbers
        are the better fit. `covariances_` are full matrices in any case.
    standardize : bool or None
        Divide every feature by its standard deviation over all rows, for the fit alone: the model
        stays in the units of the rows. None: only for couplings, whose step is made for features of
        order one, and only where a feature's spread within nodes is below 0.5 or above 10.
    transforms : "auto", "none", mapping or None
        Whether skewed columns are fitted by their logarithm or a power: what describes each column
        best, always reversible. ``"auto"`` finds out, ``"none"`` takes all as they are, a mapping
        says ``"log"``, ``"none"`` or ``"auto"`` for some columns by name (others are found out).
        None is "auto" for the default method and "none" for others. All that is asked and answered
        stays in the units of the rows.
    categorical : column names or numbers, or None
        Columns that are categories though they are numbers. Columns of words and of booleans are
        categories by themselves, for the methods that know them: the default, ``"local"``,
        ``"centralized"``, ``"fedem"``.
    n_rounds : int or None
        Exchanges of methods in rounds: couplings, ``"fedkmeans"``, ``"fedgrem"``,
        ``"consensus-em"``, ``"fedem"``, ``"ifca"``. None is 40. The default and other methods know
        themselves when they are done and refuse a number, as they refuse `tol`.
    init : "kmeans", "local", KMeansStart, Local or mapping
        Where nodes start: k-means of own rows, their fits of own rows (by name with a shape prior,
        which couplings need on real tables), or a mapping from node label to `Mixture`.
    n_init : int
        Fits from other seeds; kept is the one whose clusters agree most with those of the others.
    random_state : int, RandomState or None
        Seeds everything random; with an int the same numbers come out again.
    dtype : "float64" or "float32"
        Precision of the fit; methods that are done at once compute in float64.
    on_round : callable or None
        Called with ``{"round", "objective", "fit", "pull"}`` after every round. The default method
        calls it with ``{"round", "step"}`` after every exchange, where `step` is what was asked
        for (a broadcast, a sum), and methods without rounds with their result at the end.
    report_every : int or None
        Rounds (of the default method: exchanges) between two calls of `on_round`, which then come
        in a bunch; None lets the engine choose.
    tol : float or None
        A fit in rounds has converged when no node's parameters change by more than this share of
        their norm in a round; it then stops. 0 runs all rounds, None is 1e-6.
    keep_interrupted : bool
        On Ctrl-C, keep the last finished round with a warning; otherwise KeyboardInterrupt is
        raised. The default method keeps each node's own fit, later everyone's mixture moved to the
        node's rows; methods that are done at once have nothing to keep.
    keep_node_history : bool
        Whether `history_` keeps every node's fit and pull; without rounds it has them anyway.
    checkpoint : path or None
        Where to write what `fit(resume=...)` needs: every `report_every` rounds (10 if not given),
        and after every finished step of the default method.
    devices : int, "all", sequence of jax.Device or None
        Spread the nodes over so many devices that JAX sees (GPUs, hosts, CPU devices); the numbers
        are the same up to rounding. None: one. Only the default method and those in rounds between
        neighbours take several.
    verbose : bool
        Print what the fit is at: one line that is rewritten on a terminal or in a notebook, else
        a line now and then.

    Attributes
    ----------
    mixtures_ : dict
        Node label to `Mixture`.
    labels_ : ndarray
        The most probable cluster of every row that was fitted.
    nodes_ : ndarray
        Node labels, in the order of stacked attributes.
    weights_, means_, covariances_ : ndarray
        Parameters; stacked with a leading node axis if `nodes` were given. Of transformed columns
        medians, and half the width of the middle 68 % for a standard deviation.
        Categories stand last, one column for each: their means are shares, covariances are of the
        others alone.
    categories_ : Categories or None
        Which columns are categorical (`positions`), and their values (`levels`).
    described_ : Description or None
        Columns that were not fitted, by cluster, where `fit` was given any.
    transform_ : Transform
        How each column is taken (`columns`), values that many rows have (`atoms`), and what each
        transform gained for every row, in nats (`gains`).
    history_ : History
        Objective, fit and pull by round; entry 0 is the start.
    status_ : str
        ``"completed"``, ``"diverged"`` (the last good round is kept) or ``"interrupted"``.
    converged_ : bool
        Whether parameters stood still to within `tol` in the last round; for methods without
        rounds, whether EM settled at all nodes.
    n_components_ : int or mapping
        Components that were fitted.
    search_ : Search or ComponentSelection
        What each number of components was worth, if it was to be found: see `select_components`.
    n_clusters_ : int
        How many clusters there are in the whole network.
    n_iter_ : int
        Rounds that were run.
    certificate_ : Certificate or None
        Proposition 1 checked on this run: MMD with one local step.
    traffic_ : Traffic
        Bytes that left each node.
    network_ : Network
        The graph as it was used.
    levels_ : Levels or None
        Where a node's density is a weighted sum of several (own, group, everyone): their mixtures,
        each node's weights and the evidence for them.
    diagnostics_ : Diagnostics or None
        What the method has to tell beside the mixtures: named arrays by node and by edge.
    trust_ : Trust or None
        Who trusts whom and which groups there are, where the diagnostics tell of that.
    solution_ : Solution
        All of this as `fedmixtures.solve` returns it, its mixtures in units of the fit: those of
        ``transform_.apply(X)``. Log-densities are in the units of the rows.
    shards_ : Shards or None
        How the nodes were spread over devices: edges cut, models that cross in a round.
    labelled_ : bool
        Whether rows come with node labels.
    node_column_ : str or None
        The column that named the node of each row in `fit`, if one did.
    """

    def __init__(
        self,
        n_components: int | str | Mapping[Label, int] = "auto",
        *,
        n_clusters: int | str | None = None,
        graph: Any = None,
        method: Any = "trust",
        covariance_type: str = "full",
        standardize: bool | None = False,
        transforms: Any = None,
        categorical: Any = None,
        n_rounds: int | None = None,
        init: Any = "kmeans",
        n_init: int = 1,
        random_state: Any = None,
        dtype: str = "float64",
        on_round: Callable[[dict[str, Any]], Any] | None = None,
        report_every: int | None = None,
        tol: float | None = None,
        keep_interrupted: bool = False,
        keep_node_history: bool = False,
        checkpoint: str | Path | None = None,
        devices: Any = None,
        verbose: bool = False,
    ):
        self.n_components = n_components
        self.n_clusters = n_clusters
        self.graph = graph
        self.method = method
        self.covariance_type = covariance_type
        self.standardize = standardize
        self.transforms = transforms
        self.categorical = categorical
        self.n_rounds = n_rounds
        self.init = init
        self.n_init = n_init
        self.random_state = random_state
        self.dtype = dtype
        self.on_round = on_round
        self.report_every = report_every
        self.tol = tol
        self.keep_interrupted = keep_interrupted
        self.keep_node_history = keep_node_history
        self.checkpoint = checkpoint
        self.devices = devices
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.resolved_method().supports_missing
        return tags

    def fit(
        self,
        X: Any,
        y: Any = None,
        nodes: Any = None,
        sample_weight: Any = None,
        resume: str | Path | None = None,
        like: NetworkGaussianMixture | None = None,
        describe: Any = None,
    ):
        """Fit a mixture per node; a second call starts anew.

        Parameters
        ----------
        X : array or table (rows, features)
            All rows of all nodes. NaN is a missing cell, for methods that fit rows with gaps (the
            default does); such rows are scored and assigned by what is there.
        y
            Ignored, for scikit-learn.
        nodes : array of labels, column name or None
            The node of each row; a column name takes it out of the table.
        sample_weight : array or None
            Weight 2 counts a row twice, 0 not at all.
        resume : path or None
            Go on from a file that `checkpoint` of the same settings and rows has written; the
            numbers come out as if the run had never stopped.
        like : fitted NetworkGaussianMixture or None
            Number the clusters as this earlier fit did. None: the largest first.
        describe : column names, table or None
            Columns that tell what clusters are and are never fitted, such as an outcome: names of
            columns of the table, or a table with the same rows. `atlas_.description()` has their
            shares and means by cluster; missing cells are left out of these.
        """
        del y
        if like is not None:
            check_is_fitted(like)
        settings = self._settings(resume)
        printer = ProgressPrinter(settings.get("n_rounds", 0), bool(self.verbose))
        printer.say("reading rows", lasting=False)
        X, beside = take_described(X, nodes, describe)
        begun = self.begin(X, nodes, sample_weight)
        problem, transform, volume = begun.problem, begun.transform, begun.volume
        data, rows = problem.data, replace(begun.rows, rows=transform.apply(begun.rows.rows))
        resolve.check_clusters(self.n_clusters, self.n_components, problem.method)
        say = partial(printer.say, lasting=False)
        init = in_units_of_fit(resolve.resolve_start(self.init), transform)
        missing = int(np.isnan(data.rows).sum()) if data.has_gaps else 0
        gaps = f" ({missing:,} of {data.rows.size:,} cells missing)" if missing else ""
        words = words_on_default_graph(problem.network) if self.graph is None else ""
        edges = f"{problem.network.n_edges:,} edges{f' ({words})' if words else ''}"
        method = type(problem.method).__name__
        printer.say(
            f"{len(data.rows):,} rows{gaps} of {data.n_nodes:,} nodes, {edges}, by {method}"
        )
        for line in transform.told(self._features()):
            printer.say(line)
        if isinstance(self.n_components, str):
            how = {"seed": settings["seed"], "dtype": self.dtype}
            problem, found = with_components(problem, self.n_components, say, **how)
            self.search_ = found.moved(volume, data.counts) if isinstance(found, Search) else found
            printer.say(f"components: {_checks.listed(sorted(set(problem.n_components)))}")
        elif hasattr(self, "search_"):
            del self.search_
        solve = lambda seed: problem.solve(
            init,
            watch=partial(self._watch, printer),
            checkpoint=self.checkpoint,
            resume=resume,
            announce=say,
            **{**settings, "seed": seed},
        )
        solution = of_several(problem, self.n_init, settings["seed"], solve)
        printer.ended(solution)
        solution = solution.changed(lambda theta: theta, volume)
        kept = None if like is None else profiles(like.solution_.clusters, like.solution_.share)
        if like is not None and kept is not None and like.transform_ != transform:
            kept = transform.of_users(like.transform_.users(kept))
        solution = aligned(solution, problem.network, kept)
        names = getattr(like, "cluster_names_", None)
        taken = {"transform": transform, "categories": self.categories_}
        if beside:
            soft = problem.method.has_likelihood
            taken["described"] = of_solution(beside, solution, rows, soft)
        self.adopt(solution, problem.network, labelled=begun.labelled, **taken)
        if names is not None and len(names) <= solution.n_clusters:
            new = range(len(names), solution.n_clusters)
            self.cluster_names_ = (*names, *map(str, new))
        elif hasattr(self, "cluster_names_"):
            del self.cluster_names_
        if sample_weight is None:
            self.labels_ = assigned(log_joints(self.solution_, rows))
        else:  # rows of weight zero are not among those of the fit
            self.labels_ = self.predict(X, nodes)
        return self

    def begin(self, X: Any, nodes: Any = None, sample_weight: Any = None) -> FitInputs:
        """What `fit` would solve of these rows."""
        X, labels = self._read(X, nodes, reset=True)
        self.node_column_ = nodes if isinstance(nodes, str) else None
        data = self._node_data(X, labels, sample_weight)
        features, method = self._features(), self.resolved_method()
        known = hasattr(self, "feature_names_in_") or data.categories
        warn_of_columns(data, features if known else None, method)
        transform = resolve.resolve_transform(self.transforms, data, features, method)
        inside = self._to_fit(data, transform, resolve.resolve_seed(self.random_state))
        problem, volume = self._problem(inside, self.graph), transform.volume(data)
        return FitInputs(data, problem, transform, volume, labels is not None)

    def resolved_method(self) -> Method:
        """The method with the covariance type, and told how many clusters are wanted."""
        method = super().resolved_method()
        return resolve.resolve_clusters(self.n_clusters, self.n_components, method)

    def _settings(self, resume: str | Path | None) -> dict[str, Any]:
        """How to run, as `solve` takes it; what the method has no use for is refused."""
        rounds = ROUNDS if self.n_rounds is None else self.n_rounds
        tol = resolve.TOL if self.tol is None else self.tol
        _checks.whole("n_rounds", rounds, minimum=0)
        _checks.one_of("dtype", self.dtype, ("float64", "float32"))
        _checks.positive("tol", tol, allow_zero=True)
        if self.report_every is not None:
            _checks.whole("report_every", self.report_every)
        _checks.whole("n_init", self.n_init)
        if self.n_init > 1 and not (self.checkpoint is None and resume is None):
            raise ValueError(
                f"`n_init` is {self.n_init}: a checkpoint is of one fit. Leave `checkpoint` and "
                "`resume` out, or set `n_init` to 1."
            )
        method, devices = self.resolved_method(), resolve.resolve_devices(self.devices)
        names = "n_rounds", "tol", "report_every", "keep_interrupted", "checkpoint", "dtype"
        given = {name: getattr(self, name) for name in names}
        refuse_idle(method, **given, resume=resume, devices=devices)
        watched = self.on_round or self.checkpoint or self.verbose
        return used(
            method,
            n_rounds=int(rounds),
            seed=resolve.resolve_seed(self.random_state),
            dtype=self.dtype,
            tol=float(tol),
            report_every=self.report_every or (10 if watched and in_rounds(method) else None),
            keep_nodes=self.keep_node_history,
            keep_interrupted=bool(self.keep_interrupted),
            devices=devices,
        )

    def _watch(self, printer: ProgressPrinter, progress: Progress) -> None:
        """Pass on what was asked for."""
        printer(progress)
        if self.on_round is not None:
            for record in progress.records:
                self.on_round(record)

    def fit_predict(
        self,
        X: Any,
        y: Any = None,
        nodes: Any = None,
        sample_weight: Any = None,
        describe: Any = None,
    ) -> np.ndarray:
        """Fit, then the most probable cluster of every row."""
        fit = self.fit(X, y, nodes=nodes, sample_weight=sample_weight, describe=describe)
        return fit.labels_
