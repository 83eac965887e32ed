"""How often programs are compiled: shapes are coarse, and numbers are data."""

import dataclasses

from fedmixtures import MMD, Euclidean, GTVMin
from fedmixtures.mixture.feasible import FeasibleSet
from helpers import problem

TRACES = []


class Counted(GTVMin):
    """Python runs through a step only while it is traced."""

    def step(self, state, inbox, data, keys):
        TRACES.append(state.means.shape)
        return super().step(state, inbox, data, keys)


def ring_problem(n, rows, seed=0):
    labels = [f"n{i:03d}" for i in range(n)]
    edges = [(labels[i], labels[(i + 1) % n]) for i in range(n)]
    return problem(seed, rows=(rows,) * n, k=2, edges=edges)


def traces(p, program, **options):
    before = len(TRACES)
    assert p.solve(program, **options).status == "completed"
    return len(TRACES) - before


def test_one_more_node_row_round_or_another_number_compiles_nothing():
    program = Counted(Euclidean(), 0.1, 1, learning_rate=0.01, feasible=FeasibleSet())
    assert traces(ring_problem(13, 21), program, n_rounds=5) > 0
    assert traces(ring_problem(14, 21), program, n_rounds=5) == 0
    assert traces(ring_problem(13, 22), program, n_rounds=5) == 0
    assert traces(ring_problem(13, 21), program, n_rounds=6) == 0
    assert traces(ring_problem(13, 21), program, n_rounds=6, seed=5) == 0
    for change in (
        {"alpha": 0.2},
        {"alpha": 1},  # a whole number is as good
        {"learning_rate": 0.02},
        {"feasible": FeasibleSet(min_weight=0.02, max_variance=900)},
    ):
        other = dataclasses.replace(program, **change)
        assert traces(ring_problem(13, 21), other, n_rounds=5) == 0, change


def test_another_bandwidth_compiles_nothing():
    p = ring_problem(13, 21)
    program = Counted(MMD((1.0, 2.0)), 0.1, 1, learning_rate=0.01, feasible=FeasibleSet())
    traces(p, program, n_rounds=5)
    other = dataclasses.replace(program, discrepancy=MMD((0.7, 3.0)))
    assert traces(p, other, n_rounds=5) == 0


def test_search_for_a_step_compiles_once():
    p = ring_problem(13, 21)
    program = Counted(Euclidean(), 0.1, 2, learning_rate="auto", feasible=FeasibleSet())
    assert traces(p, program, n_rounds=5) == 1
    fixed = dataclasses.replace(program, learning_rate=0.01)
    assert traces(p, fixed, n_rounds=5) == 0  # the step is a number like any other
