r"""How many components, where no number is given: by rows that the fits have not seen.

Clusters are joined components of the level that all nodes share, so it is by this level that the
number is judged: $e(k)$ is its mean log-density, over all rows of the network, of rows that a fit
has not seen. That grows with ever more components where rows are many; a component earns its place
if $e$ grows by at least `WORTH` for each number that it is made of (means, covariance, weight),
whatever the number of rows. Components are added until `PATIENCE` numbers in a row bring no more,
within a range if one is given.
Of the numbers that are worth as much but for `CLOSE`, that one is taken whose clusters are most
stable: they agree best with those that the next smaller and the next larger number give.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedmixtures.engine.solution import FitWarning
from fedmixtures.estimators.agreement import agreement, clusters_of
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.resolve import AUTO, numbers_of
from fedmixtures.mixture.covariance_types import n_parameters

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
    """That was taken."""
    curve: dict[int, float]
    """Mean log-density of unseen rows under the shared level, by number of components."""
    errors: dict[int, float]
    """Standard error, over nodes, of the difference to the number that was taken."""
    stability: dict[int, float]
    """Adjusted Rand index of the clusters with those of the numbers beside it, in the mean."""
    scores: np.ndarray
    """(nodes, numbers) mean log-density of a node's unseen rows."""

    def moved(self, volume: np.ndarray, rows: np.ndarray) -> Search:
        """In units in which densities of the nodes, of so many rows, are lower by so much."""
        off = float(rows @ volume / rows.sum())
        worth = {k: value - off for k, value in self.curve.items()}
        return dataclasses.replace(self, curve=worth, scores=self.scores - volume[:, None])

    @property
    def at_edge(self) -> bool:
        """Whether the largest number that was tried is the best, so that more might be better."""
        return self.n_components == max(self.curve) > 1

    def __str__(self) -> str:
        """The curve, from number to number."""
        other = lambda k: f" ± {1.96 * self.errors[k]:.3f}" if k != self.n_components else ""
        return ", ".join(f"{k}: {worth:.3f}{other(k)}" for k, worth in self.curve.items())


def search_components(
    problem: Problem,
    numbers: Sequence[int] | None = None,
    announce: Callable[[str], Any] | None = None,
    **how: Any,
) -> Search:
    """Fit with more and more components, as far as that is needed to judge them.

    Parameters
    ----------
    problem
        Rows, network and method; the method must have levels. Its numbers of components are not
        looked at.
    numbers
        Which are tried, upwards, as far as it pays; None: all of `numbers_of`.
    announce
        Called with a few words before each fit.
    how
        Seed and the like, as for `Problem.solve`.
    """
    wanted = getattr(problem.method, "n_clusters", None) or AUTO
    method = dataclasses.replace(problem.method, levels=(LEVEL,), n_clusters=wanted)
    data = problem.data
    most, free = int(data.counts.sum()), sum(size - 1 for size in data.categories)
    numbers = numbers or numbers_of(AUTO)
    worth: dict[int, float] = {}
    scores: dict[int, float] = {}
    by_node: list[np.ndarray] = []
    clusters: list[np.ndarray] = []
    rows = np.ones(0)
    for k in numbers:
        if k > max(most, numbers[0]) or _fallen(scores):
            break
        if announce is not None:
            so_far = f" (so far {_best(scores)} is best)" if scores else ""
            announce(f"looking for the number of components: {k}{so_far}")
        own = problem.where(method=method, n_components=k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # fewer rows than components, say
            solution = own.solve(**how)
        levels, rows = solution.levels, solution.rows
        assert levels is not None
        assert rows is not None
        by_node.append(levels.evidence[:, 0])
        worth[k] = float(rows @ by_node[-1] / rows.sum())
        price = max(WORTH, LEAST_WORTH / rows.sum())
        fitted = n_parameters(method.covariance_type, k, data.n_continuous) + k * free
        scores[k] = worth[k] - price * float(fitted)
        clusters.append(clusters_of(solution, own))
    stability = dict(zip(scores, _beside(clusters), strict=True))
    taken, table = _stable(scores, stability), np.stack(by_node, axis=1)
    errors = dict(zip(worth, _errors(table, rows, list(worth).index(taken)), strict=True))
    return Search(taken, worth, errors, stability, table)


def _errors(scores: np.ndarray, rows: np.ndarray, taken: int) -> list[float]:
    """Of mean differences to the column that was taken; nodes count by their rows."""
    share = rows / rows.sum()
    off = scores - scores[:, [taken]]
    return np.sqrt(np.square(share[:, None] * (off - share @ off)).sum(0)).tolist()


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
