"""How much to listen and how many components, from every node's own rows: no labels, no oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.model_selection import BaseCrossValidator

from fedmixtures import _checks
from fedmixtures._ties import first_greatest, first_least
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.splits import folds_of
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.layout.blocks import without_edges
from fedmixtures.engine.options import used
from fedmixtures.engine.solution import FitWarning
from fedmixtures.estimators import resolve
from fedmixtures.estimators.columns import rows_and_nodes
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.resolve import AUTO, numbers_of
from fedmixtures.estimators.scoring import log_densities
from fedmixtures.estimators.search import Search, search_components
from fedmixtures.methods.compared.baselines import Local
from fedmixtures.mixture.covariance_types import n_parameters

ALPHAS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
LARGEST = 8  # number of components whose BIC is looked at
LARGER_ALPHAS = (10.0, 30.0, 100.0, 300.0)  # tried one by one while the largest so far is the best


@dataclass(frozen=True)
class AlphaSelection:
    """What each alpha was worth on rows no model had seen."""

    alpha: float
    alphas: tuple[float, ...]
    scores: np.ndarray  # mean over nodes and folds of held-out log-likelihood, for each alpha
    errors: np.ndarray  # standard error over nodes

    @property
    def at_edge(self) -> bool:
        """Whether the largest value tried is the best, so that a larger one might be better."""
        return self.alpha == max(self.alphas) > 0


def select_alpha(
    X: Any,
    nodes: Any,
    *,
    graph: Any,
    n_components: int | Mapping[Label, int],
    method: Any = "gtv-mmd",
    alphas: Sequence[float] | None = None,
    n_folds: int = 3,
    n_rounds: int | None = None,
    init: Any = "kmeans",
    random_state: int = 0,
    on_fit: Callable[[float, int], Any] | None = None,
) -> AlphaSelection:
    r"""Choose `alpha` by cross-validation on each node's own held-out rows.

    Every node deals its rows into folds; for each alpha and fold all nodes are fitted without that
    fold, and each is scored on it: $\frac1n \sum_i \frac1{m_i} \sum_r \ln p_i(x_r)$, nodes
    counting alike. Between silos every node would report two numbers per alpha and fold.

    Parameters
    ----------
    X, nodes, graph, n_components, method, n_rounds, init, random_state
        As for `NetworkGaussianMixture`; `method` must have an `alpha`.
    alphas
        Values to try; of equally good ones the smallest is taken. None begins with 0 to 3 and goes
        on, each time about three times as far, while the largest is the best.
    n_folds
        Parts the rows of a node are dealt into.
    on_fit
        Called with alpha and fold before each fit.
    """
    program = resolve.resolve_method(method)
    if not hasattr(program, "alpha"):
        raise ValueError(f"`method` is {method!r}, which has no alpha to choose.")
    _checks.whole("n_folds", n_folds, minimum=2)
    problem = Problem.of(
        NodeData.from_rows(*rows_and_nodes(X, nodes)), graph, program, n_components
    )
    how = {"init": resolve.resolve_start(init), "n_rounds": n_rounds, "random_state": random_state}
    return alpha_for(problem, alphas, n_folds, on_fit=on_fit, **how)


def alpha_for(
    problem: Problem,
    alphas: Sequence[float] | None = None,
    n_folds: int = 3,
    *,
    init: Any = None,
    n_rounds: int | None = None,
    random_state: int = 0,
    on_fit: Callable[[float, int], Any] | None = None,
) -> AlphaSelection:
    """Choose `alpha` by cross-validation for a problem: rows are grouped and scaled already."""
    data, method = problem.data, problem.method
    fold = folds_of(data, n_folds, random_state, problem.n_components)
    parts = [
        (problem.where(data=data.subset(~out)), Evaluator(data.subset(out)), out)
        for out in (fold == f for f in range(n_folds))
        if out.any()
    ]
    scored = fold >= 0
    node = np.empty(len(fold), dtype=np.int64)
    node[data.source_index] = data.node_index
    nodes = node[scored]

    def held_out(alpha: float) -> np.ndarray:
        """(nodes,) mean log-density of rows by the fits that have not seen them."""
        values = np.full(len(fold), np.nan)
        for f, (train, test, out) in enumerate(parts):
            if on_fit is not None:
                on_fit(alpha, f)
            one = train.where(method=replace(method, alpha=alpha))
            how = used(one.method, n_rounds=n_rounds, tol=resolve.TOL)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)  # a bad alpha is what we look for
                solution = one.solve(init, seed=random_state, **how)
            values[out] = log_densities(solution, test)
        counts = np.bincount(nodes)
        return (np.bincount(nodes, values[scored]) / counts.clip(1))[counts > 0]

    tried: list[float] = []
    rows: list[np.ndarray] = []
    more = list(LARGER_ALPHAS) if alphas is None else []
    waiting = [float(alpha) for alpha in (ALPHAS if alphas is None else alphas)]
    best = 0
    while waiting:
        tried.append(waiting.pop(0))
        rows.append(held_out(tried[-1]))
        best = int(first_greatest(np.array([row.mean() for row in rows]), scale=1.0))
        if not waiting and best == len(tried) - 1 and more:
            waiting.append(more.pop(0))
    table = np.array(rows)
    scores = table.mean(1)
    errors = table.std(1, ddof=1) / np.sqrt(table.shape[1]) if table.shape[1] > 1 else 0 * scores
    return AlphaSelection(tried[best], tuple(tried), scores, errors)


class NodeKFold(BaseCrossValidator):
    """Folds that deal every node's rows: each node is in every training set.

    For `GridSearchCV` and `cross_val_score`, with the node of each row as `groups`, or as `y`.

    Parameters
    ----------
    n_splits
        Parts the rows of every node are dealt into.
    random_state
        Seeds the deal; a node's own deal depends on its label and on nothing else.
    min_train
        A node keeps at least so many rows in every training set; one with too few to spare is
        never held out.
    """

    def __init__(self, n_splits: int = 5, *, random_state: int = 0, min_train: int = 1):
        self.n_splits, self.random_state, self.min_train = n_splits, random_state, min_train

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many folds there are."""
        del X, y, groups
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None):
        """Positions to train on and to test on, for every fold."""
        _checks.whole("n_splits", self.n_splits, minimum=2)
        nodes = groups if groups is not None else y
        if nodes is None:
            raise ValueError("`groups` is missing. Give the node of each row, as groups or as y.")
        nodes = np.asarray(nodes)
        data = NodeData.from_rows(np.zeros((len(nodes), 0)), nodes)
        least = [self.min_train] * data.n_nodes
        fold = folds_of(data, self.n_splits, self.random_state, least)
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


