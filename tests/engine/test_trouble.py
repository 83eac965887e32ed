"""Runs that go wrong: nothing but finite mixtures of a stated round ever comes back."""

import re
import warnings
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import MMD, AbstractDiscrepancy, Euclidean, FitWarning, GTVMin
from fedmixtures.mixture.feasible import FeasibleSet
from helpers import WIDE, Problem, flat, problem


def complete(n=7, **options):
    """Every node has degree n - 1; all nodes differ."""
    labels = [f"n{i:03d}" for i in range(n)]
    edges = [(a, b) for i, a in enumerate(labels) for b in labels[:i]]
    return problem(seed=1, rows=(15,) * n, k=2, edges=edges, **options)


def failed(p: Problem, program, **options):
    """Run what must go wrong, round by round: what comes back is finite and of a stated round."""
    states = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = p.solve(
            program,
            **{"n_rounds": 16, "report_every": 1, **options},
            on_chunk=lambda t, theta: states.append(theta),
        )
    assert [w.category for w in caught] == [FitWarning]
    assert str(caught[0].message) == solution.message
    assert np.isfinite(flat(solution.theta)).all()
    assert len(solution.history) == solution.n_rounds + 1
    if solution.status == "interrupted":  # a listener that stops the run comes before the states
        states = []
        collect = lambda t, theta: states.append(theta)
        p.solve(program, n_rounds=solution.n_rounds, report_every=1, on_chunk=collect)
    np.testing.assert_array_equal(flat(solution.theta), flat(states[solution.n_rounds]))
    return solution


def test_euclidean_at_alpha_ten_and_degree_six_stops_with_advice():
    """alpha * degree * rate = 1.2 > 1: every step overshoots by more than the distance."""
    p = complete()
    program = GTVMin(Euclidean(), alpha=10.0, learning_rate=0.02, feasible=FeasibleSet())
    solution = failed(p, program)
    assert solution.status == "diverged"
    message = re.fullmatch(
        r"diverged in round (\d+) at node '(n\d+)': (the objective rose from .* to .*|a mean ran "
        r"into the bound max_mean_norm); returning round (\d+)\. alpha \(10\) x weighted degree "
        r"\(6\) x learning_rate \(0\.02\) is 1\.2, above 1: lower learning_rate to about 0\.008, "
        r"lower alpha, or use learning_rate='auto'\.",
        solution.message,
    )
    assert message, solution.message
    assert int(message[4]) == solution.n_rounds < int(message[1])
    assert message[2] in p.labels
    # the round that is kept is the best of those before the trouble
    assert solution.history.objective[-1] == solution.history.objective.min()


def test_a_run_in_one_call_goes_back_to_the_same_round():
    """Without a look at every round, rounds are run again to get there."""
    p = complete()
    program = GTVMin(Euclidean(), alpha=10.0, learning_rate=0.02, feasible=FeasibleSet())
    watched = failed(p, program)
    with pytest.warns(FitWarning, match="diverged"):
        blind = p.solve(program, n_rounds=16)
    assert (blind.n_rounds, blind.message) == (watched.n_rounds, watched.message)
    np.testing.assert_allclose(flat(blind.theta), flat(watched.theta), atol=1e-12)


def test_a_mean_that_runs_into_the_bound_is_named():
    p = complete()
    wide_enough = 1.01 * np.linalg.norm(p.theta.means, axis=-1).max()
    feasible = FeasibleSet(max_mean_norm=float(wide_enough), max_variance=50.0)
    program = GTVMin(Euclidean(), alpha=10.0, learning_rate=0.02, feasible=feasible)
    solution = failed(p, program)
    assert solution.status == "diverged"
    assert np.linalg.norm(solution.theta.means, axis=-1).max() <= wide_enough


