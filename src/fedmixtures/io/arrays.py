"""Arrays and a JSON header in one safetensors file, and checkpoints as such: no code on load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.engine.run.checkpoint import Checkpoint
from fedmixtures.io.durable import write_durably

HEADER = "fedmixtures"


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], header: Any) -> Path:
    """Write a file that is either whole or absent, also if the process dies meanwhile."""
    from safetensors.numpy import save

    path = Path(path)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_durably(path, save(contiguous, {HEADER: json.dumps(header)}))
    return path


def read_arrays(path: str | Path, kind: str) -> tuple[dict[str, np.ndarray], Any]:
    """Arrays and header of a file of this kind."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is no safetensors file or is damaged: {error}") from None
    if not isinstance(header, dict) or header.get("kind") != kind:
        found = header.get("kind") if isinstance(header, dict) else "an unknown kind"
        raise ValueError(f"{str(path)!r} does not hold a fedmixtures {kind} but {found}.")
    return arrays, header


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; an older one at this path is replaced in one step."""
    arrays = {f"state.{i:04d}": state for i, state in enumerate(checkpoint.states)}
    arrays |= {f"trace.{name}": array for name, array in checkpoint.trace.items()}
    header = {
        "kind": "checkpoint",
        "round": checkpoint.round,
        "fingerprint": checkpoint.fingerprint,
    }
    return write_arrays(path, arrays, header)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint."""
    arrays, header = read_arrays(path, "checkpoint")
    states = [array for name, array in sorted(arrays.items()) if name.startswith("state.")]
    trace = {
        name.removeprefix("trace."): array
        for name, array in arrays.items()
        if name.startswith("trace.")
    }
    return Checkpoint(header["round"], header["fingerprint"], tuple(states), trace)
