"""How to run, as opposed to what; options that play no part in a method are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedmixtures._types import Device
from fedmixtures.engine.run.watch import Checkpoint, Progress
from fedmixtures.methods.base import Method
from fedmixtures.methods.protocol import Protocol

ROUNDS = 40
"""Of a method in rounds, unless it is told otherwise."""
IN_ROUNDS = frozenset({"neighbours", "hub"})
"""Kinds of methods that run in rounds, which an engine counts."""
BY_TURNS = IN_ROUNDS | {"protocol"}
"""Kinds of methods that an engine watches on their way and can go on from."""
IDLE: dict[str, tuple[frozenset[str], str]] = {
    "n_rounds": (IN_ROUNDS, "has no rounds to count"),
    "rounds": (IN_ROUNDS, "has no rounds to count"),  # as the command line has it
    "tol": (IN_ROUNDS, "has no rounds to stop between"),
    "report_every": (BY_TURNS, "has no rounds to report"),
    "resume": (BY_TURNS, "has nothing to go on from before its end"),
    "checkpoint": (BY_TURNS, "has nothing to go on from before its end"),
    "keep_interrupted": (BY_TURNS, "has nothing to keep before its end"),
    "block_size": (IN_ROUNDS, "runs all nodes together"),
    "devices": (frozenset({"neighbours"}), "runs on one device"),
    "dtype": (frozenset(), "computes in float64"),
}
"""Kinds of methods in which an option plays a part, and what is said of the others."""


@dataclass(frozen=True)
class Options:
    """How to run: as in `solve`."""

    seed: int = 0
    dtype: str = "float64"
    n_rounds: int = ROUNDS
    tol: float = 0.0
    watch: Callable[[Progress], Any] | None = None
    announce: Callable[[str], Any] | None = None
    report_every: int | None = None
    checkpoint: Callable[[Checkpoint], Any] | None = None
    resume: Checkpoint | None = None
    keep_nodes: bool = False
    keep_interrupted: bool = False
    devices: tuple[Device, ...] = ()
    block_size: int | None = None


def in_rounds(method: Method) -> bool:
    """Whether it runs in rounds: others are done at once, or when they know themselves."""
    return method.kind in IN_ROUNDS


def plays_a_part(name: str, method: Method) -> bool:
    """Whether the option of this name changes anything in a run of this method."""
    if name == "dtype":
        return method.supports_float32
    if name == "devices" and isinstance(method, Protocol):
        return method.spreads
    return name not in IDLE or method.kind in IDLE[name][0]


def used(method: Method, **options: Any) -> dict[str, Any]:
    """Drop options that play no part in this method, to run several with the same options."""
    return {name: value for name, value in options.items() if plays_a_part(name, method)}


def refuse_idle(method: Method, shown: str = "`{}`", **options: Any) -> None:
    """Refuse what was asked for and would change nothing; `shown` is how names are written."""
    for name, value in options.items():
        if plays_a_part(name, method) or not _asks(name, value):
            continue
        kind = type(method).__name__
        own = name in vars(method)
        why = "has one of its own" if own else IDLE[name][1]
        remedy = (
            f"Leave it out, or give it to the method itself: {kind}({name}=...)."
            if own
            else "Leave it out, or take a method in rounds with neighbours, such as 'gtv-mmd'."
        )
        raise ValueError(f"{shown.format(name)} is {_told(value)}, but {kind} {why}. {remedy}")


def _asks(name: str, value: Any) -> bool:
    """Whether a value is more than what happens anyway."""
    match name:
        case "devices":
            return value is not None and (value if isinstance(value, int) else len(value)) > 1
        case "dtype":
            return value not in (None, "float64")
        case "keep_interrupted":
            return bool(value)
    return value is not None


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} devices"
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"
