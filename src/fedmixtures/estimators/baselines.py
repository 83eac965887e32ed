"""What a fit is compared with: own data only, and all rows pooled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.options import used
from fedmixtures.engine.solution import FitWarning, Solution
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.resolve import all_rows_pooled, own_data_only
from fedmixtures.estimators.scoring import log_densities
from fedmixtures.estimators.solutions import everyone_level, listens, own_level
from fedmixtures.methods.base import Method
from fedmixtures.metrics import Scores


@dataclass(frozen=True)
class Baselines:
    """Log-density of every held-out row under what a fit is compared with; None if not fitted."""

    own: np.ndarray | None = None
    pooled: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    """Warnings of these fits, each behind what was fitted."""

    def scores(
        self, problem: Problem, solution: Solution, held: Evaluator | None, slopes: Any = 0.0
    ) -> Scores:
        """The held-out log-likelihood of a fit beside them, by node.

        `slopes` (rows,) are added to all: what log-densities gain in the units of the user.
        """
        labels = problem.data.labels
        if held is None or not problem.method.has_likelihood:
            return Scores.of(labels, None)
        found = log_densities(solution, held), self.own, self.pooled
        in_users = (None if values is None else values + slopes for values in found)
        return Scores.of(labels, held.data, *in_users)


def baselines(
    problem: Problem,
    solution: Solution,
    held: Evaluator | None,
    *,
    pooled: bool = False,
    begin: Callable[[str], Any] = str,
    **how: Any,
) -> Baselines:
    """Fit what a solution is compared with, if any row was held out to compare on.

    Own data only is the run's own level of that name, or else `own_data_only`; it is None where
    nobody could hear another: the run itself is then the one with own data only. All rows pooled is
    the best that pooling can do: of the run's own level "everyone" and of EM of all rows the
    better. Where rows may not be pooled, or nodes have different numbers of components, it is the
    level alone; it is None where the run itself pools all rows.

    Parameters
    ----------
    problem, solution
        What was solved, and how it came out.
    held
        Rows that were not fitted.
    pooled
        Whether rows may be pooled for it.
    begin
        Called with what is fitted next.
    **how
        Settings of `fedmixtures.solve`, as far as the methods have a use for them.
    """
    if held is None or not problem.method.has_likelihood:
        return Baselines()
    notes: list[str] = []

    def densities(words: str, method: Method) -> np.ndarray:
        begin(words)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            found = problem.where(method=method).solve(**used(method, **how))
        notes.extend(f"{words}: {w.message}" for w in caught if w.category is FitWarning)
        return log_densities(found, held)

    method, rows, own = problem.method, problem.fitted_data.rows, None
    if listens(solution, problem.network):
        level = own_level(solution)
        if level is not None:
            own = log_densities(level, held)
        else:
            own = densities("own data only", own_data_only(method, rows))
    together = []
    if not method.moves_rows and held.data.n_nodes > 1:
        level = everyone_level(solution)
        if level is not None and len(problem.network.components()) == 1:
            together.append(log_densities(level, held))
        if pooled and isinstance(problem.components, int):
            together.append(densities("all rows pooled", all_rows_pooled(method, rows)))
    best = max(together, key=lambda values: round(float(values.mean()), 9), default=None)
    return Baselines(own, best, tuple(notes))
