"""New processes: the command line's help, and a small fit without and with a filled cache."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELP = str(Path(sys.executable).with_name("fedmixtures"))
FIT = """
import numpy as np
from fedmixtures import NetworkGaussianMixture
rng = np.random.default_rng(0)
n, m, d, k = {shape}
X = rng.normal(size=(n * m, d)) + 4 * rng.integers(0, k, (n * m, 1))
model = NetworkGaussianMixture(k, graph={graph!r}, method={method!r}, random_state=0)
model.fit(X, nodes=np.repeat(np.arange(n), m))
"""
FITS = {
    "gtv-mmd 15 x 50": {"shape": (15, 50, 2, 5), "graph": "full", "method": "gtv-mmd"},
    "trust 15 x 50": {"shape": (15, 50, 2, 5), "graph": "knn:5", "method": "trust"},
    "trust 30 x 200, 8 features": {"shape": (30, 200, 8, 4), "graph": "knn:5", "method": "trust"},
    "trust 200 x 100, 4 features": {"shape": (200, 100, 4, 3), "graph": "knn:5", "method": "trust"},
}
IMPORTS = "import jax, sklearn.mixture; jax.numpy.zeros(1)"


def cold(repetitions: int) -> dict:
    """Wall and CPU seconds of new processes."""
    found = {"help": [_timed([HELP, "--help"]) for _ in range(repetitions)]}
    found["importing JAX and scikit-learn"] = [
        _timed([sys.executable, "-c", IMPORTS]) for _ in range(repetitions)
    ]
    for name, fit in FITS.items():
        first, second = f"{name}, empty cache", f"{name}, filled cache"
        found |= {first: [], second: []}
        for _ in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                for times in (found[first], found[second]):
                    command = [sys.executable, "-c", FIT.format(**fit)]
                    times.append(_timed(command, {"XDG_CACHE_HOME": folder}))
    for name, times in found.items():
        wall, cpu = (sorted(t[key] for t in times) for key in ("wall", "cpu"))
        print(f"{name}: wall {wall[0]:.2f} to {wall[-1]:.2f} s, CPU {cpu[0]:.2f} s")
    return found


def _timed(command: list[str], more: dict[str, str] | None = None) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(command, env={**os.environ, **(more or {})}, check=True, capture_output=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu}
