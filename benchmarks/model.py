"""The cost model: CPU seconds of a round against degree, components and features."""

from __future__ import annotations

import numpy as np

from benchmarks import ours
from benchmarks.problems import shaped
from benchmarks.timing import interleaved

NODES, ROUNDS = 500, 4
BASE = {"degree": 10, "k": 4, "d": 2}
AXES = {"degree": (5, 10, 20, 40), "k": (4, 8, 16), "d": (4, 8, 16)}


def model(couplings: list[str], dtype: str, repetitions: int) -> list[dict]:
    """One number varied at a time, the others as in `BASE`; exponents by least squares of logs."""
    results = []
    for coupling in couplings:
        for axis, values in AXES.items():
            seconds = []
            for value in values:
                made = shaped(NODES, **{**BASE, axis: value}, n_rounds=ROUNDS)
                solver = ours.Rounds(made, coupling, dtype)
                solver.run()  # compiles
                times = interleaved({"rounds": solver.run}, repetitions)["rounds"]
                seconds.append(min(times.cpu) / ROUNDS)
            exponent = float(np.polyfit(np.log(values), np.log(seconds), 1)[0])
            results.append(
                {
                    "coupling": coupling,
                    "axis": axis,
                    "at": list(values),
                    "cpu_seconds_per_round": seconds,
                    "exponent": exponent,
                }
            )
            print(f"{coupling:9s} {axis:6s} exponent {exponent:.2f}", flush=True)
    return results