@dataclass(frozen=True)
class ComponentSelection:
    """How many components the rows of each node support by their own BIC."""

    n_components: dict[Label, int]
    candidates: tuple[int, ...]  # those that were tried
    bic: np.ndarray
    """Criterion (nodes, candidates), infinite where a node has too few rows; lower is better."""

    @property
    def curve(self) -> dict[int, float]:
        """What each number was worth: the mean over nodes of minus half the BIC.

        A number that some node has too few rows for is left out.
        """
        each = dict(zip(self.candidates, (-0.5 * self.bic).mean(0).tolist(), strict=True))
        return {k: value for k, value in each.items() if np.isfinite(value)}


def select_components(
    X: Any,
    nodes: Any,
    *,
    candidates: str | Sequence[int] = AUTO,
    method: Any = "trust",
    graph: Any = None,
    random_state: int = 0,
    announce: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Search | ComponentSelection:
    r"""Choose the number of components: of all nodes by held-out rows, or of every node by its BIC.

    As a fit with ``n_components="auto"`` does it, and with the same result. With the default method
    one number for all nodes: fits with more and more components are judged by the log-density of
    rows that they have not seen, until two numbers in a row are worth no more. The result has
    `n_components`, the `curve` (number to mean log-density per row), its `errors` (standard errors,
    over nodes, of differences to the number that was taken) and `stability`.

    For methods without levels, $\mathrm{BIC}_i(k) = -2 \sum_r \ln p(x_r) + p \ln m_i$ with p free
    parameters, for mixtures of the method's covariance type that each node fits alone. Where
    `method` needs one number for all nodes, the criterion is summed over nodes first.

    Parameters
    ----------
    X, nodes, method, graph, random_state
        As for `NetworkGaussianMixture`; `settings` are others of it, such as `categorical`.
    candidates
        ``"auto"``: as far as it pays (for BIC 1 to 8). A range as ``"2:12"``, or numbers, upwards.
    announce
        Called with a few words before each fit.
    """
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture  # it needs this file

    model = NetworkGaussianMixture(
        method=method, graph=graph, random_state=random_state, **settings
    )
    begun = model.begin(X, nodes)
    numbers = _candidates(candidates) if isinstance(candidates, str) else tuple(candidates)
    if not _by_levels(begun.problem.method):
        return components_for(begun.problem, numbers, random_state=random_state)
    if candidates == AUTO:
        numbers = numbers_of(AUTO)
    seed = resolve.resolve_seed(random_state)
    found = search_components(begun.problem, numbers, announce, seed=seed, dtype=model.dtype)
    return found.moved(begun.volume, begun.problem.data.counts)


def components_for(
    problem: Problem,
    candidates: Sequence[int] = tuple(range(1, LARGEST + 1)),
    *,
    random_state: int = 0,
    on_fit: Callable[[int], Any] | None = None,
) -> ComponentSelection:
    """Choose how many components for a problem: rows are grouped and scaled already."""
    data, method = problem.data, problem.method
    kind, d = method.covariance_type, data.n_features
    distinct = np.array([len(np.unique(data.of(i)[0], axis=0)) for i in range(data.n_nodes)])
    bic = np.full((data.n_nodes, len(candidates)), np.inf)
    for c, k in enumerate(candidates):
        # a full covariance of fewer than d + 1 rows is no evidence, a variance of one row is none.
        least = d + 1 if kind == "full" else 2
        enough = (distinct >= k) & ((data.counts >= k * least) | (k == 1))
        if not enough.any():
            continue
        if on_fit is not None:
            on_fit(k)
        some = data.at(np.flatnonzero(enough))
        alone = Local(engine="jax", reg_covar=1e-3, covariance_type=kind)
        one = Problem(some, without_edges(some.labels), alone, [k] * some.n_nodes, problem.scale)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            fit = one.checked().solve(seed=random_state).history.node_fit
        assert fit is not None
        counts = some.counts
        bic[enough, c] = 2 * fit[-1] * counts + n_parameters(kind, k, d) * np.log(counts)
    chosen = np.array(candidates)[first_least(bic, scale=data.counts)]
    if method.needs_equal_components:
        allowed = np.isfinite(bic).all(0)
        if not allowed.any():
            raise ValueError("`candidates` holds no number that every node has rows for.")
        total = np.where(allowed, bic.sum(0), np.inf)
        chosen[:] = candidates[int(first_least(total, scale=len(data.rows)))]
    return ComponentSelection(
        dict(zip(data.labels, chosen.tolist(), strict=True)), tuple(candidates), bic
    )


def with_components(
    problem: Problem,
    asked: str = AUTO,
    announce: Callable[[str], Any] | None = None,
    *,
    seed: int,
    dtype: str,
) -> tuple[Problem, Search | ComponentSelection]:
    """The problem with numbers of components that its rows support, and what each was worth.

    Of methods without a shared level, the BIC of every node's own fits.
    """
    method, how = problem.method, {"seed": seed, "dtype": dtype}
    if _by_levels(method):
        wanted = getattr(method, "n_clusters", None)
        numbers = numbers_of(asked, at_least=wanted if isinstance(wanted, int) else 1)
        found = search_components(problem, numbers, announce, **how)
    else:
        found = components_for(problem, _candidates(asked), random_state=seed)
    return problem.where(n_components=found.n_components), found


def _by_levels(method: Any) -> bool:
    """Whether unseen rows tell what a number of components is worth."""
    return method.has_levels and hasattr(method, "n_clusters")


def _candidates(asked: str) -> Sequence[int]:
    """Numbers whose BIC is looked at."""
    return range(1, LARGEST + 1) if asked == AUTO else numbers_of(asked)
