"""Checkpoints of a run on disk."""

from __future__ import annotations

from pathlib import Path

from fedmixtures.engine.run.checkpoint import Checkpoint
from fedmixtures.io.arrays import read_arrays, write_arrays


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
