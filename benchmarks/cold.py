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
X = rng.normal(size=(750, 2)) + 4 * rng.integers(0, 5, (750, 1))
model = NetworkGaussianMixture(5, graph="full", method="gtv-mmd", n_rounds=40, random_state=0)
model.fit(X, nodes=np.repeat(np.arange(15), 50))
"""


def cold(repetitions: int) -> dict:
    """Wall and CPU seconds of new processes."""
    help_ = [_timed([HELP, "--help"]) for _ in range(repetitions)]
    first, second = [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            env = {"XDG_CACHE_HOME": folder}
            first.append(_timed([sys.executable, "-c", FIT], env))
            second.append(_timed([sys.executable, "-c", FIT], env))
    found = {"help": help_, "first_fit": first, "second_fit": second}
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
