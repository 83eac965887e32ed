"""Memory of reading a Parquet file of many rows, from the file to rows by node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MAKE = """
import sys
import numpy as np, pyarrow as pa
from pyarrow import parquet
n, path, rng = int(sys.argv[1]), sys.argv[2], np.random.default_rng(0)
node = rng.integers(0, n // 500, n)
columns = {"node": node, **{f"x{i}": rng.normal(size=n) for i in range(4)}}
parquet.write_table(pa.table(columns), path)
"""
READ = """
import json, resource, sys, time
from fedmixtures.io.tables import read_table
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
import pyarrow.parquet
found, begin = {"imports": peak()}, time.process_time()
table = read_table([sys.argv[1]], nodes="node")
found["table"] = peak()
data = table.by_node()
print(json.dumps(found | {"by node": peak(), "cpu_seconds": time.process_time() - begin}))
"""
"""Rows of 500 a node in no order, four features; the node's column holds whole numbers."""


def reading(sizes: list[int]) -> dict:
    """Gigabytes held at most by a process of its own, for every number of rows, and the slope."""
    found: dict = {"sizes": []}
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.parquet"
            subprocess.run([sys.executable, "-c", MAKE, str(n), str(path)], check=True)
            command = [sys.executable, "-c", READ, str(path)]
            done = subprocess.run(command, env=os.environ, capture_output=True, check=True)
        found["sizes"].append({"rows": n, **json.loads(done.stdout)})
        print(found["sizes"][-1], flush=True)
    for what in ("table", "by node"):
        first, last = found["sizes"][0], found["sizes"][-1]
        slope = (last[what] - first[what]) * 1e9 / (last["rows"] - first["rows"])
        found[f"bytes a row, {what}"] = slope
        print(f"{what}: {slope:.0f} bytes a row")
    return found
