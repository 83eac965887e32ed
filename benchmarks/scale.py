"""Time and memory against the number of nodes: S5, average degree 10, k = 5, d = 2, float32."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

REPETITIONS = 3


def scale(sizes: list[int], couplings: list[str], n_rounds: int) -> list[dict]:
    """Seconds per round for every size, each in a process of its own, and the fitted exponent."""
    results = []
    for coupling in couplings:
        rows = []
        for n in sizes:
            command = [sys.executable, "-m", "benchmarks.scale", str(n), coupling, str(n_rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(eval(done.stdout.splitlines()[-1]))  # noqa: S307, our own dict
            print(coupling, rows[-1], flush=True)
        seconds = [row["cpu_seconds_per_round"] for row in rows]
        exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        print(f"{coupling}: exponent {exponent:.3f}", flush=True)
        results.append({"coupling": coupling, "exponent": exponent, "sizes": rows})
    return results


def one(n: int, coupling: str, n_rounds: int) -> dict:
    """One size: rounds alone, and what the process needed."""
    from benchmarks import ours
    from benchmarks.problems import problem

    made = problem(f"S4@{n}").shortened(n_rounds)
    after_data = _peak()
    begin = time.perf_counter()
    solver = ours.Rounds(made, coupling, "float32")
    prepare = time.perf_counter() - begin
    solver.run()  # compiles
    cpu = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        solver.run()
        cpu.append((time.process_time() - start) / n_rounds)
    return {
        "nodes": n,
        "edges": int(made.network.n_edges),
        "cpu_seconds_per_round": min(cpu),
        "prepare_seconds": prepare,
        "temporary_megabytes": solver.temporary_bytes() / 2**20,
        "peak_megabytes": _peak(),
        "peak_megabytes_before_the_solver": after_data,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
