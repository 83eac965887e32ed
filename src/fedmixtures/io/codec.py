"""Python values to JSON and back: labels, settings and records, never code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np


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
