"""Clusters against known populations: one set of names for the network, how many by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reproduction import rendering
from reproduction.cells import Cell, cell
from reproduction.config import Experiment, Row
from reproduction.journal import Journal
from reproduction.results import Keyed, Result, entries
from reproduction.tasks import populations

COLUMNS = ("across", "within", "f", "nmi_across", "nmi_within", "n_clusters", "seconds")
BESIDE = (-2, -1, 0, 1, 2, 4)
"""Numbers of clusters beside the true one from which hindsight chooses."""


def places(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Every problem in every regime, by name."""
    wanted = experiment.options.get("only")
    return {
        f"{name} {regime}": {**data, "regime": regime}
        for name, data in populations.problems().items()
        for regime in experiment.options["regimes"]
        if wanted is None or name in wanted
    }


def first(experiment: Experiment) -> list[Cell]:
    """Every method at every place."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> Keyed:
    return {
        (place, row.name): _cell(row, data)
        for place, data in places(experiment).items()
        for row in experiment.rows
    }


def _cell(row: Row, data: dict[str, Any]) -> Cell:
    options = dict(row.options)
    alone = row.method == "by_node" or options.get("method") == "local"
    k = data.get("n_here", data["n_clusters"]) if alone else data["n_clusters"]
    numbers: dict[str, list[int | None]] = {
        "none": [None],
        "true": [k],
        "hindsight": [k + more for more in BESIDE if k + more > 1],
    }
    told = numbers[options.pop("told", "true")]
    return cell("clusters", data=data, method=row.method, numbers=told, options=options)


class _Best:
    """Read by the summaries: of several numbers of clusters the one that agrees best.

    Across, or within nodes where names mean nothing elsewhere. Which that is, is looked up in the
    labels, run by run: nobody could know it.
    """

    def __init__(self, journal: Journal):
        self.journal = journal

    def read(self, cell: Cell, seed: int) -> dict[str, Any]:
        """The numbers of a run."""
        lists = self.journal.read(cell, seed)
        by = lists["within" if cell.settings["method"] == "by_node" else "across"]
        known = [-np.inf if value is None else value for value in by]
        best = int(np.argmax(known))
        own = {name: values[best] for name, values in lists.items()}
        return {**own, "status": "diverged" if own["across"] is None else "completed"}


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Summaries of all cells, and means over places."""
    cells = _cells(experiment)
    found = entries(experiment, cells, seeds, _Best(journal))
    return Result(experiment, tuple(seeds), found)


def markdown(result: Result) -> str:
    """A table of the means over places, then one per place."""
    parts = [
        "Against labels that no fit has seen, on rows that no fit has seen: adjusted Rand index of "
        "all rows together (across: one set of names) and as the mean over nodes (within); the "
        "F-measure of the best cluster for each population, mean over nodes; normalized mutual "
        "information. Medians over splits. *Best k in hindsight* looks the number of clusters up "
        "in the labels, run by run: nobody could. Without one the method is told the true number, "
        "or (*nothing told*) finds it."
    ]
    names = list(dict.fromkeys(entry.problem for entry in result.entries))
    parts += ["### Mean over all", _table(result, names)]
    for name in names:
        parts += [f"### {name}", _table(result, [name])]
    return "\n\n".join(parts)


def _table(result: Result, problems: Sequence[str]) -> str:
    header = ["Method", *(rendering.METRICS[name] for name in COLUMNS)]
    lines = []
    for row in result.experiment.rows:
        values = [_mean(result, problems, row.name, metric) for metric in COLUMNS]
        if not all(np.isnan(values)):
            digits = [1 if name in ("n_clusters", "seconds") else 3 for name in COLUMNS]
            shown = zip(values, digits, strict=True)
            lines.append([row.label, *(_text(value, digit) for value, digit in shown)])
    return rendering.markdown_table(header, lines)


def _text(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else rendering.NOTHING


def _mean(result: Result, problems: Sequence[str], row: str, metric: str) -> float:
    """Of the medians of each problem; not known unless all are."""
    found = [result.find(problem, row, metric) for problem in problems]
    values = [np.nan if entry is None else entry.ours.median for entry in found]
    return float(np.mean(values))
