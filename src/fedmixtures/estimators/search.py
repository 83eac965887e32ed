r"""How many components, where no number is given: by rows that the fits have not seen.

Clusters are joined components of the level that all nodes share, so it is by this level that the
number is judged: $e(k)$ is its mean log-density, over all rows of the network, of rows that a fit
has not seen. That grows with ever more components where rows are many; a component earns its place
if $e$ grows by at least `WORTH` for each number that it is made of (means, covariance, weight),
whatever the number of rows. Components are added until `PATIENCE` numbers in a row bring no more.
Of the numbers that are worth as much but for `CLOSE`, that one is taken whose clusters are most
stable: they agree best with those that the next smaller and the next larger number give.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from fedmixtures.engine.solution import FitWarning
from fedmixtures.estimators.agreement import agreement, clusters_of
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.selection import components_for
from fedmixtures.mixture.covariance_types import n_parameters

NUMBERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
WORTH = 0.002
"""Nats per row for each parameter."""
LEAST_WORTH = 0.25
"""Nats of all rows together for each parameter: what chance brings where rows are few."""
CLOSE = 0.05
"""Nats per row between numbers of components of which stability decides."""
PATIENCE = 2
LEVEL = "personal"


@dataclasses.dataclass(frozen=True)
class Search:
    """What each number of components was worth."""

    n_components: int
    worth: dict[int, float]
    """Mean log-density of unseen rows under the shared level, by number of components."""
    stability: dict[int, float]
    """Adjusted Rand index of the clusters with those of the numbers beside it, in the mean."""


def search_components(
    problem: Problem,
    at_least: int = 1,
    announce: Callable[[str], Any] | None = None,
    **how: Any,
) -> Search:
    """Fit with more and more components, as far as that is needed to judge them.

    Parameters
    ----------
    problem
        Rows, network and method; the method must have levels. Its numbers of components are not
        looked at.
    at_least
        The smallest number: as many as clusters are wanted.
    announce
        Called with a few words before each fit.
    how
        Seed and the like, as for `Problem.solve`.
    """
    wanted = getattr(problem.method, "n_clusters", None) or "auto"
    method = dataclasses.replace(problem.method, levels=(LEVEL,), n_clusters=wanted)
    data = problem.data
    most, free = int(data.counts.sum()), sum(size - 1 for size in data.categories)
    worth: dict[int, float] = {}
    scores: dict[int, float] = {}
    clusters: list[np.ndarray] = []
    for k in (at_least, *(n for n in NUMBERS if n > at_least)):
        if k > max(most, at_least) or _fallen(scores):
            break
        if announce is not None:
            announce(f"looking for the number of components: {k}")
        own = problem.where(method=method, n_components=k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # fewer rows than components, say
            solution = own.solve(**how)
        levels, rows = solution.levels, solution.rows
        assert levels is not None
        assert rows is not None
        worth[k] = float(rows @ levels.evidence[:, 0] / rows.sum())
        price = max(WORTH, LEAST_WORTH / rows.sum())
        numbers = n_parameters(method.covariance_type, k, data.n_continuous) + k * free
        scores[k] = worth[k] - price * float(numbers)
        clusters.append(clusters_of(solution, own))
    stability = dict(zip(scores, _beside(clusters), strict=True))
    return Search(_stable(scores, stability), worth, stability)


def with_components(
    problem: Problem, announce: Callable[[str], Any] | None = None, *, seed: int, dtype: str
) -> Problem:
    """The problem with numbers of components that its rows support.

    Of methods without a shared level, the BIC of every node's own fits.
    """
    method = problem.method
    if method.has_levels and hasattr(method, "n_clusters"):
        wanted = getattr(method, "n_clusters", None)
        at_least = wanted if isinstance(wanted, int) else 1
        found = search_components(problem, at_least, announce, seed=seed, dtype=dtype)
        return problem.where(n_components=found.n_components)
    found = components_for(problem, random_state=seed)
    return problem.where(n_components=found.n_components)


def _beside(clusters: list[np.ndarray]) -> list[float]:
    """Of each number the mean agreement with the next smaller and the next larger one."""
    pairs = [agreement(one, other) for one, other in pairwise(clusters)]
    each = [pairs[max(i - 1, 0) : i + 1] for i in range(len(clusters))]
    return [float(np.mean(known)) if known else 0.0 for known in each]


def _stable(scores: dict[int, float], stability: dict[int, float]) -> int:
    """The most stable of the numbers that are close to the best; of equals the best.

    The best where its clusters agree with none, say because it has but one. Of the last number
    that was tried nobody knows whether the next would agree with it.
    """
    best = _best(scores)
    if stability[best] <= 0:
        return best
    near = [k for k in list(scores)[:-1] if scores[k] >= scores[best] - CLOSE] or [best]
    most = max(round(stability[k], 6) for k in near)
    return _best({k: scores[k] for k in near if round(stability[k], 6) == most})


def _best(scores: dict[int, float]) -> int:
    """The smallest number that no other is better than by more than rounding."""
    values = np.array(list(scores.values()))
    return list(scores)[int(np.argmax(values >= values.max() - 1e-6))]


def _fallen(scores: dict[int, float]) -> bool:
    """Whether the last numbers were all worse than one before."""
    return len(scores) > PATIENCE and list(scores).index(_best(scores)) < len(scores) - PATIENCE
