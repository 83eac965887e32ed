"""Missing cells: ways to treat them, a column that one node lacks, memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from reproduction import rendering
from reproduction.cells import Cell, cell
from reproduction.config import Experiment, Row
from reproduction.journal import Journal
from reproduction.results import Keyed, Result, entries
from reproduction.tasks import csv_tables

WAYS = {
    "whole": "nothing missing",
    "exact": "exact EM",
    "complete": "complete rows only",
    "mean": "filled by the node's means",
}


MEAN = Row("mean", "pooled mean and variance", "mean")
"""What a column that a node lacks is predicted by without any fit."""


def first(experiment: Experiment) -> list[Cell]:
    """Everything: nothing waits for another's outcome."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> Keyed:
    return {**_ways(experiment), **_absent(experiment), **_costs(experiment)}


def _ways(experiment: Experiment) -> Keyed:
    """Every method with every way to treat gaps, on the SBM and on every table of the folder."""
    options, found = experiment.options, {}
    places: dict[str, tuple[Any, Any, int]] = {
        p.name: (p.data, p.graph, p.n_components) for p in experiment.problems
    }
    for name, data in csv_tables.problems().items():
        data = {k: v for k, v in data.items() if k != "n_nodes"} | {"regime": options["regime"]}
        places[name] = data, "full", data["form"]["n_components"]
    for place, (data, graph, k) in places.items():
        for row in experiment.rows:
            for way in options["ways"]:
                settings = {"what": "held-out", "way": way, "share": options["share"]}
                own = _cell(row, data=data, graph=graph, n_components=k, **settings)
                found[place, f"{row.name}-{way}"] = own
    return found


def _absent(experiment: Experiment) -> Keyed:
    """A column taken from one node after the other, predicted by each method and by the mean."""
    found: Keyed = {}
    tables = csv_tables.problems()
    for wanted in experiment.options["absent"]:
        if wanted["table"] not in tables:
            continue
        data = {k: v for k, v in tables[wanted["table"]].items() if k != "n_nodes"}
        if "form" in wanted:
            data["form"] = asdict(csv_tables.TableForm(**wanted["form"]))
        data["regime"] = experiment.options["regime"]
        for node in wanted["nodes"]:
            for row in (*experiment.rows, MEAN):
                settings = {"what": "absent", "node": node, "column": wanted["column"]}
                k = data["form"]["n_components"]
                own = _cell(row, data=data, graph="full", n_components=k, **settings)
                found[f"{wanted['column']} at {node}", row.name] = own
    return found


def _costs(experiment: Experiment) -> Keyed:
    """Each method on rows of one size with more and more patterns of gaps."""
    options, found = experiment.options, {}
    size = options["size"]
    for n in options["patterns"]:
        for row in experiment.rows:
            settings = {"what": "cost", "patterns": n, "size": size, "share": options["share"]}
            k = size["n_components"]
            own = _cell(row, data={}, graph="full", n_components=k, **settings)
            found[f"{n} patterns", row.name] = own
    return found


def _cell(row: Row, **settings: Any) -> Cell:
    return cell("gaps", method=row.method, options=row.options, **settings)


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Summaries of all cells; paired differences to exact EM and to the mean."""
    rows = [
        *(Row(f"{r.name}-{w}", f"{r.label}, {WAYS[w]}", r.method) for r in experiment.rows
          for w in experiment.options["ways"]),
        *experiment.rows,
        MEAN,
    ]  # fmt: skip
    whole = replace(experiment, rows=rows)
    return Result(whole, tuple(seeds), entries(whole, _cells(experiment), seeds, journal))


def markdown(result: Result) -> str:
    """Three tables."""
    options = result.experiment.options
    methods = [row for row in result.experiment.rows if row.name != "mean" and "-" not in row.name]
    problems = list(dict.fromkeys(entry.problem for entry in result.entries))
    places = [p for p in problems if " at " not in p and not p.endswith("patterns")]
    share, size = options["share"], options["size"]
    parts = [
        f"### {share:.0%} of all cells missing",
        "Log-density per held-out row of the cells that are there, mean over nodes; in brackets "
        "the paired difference to exact EM of the same method.",
        rendering.markdown_table(
            ["", *places],
            [
                [f"{row.label}, {WAYS[way]}", *(_way(result, p, row.name, way) for p in places)]
                for row in methods
                for way in options["ways"]
            ],
        ),
        "### A column that one node lacks",
        "For the node's held-out rows, from their other columns: root mean square error in pooled "
        "standard deviations, and log-density; in brackets the paired difference to the mean and "
        "variance of the other nodes.",
        rendering.markdown_table(
            ["", *(label for row in methods for label in (f"{row.label}: error", "log-density"))],
            [
                [p, *(_foretold(result, p, r.name, m) for r in methods for m in ("rmse", "ll"))]
                for p in problems
                if " at " in p
            ],
        ),
        "### Memory and time",
        f"{size['n_nodes']} nodes of {size['n_rows']} rows, {size['n_features']} features, "
        f"{size['n_components']} components: processor seconds of a second fit, peak memory of "
        "the whole process.",
        rendering.markdown_table(
            ["", *(row.label for row in methods)],
            [
                [p, *(_price(result, p, row.name) for row in methods)]
                for p in problems
                if p.endswith("patterns")
            ],
        ),
    ]
    return "\n\n".join(parts)


def _way(result: Result, problem: str, row: str, way: str) -> str:
    entry = result.find(problem, f"{row}-{way}", "ll")
    if entry is None:
        return rendering.NOTHING
    gap = entry.differences.get(f"{row}-exact")
    beside = "" if gap is None else f" ({rendering.interval_text(gap, sign=True)})"
    return rendering.ours_text(entry) + beside


def _foretold(result: Result, problem: str, row: str, metric: str) -> str:
    entry = result.find(problem, row, metric)
    if entry is None:
        return rendering.NOTHING
    gap = rendering.interval_text(entry.differences[MEAN.name], sign=True)
    return f"{rendering.interval_text(entry.ours)} ({gap})"


def _price(result: Result, problem: str, row: str) -> str:
    seconds, memory = (result.find(problem, row, name) for name in ("seconds", "megabytes"))
    if seconds is None or memory is None:
        return rendering.NOTHING
    return f"{seconds.ours.median:.1f} s, {memory.ours.median:.0f} MB"
