"""Methods on real tables: every table of a folder, few rows or most of them, on its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reproduction import figures, rendering
from reproduction.cells import HUBS, ONE_SHOT, Cell, cell
from reproduction.config import Experiment, Row
from reproduction.journal import Journal
from reproduction.results import Entry, Keyed, Result, entries
from reproduction.tasks import csv_tables

REGIMES = {"few": "few rows", "70/30": "70/30"}
COLUMNS = ("ll", "ll_trimmed", "worst", "ari", "nmi", "seconds")
LEAST_NODES = 8
"""With fewer nodes a graph of nearest neighbours is as good as full."""


class Place(NamedTuple):
    """One problem of the experiment."""

    table: str
    regime: str
    graph: str

    @property
    def name(self) -> str:
        """As results call it."""
        return f"{self.table} {self.regime} {self.graph}"


def places(experiment: Experiment) -> dict[Place, dict[str, Any]]:
    """Every table of the folder under every regime on every graph that it has nodes for."""
    found, options = {}, experiment.options
    for table, data in csv_tables.problems().items():
        data = dict(data)
        graphs = options["graphs"] if data.pop("n_nodes") >= LEAST_NODES else ["full"]
        for regime in options["regimes"]:
            for graph in graphs:
                found[Place(table, regime, graph)] = {**data, "regime": regime}
    return found


def first(experiment: Experiment) -> list[Cell]:
    """Every method at every place."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> Keyed:
    return {
        (place.name, row.name): held_out_cell(
            row, data, place.graph, data["form"]["n_components"], experiment.n_rounds
        )
        for place, data in places(experiment).items()
        for row in experiment.rows
    }


def held_out_cell(row: Row, data: dict[str, Any], graph: str, k: int, n_rounds: int) -> Cell:
    """The cell of a row on some data; methods that look at no edge have one for all graphs."""
    options = dict(row.options)
    standardised = options.pop("standardised", False)
    rounds = options.pop("n_rounds", n_rounds)
    single = row.method in ONE_SHOT
    return cell(
        "held_out",
        data=data,
        graph="" if single or row.method in HUBS else graph,
        n_components=k,
        method=row.method,
        options=options,
        n_rounds=0 if single else rounds,
        standardised=standardised,
        dtype=data.get("dtype", "float64"),
    )


class _WithWorst:
    """Read by the summaries: numbers with the worst node's gain over the same node's Local."""

    def __init__(self, journal: Journal, local: dict[Cell, Cell]):
        self.journal, self.local = journal, local

    def read(self, cell: Cell, seed: int) -> dict[str, Any]:
        """The numbers of a run, with ``worst``."""
        own = self.journal.read(cell, seed)
        alone = self.journal.read(self.local[cell], seed) if cell in self.local else {}
        worst = None
        if own["status"] == "completed" and alone.get("status") == "completed":
            worst = float(np.min(np.subtract(own["nodes"], alone["nodes"])))
        return {**own, "worst": worst}


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Summaries of all cells, and why runs without numbers have none."""
    cells = _cells(experiment)
    local = {own: cells[p, "local"] for (p, _), own in cells.items() if (p, "local") in cells}
    found = entries(experiment, cells, seeds, _WithWorst(journal, local))
    messages = {}
    for (place, row), own in cells.items():
        lost = [journal.read(own, seed).get("message") for seed in seeds]
        if any(lost):
            messages.setdefault(place, {})[row] = next(filter(None, lost))
    return Result(experiment, tuple(seeds), found, extra={"messages": messages})


def markdown(result: Result) -> str:
    """A table per problem; whoever beats the reference there stands in bold."""
    reference = result.experiment.references[0]
    label = result.experiment.row(reference).label
    parts = [
        "Held-out log-density per row, mean over nodes; trimmed: without each node's lowest 5 % of "
        f"rows. In bold: above {label} by the paired median. Medians over splits with bootstrap "
        "intervals; processor seconds of a fit, with compilation where a process does it first."
    ]
    for name in dict.fromkeys(entry.problem for entry in result.entries):
        parts += [f"### {name}", _table(result, name, reference, label)]
        for row, message in result.extra["messages"].get(name, {}).items():
            parts.append(f"{result.experiment.row(row).label}: {message}")
    return "\n\n".join(parts)


def _table(result: Result, problem: str, reference: str, label: str) -> str:
    known = {entry.metric for entry in result.entries if entry.problem == problem}
    metrics = [name for name in COLUMNS if name in known]
    header = ["Method", *(rendering.METRICS[name] for name in metrics[:1]), f"LL − {label}"]
    header += [rendering.METRICS[name] for name in metrics[1:]]
    lines = []
    for row in result.experiment.rows:
        found = {name: result.find(problem, row.name, name) for name in metrics}
        if found["ll"] is None:
            continue
        gap = found["ll"].differences.get(reference)
        better = gap is not None and gap.median > 0
        cells = [_text(entry) for entry in found.values()]
        cells.insert(
            1, rendering.NOTHING if gap is None else rendering.interval_text(gap, sign=True)
        )
        lines.append([f"**{row.label}**" if better else row.label, *cells])
    return rendering.markdown_table(header, lines)


def _text(entry: Entry | None) -> str:
    if entry is None:
        return rendering.NOTHING
    if entry.metric == "ll":
        return rendering.ours_text(entry)
    digits = 1 if entry.metric == "seconds" else rendering.DIGITS
    known = np.isfinite(entry.ours.median)
    return f"{entry.ours.median:.{digits}f}" if known else rendering.NOTHING


def figure(result: Result) -> Any:
    """LL minus the reference: a panel per table, a line per method, a marker per problem."""
    experiment = result.experiment
    reference = experiment.references[0]
    rows = [row for row in experiment.rows if row.name != reference]
    names = list(dict.fromkeys(entry.problem for entry in result.entries))
    tables = list(dict.fromkeys(name.split()[0] for name in names))
    if not rows or not tables:
        return None
    fig, axes = figures.panels(len(tables), 3.5, 1.0 + 0.14 * len(rows))
    for axis, table in zip(axes, tables, strict=True):
        for number, name in enumerate(name for name in names if name.split()[0] == table):
            found = [result.find(name, row.name, "ll") for row in rows]
            gaps = [e.differences[reference].median if e else np.nan for e in found]
            places = " ".join(name.split()[1:])
            figures.dots(axis, places, number, gaps, [row.label for row in rows])
        axis.set_xscale("symlog", linthresh=0.1)
        if axis is not axes[0]:  # the names of the methods stand at the first
            axis.set_yticklabels([])
        figures.finish(axis, f"{table}: LL − {experiment.row(reference).label}", "")
    figures.legend(fig, *axes)
    return fig
