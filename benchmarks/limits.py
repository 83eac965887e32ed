"""How far the rounds are from what one core could do: useful work counted, ceilings measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import ours
from benchmarks.problems import BANDWIDTHS, KL_SAMPLES, Problem, problem
from benchmarks.timing import interleaved
from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture.arithmetic import precision

LANES = 2048
"""Numbers that fit in the first-level cache."""
PAIR_TERM = 49
"""Operations of one pair of components at one bandwidth, value and gradient, for two features."""


def limits(names: list[str], couplings: list[str], dtype: str, repetitions: int) -> dict:
    """Seconds of the rounds and of the counted work at the measured ceilings."""
    top = ceilings(dtype)
    print({key: f"{value:.3g}" for key, value in top.items()})
    results = []
    for name in names:
        for coupling in couplings:
            made = problem(name)
            solver = ours.Rounds(made, coupling, dtype)
            solver.run()  # compiles
            times = interleaved({"rounds": solver.run}, repetitions)["rounds"]
            flops, exps = useful_work(made, coupling)
            bound = flops / top["flops_per_second"] + exps / top["exps_per_second"]
            results.append(
                {
                    "problem": name,
                    "coupling": coupling,
                    "dtype": dtype,
                    "cpu_seconds": min(times.cpu),
                    "useful_flops": flops,
                    "useful_exps": exps,
                    "bound_seconds": bound,
                    "times_the_bound": min(times.cpu) / bound,
                }
            )
            print(f"{name} {coupling:9s} {results[-1]['times_the_bound']:.1f} times the bound")
    return {"ceilings": top, "kernels": results}


def useful_work(made: Problem, coupling: str) -> tuple[float, float]:
    """Operations and exponentials of a whole run that no method of computing could leave out.

    Per row and component of the local loss: whitening (d differences, d(d+1)/2 products and sums),
    squared length, the exponential, its share of the density, and sums of 1, x and x xᵀ. The points
    of KL cost the same, once more with the neighbour's density, which is worked out once a round.
    MMD: all pairs of components of both ends and of the node with itself. Euclidean: the matrix of
    costs once a round and one subtraction per parameter and step.
    """
    n, m, d = made.rows.shape
    k, directed = made.theta.n_components, 2 * made.network.n_edges
    density = d + d * (d + 1) + 2 * d + 2
    per_point = density + 2 * (1 + d + d * (d + 1) // 2)
    steps = made.n_rounds * made.n_local_steps
    flops, exps = float(steps * n * m * k * per_point), float(steps * n * m * k)
    if coupling == "mmd":
        scale = d**3 / 8 if d > 2 else 1.0  # as the cube of the features, from two on
        terms = steps * (directed + n) * k * k * len(BANDWIDTHS)
        flops, exps = flops + terms * PAIR_TERM * scale, exps + terms
    elif coupling == "kl":
        points = directed * KL_SAMPLES * k
        flops += steps * points * per_point + made.n_rounds * points * density
        exps += steps * points + made.n_rounds * points
    else:
        size = 1 + d + d * d
        flops += made.n_rounds * directed * k * k * 3 * size + steps * n * k * 3 * size
    return flops, exps


def ceilings(dtype: str) -> dict[str, float]:
    """Operations (matrix product), exponentials and copied bytes per second on this core."""
    a = np.random.default_rng(0).random((768, 768)).astype(dtype)
    a @ a
    begin = time.process_time()
    for _ in range(20):
        a @ a
    flops = 20 * 2 * 768**3 / (time.process_time() - begin)
    with precision(dtype):
        x = jnp.linspace(0.1, 0.9, LANES, dtype=dtype)
        exps = LANES / _each(lambda x: jnp.exp(-x), x)
    block = np.zeros(1 << 25, np.uint8)
    other = np.empty_like(block)
    begin = time.process_time()
    for _ in range(20):
        np.copyto(other, block)
    copied = 20 * 2 * block.nbytes / (time.process_time() - begin)
    return {"flops_per_second": flops, "exps_per_second": exps, "bytes_per_second": copied}


def _each(function: Callable, x: jax.Array, repeats: int = 20_000) -> float:
    """CPU seconds of one of many calls inside a compiled loop."""
    many = jit(lambda x: jax.lax.fori_loop(0, repeats, lambda i, x: function(x), x))
    jax.block_until_ready(many(x))
    best = np.inf
    for _ in range(5):
        begin = time.process_time()
        jax.block_until_ready(many(x))
        best = min(best, time.process_time() - begin)
    return best / repeats
