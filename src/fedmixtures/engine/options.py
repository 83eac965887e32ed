"""How to run, as opposed to what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedmixtures._types import Device
from fedmixtures.engine.run.checkpoint import Checkpoint
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Options:
    """Rounds, seed, precision, devices, and who is told."""

    n_rounds: int = 40
    seed: int = 0
    dtype: str = "float64"
    block_size: int | None = None
    """None lets the engine choose; 1 runs every node as a federation would."""
    report_every: int | None = None
    """Rounds between two looks at the run; None runs as many as fit in one call."""
    on_round: Callable[[dict[str, float]], Any] | None = None
    on_chunk: Callable[[int, Mixture], Any] | None = None
    """Called with the round reached and all mixtures: at the start, then every `report_every`."""
    on_checkpoint: Callable[[Checkpoint], Any] | None = None
    """Called with what it takes to go on, every `report_every` rounds."""
    resume: Checkpoint | None = None
    """Go on from here."""
    devices: tuple[Device, ...] = ()
    """Where to run: over all of these if they are several, else where JAX runs by default.
    Only what neighbours send each other is spread; methods with a hub run on one."""
    keep_nodes: bool = False
    """Keep each node's fit and pull of every round."""
    tol: float = 0.0
    """Stop once no node's parameters change by more than this in a round, relative to their norm.
    Zero runs all rounds."""
    keep_interrupted: bool = False
    """What Ctrl-C does: return the last finished round, or raise KeyboardInterrupt."""
