"""Finished cells on disk: one line per cell and seed, appended as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from reproduction.cells import Cell

Numbers = dict[str, Any]


@runtime_checkable
class Reader(Protocol):
    """Where the numbers of finished cells are read from."""

    def read(self, cell: Cell, seed: int) -> Numbers:
        """The numbers of a finished cell."""
        ...


class Journal:
    """What has been computed, by key; an interrupted run goes on from here.

    Keys hold settings, code and seed, so that nothing old is ever taken for new.
    """

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, Numbers] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # a run that was killed may leave half a line
                self._known[entry["key"]] = entry["numbers"]

    def missing(self, cell: Cell, seeds: Iterable[int]) -> list[int]:
        """The seeds of this cell that are still to be computed."""
        return [seed for seed in seeds if cell.key(seed) not in self._known]

    def read(self, cell: Cell, seed: int) -> Numbers:
        """The numbers of a finished cell."""
        return self._known[cell.key(seed)]

    def write(self, cell: Cell, seed: int, numbers: Numbers) -> None:
        """Keep the numbers of a cell."""
        key = cell.key(seed)
        self._known[key] = numbers
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": key, "seed": seed, "numbers": numbers})
        whole = "\n" if self._torn() else ""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{whole}{line}\n")

    def _torn(self) -> bool:
        """Whether the file ends in the middle of a line."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"
