"""Nested parameters (``method__alpha``) for objects that cannot be changed in place."""

from __future__ import annotations

import dataclasses
from typing import Any

from sklearn.base import BaseEstimator

from fedmixtures.estimators import resolve


def nested(name: str, value: Any) -> dict[str, Any]:
    """All fields of a dataclass, deep, under ``name__field``."""
    found: dict[str, Any] = {}
    for field in _fields(value):
        key = f"{name}__{field}"
        found[key] = getattr(value, field)
        found.update(nested(key, found[key]))
    return found


def _fields(value: Any) -> list[str]:
    """Names of the fields of a dataclass object; nothing else has any."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return []
    return [field.name for field in dataclasses.fields(value)]


def replaced(value: Any, path: str, new: Any, name: str) -> Any:
    """A copy of `value` with the field at ``a__b__c`` replaced."""
    head, _, rest = path.partition("__")
    fields = _fields(value)
    if head not in fields:
        has = ", ".join(fields) or "none"
        raise ValueError(
            f"Invalid parameter {head!r} for `{name}` ({type(value).__name__}). Valid ones: {has}."
        )
    inner = replaced(getattr(value, head), rest, new, f"{name}__{head}") if rest else new
    return dataclasses.replace(value, **{head: inner})


class NestedParameters(BaseEstimator):
    """`get_params` and `set_params` that reach into the frozen objects of an estimator."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; with `deep` also those of method and start, as ``method__alpha``."""
        params = super().get_params(deep=False)
        if deep:
            for name, resolved in (("method", resolve.METHODS), ("init", resolve.STARTS)):
                value = params[name]
                known = isinstance(value, str) and value in resolved
                params.update(nested(name, resolved[value]() if known else value))
        return params

    def set_params(self, **params: Any):
        """Set parameters; ``method__alpha=0.3`` replaces the method by one with that alpha."""
        for key in sorted(params, key=lambda key: key.count("__")):
            name, _, path = key.partition("__")
            if not path:
                super().set_params(**{name: params[key]})
                continue
            whole = {"method": resolve.resolve_method, "init": resolve.resolve_start}.get(name)
            if whole is None:
                raise ValueError(f"Invalid parameter {key!r} for {type(self).__name__}.")
            current = whole(getattr(self, name))
            setattr(self, name, replaced(current, path, params[key], name))
        return self
