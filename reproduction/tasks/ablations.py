"""Trust-then-Pool with one part taken out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.program import LEVELS


def _without(*names: str) -> dict[str, Any]:
    return {"levels": tuple(name for name in LEVELS if name not in names)}


PARTS: dict[str, dict[str, Any]] = {
    **{f"no level {name}": _without(name) for name in LEVELS},
    "own and everyone only": _without("near", "personal", "group"),
    "own, group and everyone": _without("near", "personal"),
    "one strength of the prior": {"strengths": (1.0,)},
    "fewer pooled steps": {"pool_steps": (1, 4, 4)},
    "more pooled steps": {"pool_steps": (8, 15, 15)},
    "three folds": {"n_folds": 3},
    "one start": {"n_starts": 1},
}
"""What is taken out, by name: options of `TrustThenPool` that take it out."""
CONSTANTS: dict[str, tuple[str, Any]] = {
    "groups are all that is connected": ("vote_rounds", 0),
    "weights by own rows alone": ("shrink", 0.0),
}
"""What no option takes out: a constant and the value that does."""


def without(part: str | None) -> AbstractContextManager:
    """While it lasts, the constants of the method are those without this part."""
    return patch.object(C, *CONSTANTS[part]) if part in CONSTANTS else nullcontext()
