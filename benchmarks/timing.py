"""Time contenders side by side: interleaved repetitions, CPU seconds, smallest and spread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Times:
    """Repetitions of one contender."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def add(self, run: Callable) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def record(self, scale: float = 1.0) -> dict:
        """Smallest CPU and wall seconds and the spread, for JSON."""
        return {
            "cpu_seconds": scale * min(self.cpu),
            "cpu_median": scale * float(np.median(self.cpu)),
            "cpu_largest": scale * max(self.cpu),
            "wall_seconds": scale * min(self.wall),
            "repetitions": len(self.cpu),
        }


def interleaved(
    runs: dict[str, Callable], repetitions: int, budget: float = 20.0
) -> dict[str, Times]:
    """Run all contenders in turn, again and again.

    A contender stops early once it has used `budget` CPU seconds; each runs at least once.
    """
    times = {name: Times() for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            if sum(times[name].cpu) < budget:
                times[name].add(run)
    return times


def one_core() -> int:
    """Pin this process to one core; call before anything that starts threads is imported."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    return cores[-1]
