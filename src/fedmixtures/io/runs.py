"""The folder a run leaves behind: settings, history, checkpoint, model, assignments."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedmixtures._version import __version__
from fedmixtures.engine.run.watch import Checkpoint
from fedmixtures.io.storage import read_arrays, write_arrays, write_durably
from fedmixtures.mixture.mixture import Mixture

PARTS = ("weights", "means", "covariances")
CONFIG = "config.toml"
HISTORY = "history.jsonl"
MODEL = "model.safetensors"
ASSIGNMENTS = "assignments.parquet"
REPORT = "report.html"
CHECKPOINT = "checkpoint.safetensors"
SNAPSHOTS = "snapshots.safetensors"
CONTENT = "report.json"  # what the report page shows, so that it can be made again without the rows


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run and how its files are read and written."""

    path: Path

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        """A new folder; one that holds anything is refused."""
        path = Path(path)
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            resumable = (path / CONFIG).is_file() and not (path / MODEL).is_file()
            hint = f", or go on with what is there: --resume {path}" if resumable else ""
            raise ValueError(
                f"{str(path)!r} already exists and is left as it is. "
                f"Choose another folder with --out{hint}."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(_unwritable(path, error)) from None
        if not os.access(path, os.W_OK):
            raise ValueError(_unwritable(path, "permission denied"))
        return cls(path)

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """A folder that a run has written."""
        path = Path(path)
        if not path.is_dir():
            raise ValueError(f"there is no run folder {str(path)!r}. `fedmixtures fit` makes one.")
        if not (path / CONFIG).is_file():
            raise ValueError(f"{str(path)!r} is no run folder: it holds no {CONFIG}.")
        return cls(path)

    def file(self, name: str) -> Path:
        """The path of one of its files."""
        return self.path / name

    def finished(self, name: str) -> Path:
        """The path of a file that is there once the run is finished."""
        if not self.file(name).is_file():
            raise ValueError(
                f"the run in {str(self.path)!r} is not finished. "
                f"Go on with: fedmixtures fit --resume {self.path}"
            )
        return self.file(name)

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Write the effective settings as TOML."""
        write_text(self.file(CONFIG), to_toml(settings))

    def read_config(self) -> dict[str, Any]:
        """Read the effective settings."""
        try:
            return tomllib.loads(self.file(CONFIG).read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{self.file(CONFIG)} is no valid TOML: {error}.") from None

    def write_history(self, records: list[dict[str, Any]]) -> None:
        """One JSON object per line and round."""
        lines = (json.dumps(record) + "\n" for record in records)
        write_text(self.file(HISTORY), "".join(lines))

    def read_history(self) -> list[dict[str, Any]]:
        """Records of all rounds so far."""
        path = self.file(HISTORY)
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def write_snapshots(self, snapshots: Mapping[int, Mixture]) -> None:
        """Mixtures of all nodes (stacked) after some rounds."""
        arrays = {}
        for number, theta in snapshots.items():
            named = zip(PARTS, theta.parts, strict=True)
            arrays |= {f"{number:06d}.{name}": part for name, part in named}
        write_arrays(self.file(SNAPSHOTS), arrays, {"kind": "snapshots"})

    def read_snapshots(self) -> dict[int, Mixture]:
        """Mixtures by round; none if the run died before the first."""
        if not self.file(SNAPSHOTS).is_file():
            return {}
        arrays, _ = read_arrays(self.file(SNAPSHOTS), "snapshots")
        numbers = sorted({int(name.split(".")[0]) for name in arrays})
        return {n: Mixture(*(arrays[f"{n:06d}.{part}"] for part in PARTS)) for n in numbers}


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; an older one at this path is replaced in one step."""
    arrays = {f"state.{i:04d}": state for i, state in enumerate(checkpoint.states)}
    arrays |= {f"trace.{name}": array for name, array in checkpoint.trace.items()}
    about = {"round": checkpoint.round, "fingerprint": checkpoint.fingerprint}
    about |= {"stages": checkpoint.stages, "version": __version__}
    return write_arrays(path, arrays, {"kind": "checkpoint"} | about)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; one of another version, whose steps may be others, is refused."""
    arrays, header = read_arrays(path, "checkpoint")
    if (version := header.get("version")) != __version__:
        raise ValueError(
            f"{str(path)!r} was written by fedmixtures {version or 'before 0.2.0'}, and this "
            f"is {__version__}. Go on with that version, or start anew."
        )
    states = [array for name, array in sorted(arrays.items()) if name.startswith("state.")]
    trace = {n.removeprefix("trace."): a for n, a in arrays.items() if n.startswith("trace.")}
    stages = tuple((name, form, n) for name, form, n in header["stages"])
    return Checkpoint(header["round"], header["fingerprint"], tuple(states), trace, stages)


def check_new(path: Path | None) -> None:
    """A file that a command is to write is not there yet."""
    if path is not None and path.exists():
        raise ValueError(
            f"{str(path)!r} already exists and is left as it is. Choose another --out."
        )


def write_text(path: Path, text: str) -> None:
    """Write a file that is either the old one or the whole new one."""
    write_durably(path, text.encode())


def write_assignments(path: Path, columns: Mapping[str, Any], probabilities: np.ndarray) -> None:
    """Rows with their component and the probability of each, as Parquet or CSV by the ending."""
    import pyarrow as pa

    arrays = {name: pa.array(column) for name, column in columns.items()}
    for c in range(probabilities.shape[1]):
        arrays[f"p{c}"] = pa.array(probabilities[:, c])
    table = pa.table(arrays)
    try:
        if path.suffix.lower() == ".csv":
            from pyarrow import csv

            csv.write_csv(table, path)
        else:
            from pyarrow import parquet

            parquet.write_table(table, path)
    except OSError as error:
        raise ValueError(_unwritable(path, error)) from None


def to_toml(settings: Mapping[str, Any]) -> str:
    """Plain settings as TOML: values first, then one table per mapping; None is left out."""
    return tomli_w.dumps(_plain(settings))


def _plain(value: Any) -> Any:
    """What TOML knows: no None, no NumPy numbers, keys that are strings."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (bool, int, float)) else str(value)


def _unwritable(path: Path, error: Any) -> str:
    reason = getattr(error, "strerror", None) or error
    return f"{str(path)!r} cannot be written ({reason}). Choose another folder with --out."
