"""What an experiment gives: numbers by problem, row and metric, over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmixtures.metrics import Interval, median_interval, paired_difference
from reproduction.cells import Cell
from reproduction.config import Experiment
from reproduction.journal import Reader
from reproduction.published import Published, Verdict, published

WORST = {"err": np.inf}
"""What a diverged seed counts as; minus infinity for all other metrics."""


@dataclass(frozen=True)
class Entry:
    """One metric of one row on one problem."""

    problem: str
    row: str
    metric: str
    values: tuple[float | None, ...]
    """One per seed; None where the run diverged."""
    ours: Interval
    paper: Published | None
    verdict: Verdict
    differences: dict[str, Interval] = field(default_factory=dict)
    """Ours minus a reference row's, seed by seed."""

    @property
    def n_diverged(self) -> int:
        """How many seeds diverged."""
        return sum(value is None for value in self.values)

    def record(self) -> dict[str, Any]:
        """Plain values for JSON and CSV."""
        return {
            "problem": self.problem,
            "row": self.row,
            "metric": self.metric,
            "paper": self.paper.text if self.paper else None,
            "median": finite(self.ours.median),
            "low": finite(self.ours.low),
            "high": finite(self.ours.high),
            "verdict": self.verdict,
            "diverged": self.n_diverged,
            "differences": {
                name: [finite(value) for value in interval]
                for name, interval in self.differences.items()
            },
            "values": list(self.values),
        }


@dataclass
class Result:
    """All numbers of an experiment, with what is needed to read them."""

    experiment: Experiment
    seeds: tuple[int, ...]
    entries: list[Entry] = field(default_factory=list)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the grid protocol chose, by row."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What only this kind of experiment has."""

    def find(self, problem: str, row: str, metric: str) -> Entry | None:
        """The entry of a cell, if there is one."""
        for entry in self.entries:
            if (entry.problem, entry.row, entry.metric) == (problem, row, metric):
                return entry
        return None


Keyed = dict[tuple[str, str], Cell]
"""Cells by problem and row."""


def entries(
    experiment: Experiment, cells: Keyed, seeds: Sequence[int], journal: Reader
) -> list[Entry]:
    """Summaries of all cells, with the paper's numbers and the paired differences."""
    values = {
        (problem, row, metric): _column(journal, cell, metric, seeds)
        for (problem, row), cell in cells.items()
        for metric in experiment.metrics
    }
    values = {place: column for place, column in values.items() if column is not None}
    return [_entry(experiment, place, values) for place in values]


def _column(
    journal: Reader, cell: Cell, metric: str, seeds: Iterable[int]
) -> tuple[float | None, ...] | None:
    """The metric of every seed; None where the method has no such metric."""
    found = [journal.read(cell, seed) for seed in seeds]
    known = [n[metric] for n in found if n["status"] == "completed"]
    if any(value is None for value in known):
        return None
    return tuple(n[metric] if n["status"] == "completed" else None for n in found)


def _entry(experiment: Experiment, place: tuple[str, str, str], values: dict) -> Entry:
    problem, row, metric = place
    column = values[place]
    ours = median_interval(filled(column, metric))
    paper = published(experiment.name, problem, row, metric)
    differences = {
        reference: paired_difference(
            filled(column, metric), filled(values[problem, reference, metric], metric)
        )
        for reference in experiment.references
        if reference != row and (problem, reference, metric) in values
    }
    verdict: Verdict = paper.verdict(ours) if paper else ""
    return Entry(problem, row, metric, column, ours, paper, verdict, differences)


def filled(column: Sequence[float | None], metric: str) -> np.ndarray:
    """The values with diverged seeds at the worst."""
    worst = WORST.get(metric, -np.inf)
    return np.array([worst if value is None else value for value in column], dtype=float)


def finite(value: float) -> float | None:
    """The value, or None where JSON has no word for it."""
    return float(value) if np.isfinite(value) else None
