"""Results as data, with what they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"


def environment(module: str = "benchmarks") -> dict:
    """Versions, processor, date, commit, and the command that ran `module`."""
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
        "commit": _commit(),
        "command": " ".join(["python -m", module, *sys.argv[1:]]),
    }


def write(
    name: str, results: list | dict, folder: Path | None = None, module: str = "benchmarks"
) -> Path:
    """Write one JSON file."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    found = {"environment": environment(module), "results": results}
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def gpu() -> dict[str, str]:
    """The device that JAX uses, and what drives it."""
    import jax

    device = jax.devices()[0]
    return {"device": device.device_kind, "platform": device.client.platform_version}


def _commit() -> str | None:
    """Of this checkout; where it is a copy without history, what ``GIT_COMMIT`` says."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GIT_COMMIT")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")
    return f"{name}, {sum(x.startswith('processor') for x in lines)} cores"
