"""How things are stored: arrays with a JSON header, values as JSON, files whole or not at all.

No code runs on load. This module needs no JAX: whoever only watches a federation uses it too.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

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


def write_durably(path: Path, content: bytes) -> None:
    """Write beside the file, sync, put in its place, sync the folder."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(scratch, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        scratch.unlink(missing_ok=True)


class UnknownType(ValueError):
    """A stored value is of a class this version does not know."""


def encode(value: Any) -> Any:
    """A JSON value that `decode` turns back; unknown kinds of values are refused by name."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, Mapping):
        return {"map": [[encode(key), encode(item)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    raise ValueError(
        f"cannot store {value!r} of type {type(value).__name__}. Use strings, numbers or tuples."
    )


def decode(value: Any, classes: Mapping[str, type]) -> Any:
    """The value that was encoded; dataclasses are made from `classes` alone."""
    if isinstance(value, list):
        return [decode(item, classes) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item, classes) for item in value["tuple"])
    if "array" in value:
        return np.array(value["array"])
    if "map" in value:
        return {decode(key, classes): decode(item, classes) for key, item in value["map"]}
    name = value["class"]
    if name not in classes:
        raise UnknownType(name)
    return classes[name](**{k: decode(item, classes) for k, item in value["fields"].items()})
