"""What more cores add: the rounds on one CPU device and spread over one per core, interleaved."""

from __future__ import annotations

import os

import jax

from benchmarks import ours
from benchmarks.problems import problem
from benchmarks.timing import interleaved
from fedmixtures.engine.solve import solve


class Spread(ours.Solve):
    """`engine.solve` over several CPU devices."""

    def __init__(self, made, coupling: str, dtype: str, n_devices: int):
        super().__init__(made, coupling, dtype)
        devices = tuple(jax.devices()[:n_devices])
        self.how = {"n_rounds": made.n_rounds, "dtype": dtype, "devices": devices}


def cores(names: list[str], couplings: list[str], dtype: str, repetitions: int) -> list[dict]:
    """Wall seconds of whole solves, and how many times as fast all cores are."""
    n = len(os.sched_getaffinity(0))
    results = []
    for name in names:
        for coupling in couplings:
            made = problem(name)
            runs = {str(d): Spread(made, coupling, dtype, d) for d in (1, n)}
            shards = solve(*runs[str(n)].args, **runs[str(n)].how).shards
            runs["1"].run()  # compiles; the other has just done so
            times = interleaved({key: run.run for key, run in runs.items()}, repetitions)
            wall = {key: min(t.wall) for key, t in times.items()}
            results.append(
                {
                    "problem": name,
                    "coupling": coupling,
                    "dtype": dtype,
                    "wall_seconds": wall,
                    "cpu_seconds": {key: min(t.cpu) for key, t in times.items()},
                    "speedup": wall["1"] / wall[str(n)],
                    "cut_edges": shards.cut_edges,
                    "edges": shards.n_edges,
                }
            )
            print(f"{name} {coupling:9s} {n} devices: {results[-1]['speedup']:.2f}x")
    return results
