"""New processes: help, small fits without and with a cache, many rows, nodes of uneven size."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("fedmixtures"))
ROWS = """
import numpy as np
rng = np.random.default_rng(0)
n, m, d, k = {shape}
X = rng.normal(size=(n * m, d)) + 4 * rng.integers(0, k, (n * m, 1))
nodes = np.repeat(np.arange(n), m)
"""
ESTIMATOR = """
from fedmixtures import NetworkGaussianMixture
NetworkGaussianMixture(k, graph={graph!r}, method={method!r}, random_state=0).fit(X, nodes=nodes)
"""
SOLVE = """
from fedmixtures import solve
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators.resolve import resolve_graph
data = NodeData.from_rows(X, nodes)
solve({method!r}, data, resolve_graph({graph!r}, data), n_components=k)
"""
TABLE = """
import sys
names = ",".join(["node", *(f"x{{i}}" for i in range(d))])
rows = np.column_stack([nodes, X])
np.savetxt(sys.argv[1], rows, "%.17g", ",", header=names, comments="")
"""
MMD = {"shape": (15, 50, 2, 5), "graph": "full", "method": "gtv-mmd"}
TRUST = {"shape": (15, 50, 2, 5), "graph": "knn:5", "method": "trust"}
FITS = {
    "gtv-mmd 15 x 50": (ESTIMATOR, MMD),
    "gtv-mmd 15 x 50 by solve": (SOLVE, MMD),
    "gtv-mmd 15 x 50 by fedmixtures fit": (None, MMD),
    "trust 15 x 50": (ESTIMATOR, TRUST),
    "trust 15 x 50 by solve": (SOLVE, TRUST),
    "trust 15 x 50 by fedmixtures fit": (None, TRUST),
    "trust 30 x 200, 8 features": (ESTIMATOR, TRUST | {"shape": (30, 200, 8, 4)}),
    "trust 200 x 100, 4 features": (ESTIMATOR, TRUST | {"shape": (200, 100, 4, 3)}),
}
"""By the estimator, by `solve`, or by the command line with its comparisons and its report."""
UNEVEN = """
import time
import numpy as np
from fedmixtures import nearest_neighbours, solve
from fedmixtures.data.node_data import NodeData
d, k, counts, rng = 20, 6, np.geomspace(20, 5000, 12).astype(int), np.random.default_rng(0)
nodes, centres = np.repeat(np.arange(12), counts), 3 * rng.normal(size=(k, d))
X = centres[rng.integers(0, k, len(nodes))] + rng.normal(size=(len(nodes), d))
data = NodeData.from_rows(X, nodes)
network = nearest_neighbours(data.means(), 5, labels=data.labels)
for _ in range(2):
    begin = time.perf_counter(), time.process_time()
    solve("trust", data, network, n_components=k)
    print(time.perf_counter() - begin[0], time.process_time() - begin[1])
"""
IMPORTS = "import jax, sklearn.mixture; jax.numpy.zeros(1)"


def cold(repetitions: int) -> dict:
    """Wall and CPU seconds of new processes."""
    found = {"help": [_timed([COMMAND, "--help"]) for _ in range(repetitions)]}
    found["importing JAX and scikit-learn"] = [
        _timed([sys.executable, "-c", IMPORTS]) for _ in range(repetitions)
    ]
    for name, (code, fit) in FITS.items():
        first, second = f"{name}, empty cache", f"{name}, filled cache"
        found |= {first: [], second: []}
        for _ in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                for which in (first, second):
                    command = _command(code, fit, Path(folder) / which)
                    found[which].append(_timed(command, {"FEDMIXTURES_CACHE": folder}))
    for name, times in found.items():
        wall, cpu = (sorted(t[key] for t in times) for key in ("wall", "cpu"))
        print(f"{name}: wall {wall[0]:.2f} to {wall[-1]:.2f} s, CPU {cpu[0]:.2f} s")
    return found


def rows() -> dict:
    """Seconds and gigabytes of the default method by the command line, no cache before.

    1,000,000 rows of 2,000 nodes, 4 features, 5 components; with comparisons and report.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = _command(None, TRUST | {"shape": (2000, 500, 4, 5)}, Path(folder) / "run")
        found = _timed(command, {"FEDMIXTURES_CACHE": folder})
    print("wall {wall:.1f} s, CPU {cpu:.1f} s, at most {peak_gb:.2f} GB".format(**found))
    return found


def uneven(repetitions: int) -> dict:
    """Wall and CPU seconds of the first and the second default fit of a process, no cache before.

    12 nodes of 20 to 5,000 rows, 20 features, 6 components.
    """
    found: dict[str, list] = {"first": [], "second": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "FEDMIXTURES_CACHE": folder}
            how = {"env": env, "check": True, "capture_output": True, "text": True}
            lines = subprocess.run([sys.executable, "-c", UNEVEN], **how).stdout.splitlines()
        for times, line in zip(found.values(), lines, strict=True):
            times.append(dict(zip(("wall", "cpu"), map(float, line.split()), strict=True)))
    for name, times in found.items():
        print(name, " ".join(f"{t['wall']:.1f} s (CPU {t['cpu']:.1f})" for t in times))
    return found


def _command(code: str | None, fit: dict, run: Path) -> list[str]:
    """A fit in a new process; without code by `fedmixtures fit`, into a new folder."""
    rows = ROWS.format(**fit)
    if code is not None:
        return [sys.executable, "-c", rows + code.format(**fit)]
    table = run.with_name("table.csv")
    subprocess.run([sys.executable, "-c", rows + TABLE.format(), str(table)], check=True)
    k, graph, method = str(fit["shape"][-1]), fit["graph"], fit["method"]
    how = ["--k", k, "--graph", graph, "--method", method, "--out", str(run)]
    return [COMMAND, "fit", str(table), "--nodes", "node", *how]


def _timed(command: list[str], more: dict[str, str] | None = None) -> dict[str, float]:
    env = {**os.environ, **(more or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # packages that were installed have their bytecode
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "peak_gb": used.ru_maxrss / 1e6}
