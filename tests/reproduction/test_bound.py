"""Proposition 1's own route: the objective as defined, against the engine."""

from dataclasses import asdict, replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures.mixture.arithmetic import double
from reproduction.config import load
from reproduction.kinds.bound import sides
from reproduction.tasks.fit import Run
from reproduction.tasks.gradient_mapping import compute, edges_once, objective


def settings(**changes):
    experiment = load("proposition1")
    problem = experiment.problems[0]
    own = {
        "data": {**problem.data, "n_nodes": 4, "n_train": 30},
        "graph": problem.graph,
        "n_components": 2,
        "start": asdict(experiment.start),
        "gtv": asdict(replace(experiment.gtv, n_local_steps=1)),
        "n_rounds": 5,
        "from": "start",
        "alpha": 1.0,
        "learning_rate": 0.01,
    }
    return {**own, **changes}


@pytest.mark.slow
def test_objectives_agree_with_their_definition():
    own = settings()
    numbers = list(compute([(own, 0), (own, 1)]))
    part = Run(own, 0).part()
    with double():
        rows = jnp.asarray(part.rows.rows.reshape(4, -1, 2))
        theta = part.theta
        value = lambda alpha: float(
            objective(theta, rows, jnp.asarray(edges_once(part.network, alpha)))
        )
        assert numbers[0]["once"][0] == pytest.approx(value(1.0), rel=1e-6)
        assert numbers[0]["printed"][0] == pytest.approx(value(2.0), rel=1e-6)
    assert len(numbers[0]["once"]) == 6
    assert len(numbers[0]["squared_norms"]) == 5


@pytest.mark.slow
def test_every_step_decreases_the_once_counted_objective():
    rate = 0.001
    numbers = next(compute([(settings(learning_rate=rate), 0)]))
    once, squared = np.array(numbers["once"]), np.array(numbers["squared_norms"])
    assert rate < 1 / numbers["curvature"]
    assert (once[:-1] - once[1:] >= rate / 2 * squared).all()
    left, right = sides(once, squared, rate, None)
    assert (left <= right).all()


def test_sides_by_hand():
    left, right = sides([5.0, 4.0, 3.5], [1.0, 3.0], 0.5, None)
    assert left.tolist() == [1.0, 2.0]
    assert right.tolist() == [2 * 1.0 / 0.5, 2 * 1.5 / (0.5 * 2)]
    _, right = sides([5.0, 4.0, 3.5], [1.0, 3.0], 0.5, 3.0)
    assert right.tolist() == [8.0, 4.0]
