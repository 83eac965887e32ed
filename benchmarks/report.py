"""Results as data, with what they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"


def environment() -> dict:
    """Versions, processor and date."""
    versions = {}
    for package in ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "processor": _processor(),
        "versions": versions,
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
    }


def write(name: str, results: list | dict, folder: Path | None = None) -> Path:
    """Write one JSON file."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")
    return f"{name}, {sum(x.startswith('processor') for x in lines)} cores"
