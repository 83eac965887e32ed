"""The grid protocol: options are chosen by validation likelihood on homogeneous data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from fedmixtures._ties import first_greatest
from reproduction.cells import Cell, fit_cell
from reproduction.config import Experiment, Problem, Row
from reproduction.journal import Journal

Choice = dict[str, Any]


def grid(experiment: Experiment, row: Row, problem: Problem) -> list[tuple[Choice, Cell]]:
    """Every combination of the values to choose from, and its cell on this problem."""
    choices = [dict(zip(row.tune, values, strict=True)) for values in product(*row.tune.values())]
    return [(choice, fit_cell(experiment, row, problem, choice)) for choice in choices]


def median_likelihood(cell: Cell, seeds: Sequence[int], journal: Journal) -> float:
    """Median validation LL over seeds; a diverged seed counts as minus infinity."""
    found = [journal.read(cell, seed)["ll"] for seed in seeds]
    return float(np.median([-np.inf if value is None else value for value in found]))


def choose(
    candidates: Iterable[tuple[Choice, Cell]], seeds: Sequence[int], journal: Journal
) -> Choice:
    """The choice with the highest median validation LL; the first of equals."""
    tried = list(candidates)
    medians = np.array([median_likelihood(cell, seeds, journal) for _, cell in tried])
    return tried[first_greatest(medians, scale=1.0)][0]


def tuning_cells(experiment: Experiment) -> list[Cell]:
    """All cells that must be known before the tuned rows can be run."""
    return [
        cell
        for row in experiment.rows
        if row.tune
        for problem in experiment.tuning
        for _, cell in grid(experiment, row, problem)
    ]


def chosen(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> dict[str, Choice]:
    """What the protocol chooses for every row that is tuned."""
    return {
        row.name: choose(grid(experiment, row, experiment.tuning[0]), seeds, journal)
        for row in experiment.rows
        if row.tune
    }