def test_advice_names_the_step_where_the_coupling_is_weak():
    p = problem(seed=5, rows=(9, 14, 11, 6, 8))
    program = GTVMin(MMD((0.7, 3.0)), 0.001, 2, learning_rate=50.0, feasible=FeasibleSet())
    solution = failed(p, program)
    assert solution.status == "diverged"
    assert "learning_rate=50 is likely too large for these features: lower it" in solution.message


def test_a_good_run_is_not_stopped():
    p = complete()
    program = GTVMin(Euclidean(), alpha=1.0, learning_rate=0.02, feasible=FeasibleSet())
    solution = p.solve(program, n_rounds=16, report_every=1)
    assert (solution.status, solution.message) == ("completed", "")
    assert solution.history.objective[-1] < solution.history.objective[0]


class Cliff(AbstractDiscrepancy):
    """Draws the first mean upwards, and is undefined beyond a height."""

    smooth: ClassVar[bool] = True
    height: float = 3.0

    def freeze(self, own, neighbour, key):
        return jnp.zeros(())

    def __call__(self, own, frozen):
        return jnp.log(self.height - own.means[0, 0]) + frozen


def test_nan_goes_back_to_the_last_good_round_and_names_the_node():
    p = problem(seed=5, rows=(9, 14, 11, 6, 8))
    means = p.theta.means.copy()
    means[:, 0, 0] = [-8.0, -8.0, 2.6, -8.0, -8.0]  # node 2 is near the cliff
    theta = type(p.theta)(p.theta.weights, means, p.theta.covariances)
    p = Problem(p.X, p.nodes, p.edges, theta)
    program = GTVMin(Cliff(), alpha=0.3, n_local_steps=1, learning_rate=0.05, feasible=WIDE)
    solution = failed(p, program)
    assert solution.status == "diverged"
    assert "at node 'n002': the objective is not finite; returning round" in solution.message


def test_rows_beyond_floating_point_give_the_start():
    """A row of 1e200 has no finite log-density: round 0 is bad already and the start is kept."""
    p = problem(seed=5, rows=(9, 14, 11, 6, 8))
    X = p.X.copy()
    X[-1, 0] = 1e200
    p = Problem(X, p.nodes, p.edges, p.theta)
    solution = failed(p, GTVMin(MMD((0.7, 3.0)), n_local_steps=2, feasible=WIDE))
    assert solution.n_rounds == 0
    assert "diverged in round 0 at node 'n004': the objective is not finite" in solution.message
    np.testing.assert_allclose(flat(solution.theta), flat(p.theta), atol=1e-12)


@pytest.mark.parametrize("always", [False, True], ids=["once", "every-time"])
def test_interrupted_run_keeps_its_last_round(always):
    p = problem(seed=5, rows=(9, 14, 11, 6, 8))
    program = GTVMin(MMD((0.7, 3.0)), feasible=WIDE, n_local_steps=2)

    def stop(record):
        if record["round"] == 2 or (always and record["round"] > 2):
            raise KeyboardInterrupt

    solution = failed(p, program, on_round=stop, keep_interrupted=True)
    assert solution.status == "interrupted"
    assert solution.message == f"interrupted; returning round {solution.n_rounds} of 16."
    assert 2 <= solution.n_rounds <= 3


def test_interrupted_search_for_a_step_keeps_its_last_round():
    p = problem(seed=5, rows=(9, 14, 11, 6, 8))
    program = GTVMin(MMD((0.7, 3.0)), feasible=WIDE, n_local_steps=2, learning_rate="auto")

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    solution = failed(p, program, on_round=stop, keep_interrupted=True)
    assert solution.status == "interrupted"


def test_an_interrupt_is_raised_unless_told_otherwise():
    def stop(record):
        raise KeyboardInterrupt

    p = problem(seed=5, rows=(9, 14, 11, 6, 8))
    with pytest.raises(KeyboardInterrupt):
        p.solve(GTVMin(MMD(), feasible=WIDE), n_rounds=4, report_every=1, on_round=stop)
