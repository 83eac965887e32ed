"""The package, through the path every fit takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems import ALPHA, BANDWIDTHS, BOUNDS, KL_SAMPLES, Problem
from fedmixtures.discrepancy import KL, MMD, Euclidean
from fedmixtures.engine.layout.blocks import build_layout
from fedmixtures.engine.run import rounds, runner
from fedmixtures.engine.solve import solve
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.mixture import Mixture


def program(problem: Problem, coupling: str) -> GTVMin:
    """Algorithm 1 with the settings of the problem."""
    discrepancy = {
        "euclidean": Euclidean(),
        "kl": KL(n_samples=KL_SAMPLES),
        "mmd": MMD(bandwidths=BANDWIDTHS),
    }[coupling]
    return GTVMin(
        discrepancy, ALPHA[coupling], problem.n_local_steps, problem.learning_rate, BOUNDS
    )


class Solve:
    """`engine.solve`: layout, checks, rounds, history, traffic, result."""

    name = "ours"

    def __init__(self, problem: Problem, coupling: str, dtype: str = "float64"):
        self.args = program(problem, coupling), problem.node_data(), problem.network, problem.theta
        self.how = {"n_rounds": problem.n_rounds, "dtype": dtype}

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return solve(*self.args, **self.how).theta.parts


class Fit:
    """The estimator as a user calls it: checks, k-means starts, solver, fitted attributes."""

    name = "ours, whole fit"

    def __init__(self, problem: Problem, coupling: str):
        from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

        data = problem.node_data()
        self.args = data.rows, None, data.node_index
        self.estimator = NetworkGaussianMixture(
            n_components=problem.theta.n_components,
            method=program(problem, coupling),
            n_rounds=problem.n_rounds,
            graph=problem.network,
        )

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        fitted = self.estimator.fit(*self.args)
        return fitted.weights_, fitted.means_, fitted.covariances_


class Rounds:
    """`rounds.run_rounds` alone: the compiled part of the same fit, from states in place."""

    name = "ours, rounds alone"

    def __init__(self, problem: Problem, coupling: str, dtype: str = "float64"):
        self.dtype, self.n_rounds = dtype, problem.n_rounds
        with precision(dtype):
            self.layout = build_layout(problem.node_data(), problem.network, dtype)
            self.program = runner.as_traced(program(problem, coupling), dtype)
            thetas = runner.scatter(problem.theta, self.layout, dtype)
            self.states = rounds.start(self.program, self.layout.groups, thetas)
        self.capacity = 1 << (self.n_rounds - 1).bit_length()

    def arguments(self) -> tuple:
        counts = jnp.int32(0), jnp.int32(self.n_rounds)
        return self.program, self.layout.groups, self.states, *counts, self.capacity

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with precision(self.dtype):
            states, infos = rounds.run_rounds(*self.arguments())
            jax.block_until_ready((states, infos))
            theta: Mixture = runner.gather(states, self.layout)
        return theta.parts

    def temporary_bytes(self) -> int:
        """Memory of intermediate values, as the compiler plans it."""
        with precision(self.dtype):
            compiled = rounds.run_rounds.lower(*self.arguments()).compile()
            return compiled.memory_analysis().temp_size_in_bytes
