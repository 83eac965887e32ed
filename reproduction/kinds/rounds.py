"""Centroid error and effective number of components over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmixtures.metrics import median_interval
from reproduction import figures, rendering, selecting
from reproduction.cells import Cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.kinds import comparison
from reproduction.kinds.comparison import first
from reproduction.published import place
from reproduction.results import Result, entries

__all__ = ["figure", "first", "make", "markdown", "then"]

SHOWN = (0, 1, 2, 5, 10, 20, 30, 40)
"""Rounds of the table."""


def then(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> list[Cell]:
    """The chosen rows once more, looked at after every round."""
    return list(comparison.keyed(experiment, seeds, journal, "rounds").values())


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Final numbers as entries; every round's median and interval as extra."""
    cells = comparison.keyed(experiment, seeds, journal, "rounds")
    flat = {place: _last(journal, cell, seeds) for place, cell in cells.items()}
    found = entries(experiment, cells, seeds, _Final(flat))
    extra = {}
    for (problem, row), cell in cells.items():
        runs = [journal.read(cell, seed) for seed in seeds]
        if not isinstance(runs[0].get("err"), list):
            continue
        for metric in experiment.metrics:
            per_round = np.array([run[metric] for run in runs]).T
            extra.setdefault(problem, {}).setdefault(row, {})[metric] = [
                list(median_interval(values)) for values in per_round
            ]
    chosen = selecting.chosen(experiment, seeds, journal)
    return Result(experiment, tuple(seeds), found, chosen, extra)


class _Final:
    """Read by the summaries: the numbers after the last round."""

    def __init__(self, numbers: dict[Any, dict]):
        self._numbers = {id_: n for runs in numbers.values() for id_, n in runs.items()}

    def read(self, cell: Cell, seed: int) -> dict[str, Any]:
        """The numbers of a run, lists cut to their last entry."""
        return self._numbers[cell, seed]


def _last(journal: Journal, cell: Cell, seeds: Sequence[int]) -> dict:
    cut = lambda value: value[-1] if isinstance(value, list) else value
    return {
        (cell, seed): {name: cut(v) for name, v in journal.read(cell, seed).items()}
        for seed in seeds
    }


def markdown(result: Result) -> str:
    """The last round against the paper, and some rounds on the way."""
    parts = [comparison.markdown(result), f"Paper: {place(result.experiment.name)}."]
    (problem, rows), *_ = result.extra.items()
    for metric in result.experiment.metrics:
        header = [f"{rendering.METRICS[metric]} after round", *map(str, SHOWN)]
        lines = [
            [result.experiment.row(row).label]
            + [f"{curves[metric][t][0]:.2f}" for t in SHOWN if t < len(curves[metric])]
            for row, curves in rows.items()
        ]
        parts.append(rendering.markdown_table(header, lines))
    return "\n\n".join(parts)


def figure(result: Result) -> Any:
    """Error on the left, effective components on the right."""
    experiment = result.experiment
    metrics = experiment.metrics
    fig, axes = figures.panels(len(metrics))
    problem = experiment.problems[0].name
    for axis, metric in zip(axes, metrics, strict=True):
        for number, row in enumerate(experiment.rows):
            curve = result.extra[problem].get(row.name, {}).get(metric)
            entry = result.find(problem, row.name, metric)
            if curve is not None:
                figures.band(axis, row.label, number, np.arange(len(curve)), np.array(curve))
            elif entry is not None and row.name == "local":
                figures.level(axis, row.label, entry.ours)
        if metric == "k_eff":
            figures.mark(axis, experiment.problems[0].n_components, "k")
        figures.finish(axis, "round", metric)
    figures.legend(fig, *axes)
    return fig
