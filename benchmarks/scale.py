"""Time and memory against the number of nodes: S5, average degree 10, k = 5, d = 2, float32."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

REPETITIONS = 3


def scale(sizes: list[int], couplings: list[str], n_rounds: int) -> list[dict]:
    """Seconds per round for every size, each in a process of its own, and the fitted exponent."""
    results = []
    for coupling in couplings:
        rows = []
        for n in sizes:
            rows.append(_measured("time", n, coupling, n_rounds))
            with tempfile.TemporaryDirectory() as cache:
                for run in ("first", "second"):
                    rows[-1][f"memory_of_{run}_process"] = _measured(
                        "memory", n, coupling, n_rounds, XDG_CACHE_HOME=cache
                    )
            print(coupling, rows[-1], flush=True)
        seconds = [row["cpu_seconds_per_round"] for row in rows]
        exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        print(f"{coupling}: exponent {exponent:.3f}", flush=True)
        results.append({"coupling": coupling, "exponent": exponent, "sizes": rows})
    return results


def _measured(what: str, n: int, coupling: str, n_rounds: int, **environment: str) -> dict:
    """What a process of its own prints."""
    command = [sys.executable, "-m", "benchmarks.scale", what, str(n), coupling, str(n_rounds)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def timed(n: int, coupling: str, n_rounds: int) -> dict:
    """Rounds alone."""
    from benchmarks import ours
    from benchmarks.problems import problem

    made = problem(f"S4@{n}").shortened(n_rounds)
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
    }


def remembered(n: int, coupling: str, n_rounds: int) -> dict:
    """Largest resident memory (MB) of a process, step by step: a whole solve."""
    peaks = {}
    from benchmarks import ours
    from benchmarks.problems import problem

    peaks["imports"] = _peak()
    made = problem(f"S4@{n}").shortened(n_rounds)
    solver = ours.Solve(made, coupling, "float32")
    peaks["data and graph"] = _peak()
    solver.run()
    peaks["solve"] = _peak()
    return peaks


def remembered_by_default(n: int) -> dict:
    """The same of the default method, which makes its own starts; and its seconds of processor."""
    peaks = {}
    from benchmarks.gpu import problem
    from fedmixtures.engine.solve import solve

    peaks["imports"] = _peak()
    data, network, _ = problem(n)
    peaks["data and graph"] = _peak()
    begin = time.process_time()
    solve("trust", data, network, n_components=5, dtype="float32")
    return peaks | {"solve": _peak(), "cpu_seconds": time.process_time() - begin}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    measure = {"time": timed, "memory": remembered, "default": remembered_by_default}[sys.argv[1]]
    more = (sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else ()
    print(json.dumps(measure(int(sys.argv[2]), *more)))
