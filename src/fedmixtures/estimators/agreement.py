"""How far fits agree about clusters: the adjusted Rand index of the rows they were fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmixtures.engine.solution import Solution
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.scoring import assigned, log_joints


def clusters_of(solution: Solution, problem: Problem) -> np.ndarray:
    """(rows,) the most probable cluster of every row that was fitted."""
    return assigned(log_joints(solution, problem.data))


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """1 for the same clusters, about 0 for chance; 0 where either has but one cluster."""
    from sklearn.metrics import adjusted_rand_score

    if min(len(np.unique(one)), len(np.unique(other))) < 2:
        return 0.0
    return float(adjusted_rand_score(one, other))


def most_agreed(found: Sequence[np.ndarray]) -> int:
    """Which of several fits agrees most with the others, in the mean; of equals the first."""
    each = [
        np.mean([agreement(one, other) for j, other in enumerate(found) if j != i])
        for i, one in enumerate(found)
    ]
    return int(np.argmax(np.round(each, 6)))


def of_several(
    problem: Problem, n_fits: int, seed: int, solve: Callable[[int], Solution]
) -> Solution:
    """The fit, of several from other seeds, whose clusters agree most with the others'.

    The first has the seed that is given; one alone is not looked at.
    """
    found = [solve(seed)]
    for i in range(1, n_fits):
        found.append(solve(int(np.random.SeedSequence([seed, i]).generate_state(1)[0])))
    if n_fits == 1:
        return found[0]
    return found[most_agreed([clusters_of(one, problem) for one in found])]
