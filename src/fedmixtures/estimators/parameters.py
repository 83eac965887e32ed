"""Nested parameters (``method__alpha``) for objects that cannot be changed in place."""

from __future__ import annotations

import dataclasses
from typing import Any


def nested(name: str, value: Any) -> dict[str, Any]:
    """All fields of a dataclass, deep, under ``name__field``."""
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            key = f"{name}__{field.name}"
            found[key] = getattr(value, field.name)
            found.update(nested(key, found[key]))
    return found


def replaced(value: Any, path: str, new: Any, name: str) -> Any:
    """A copy of `value` with the field at ``a__b__c`` replaced."""
    head, _, rest = path.partition("__")
    fields = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    if head not in fields:
        has = ", ".join(fields) or "none"
        raise ValueError(
            f"Invalid parameter {head!r} for `{name}` ({type(value).__name__}). Valid ones: {has}."
        )
    inner = replaced(getattr(value, head), rest, new, f"{name}__{head}") if rest else new
    return dataclasses.replace(value, **{head: inner})
