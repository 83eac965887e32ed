"""What it costs to run between sites: held-out log-density minus that of the plain method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction import figures, rendering
from reproduction.cells import Cell, cell, sources_digest
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.results import Keyed, Result, entries
from reproduction.tasks import csv_tables


def first(experiment: Experiment) -> list[Cell]:
    """Every form on every problem."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> Keyed:
    places = {p.name: (p.data, p.graph, p.n_components) for p in experiment.problems}
    for name, data in csv_tables.problems().items():
        for regime in experiment.options["regimes"]:
            own = {k: v for k, v in data.items() if k != "n_nodes"} | {"regime": regime}
            places[f"{name} {regime}"] = own, {}, own["form"]["n_components"]
    return {
        (place, row.name): cell(
            "between_sites",
            data=data,
            graph=graph,
            n_components=k,
            gate=row.options.get("gate"),
            federation=sources_digest("federation"),
        )
        for place, (data, graph, k) in places.items()
        for row in experiment.rows
    }


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Summaries with the paired differences to the plain method."""
    return Result(experiment, tuple(seeds), entries(experiment, _cells(experiment), seeds, journal))


def markdown(result: Result) -> str:
    """Problems against forms: median loss, and the worst seed in brackets."""
    (reference,) = result.experiment.references
    rows = [row for row in result.experiment.rows if row.name != reference]
    lines = []
    for problem in dict.fromkeys(entry.problem for entry in result.entries):
        plain = result.find(problem, reference, "ll")
        assert plain is not None
        cells = [_loss(result, problem, row.name, plain.values) for row in rows]
        lines.append([problem, f"{plain.ours.median:.3f}", *cells])
    words = (
        "Held-out log-density per row, mean over sites, of the plain method; then what is lost by "
        "each form between sites, in nats: median over seeds (worst seed). Below zero: gained."
    )
    header = ["problem", "plain", *(row.label for row in rows)]
    return f"{words}\n\n{rendering.markdown_table(header, lines)}"


def _loss(result: Result, problem: str, row: str, plain: Sequence[Any]) -> str:
    entry = result.find(problem, row, "ll")
    assert entry is not None
    median = entry.differences[result.experiment.references[0]].median
    worst = max(p - v for p, v in zip(plain, entry.values, strict=True))
    return f"{-median:+.3f} ({worst:+.3f})"


def figure(result: Result) -> Any:
    """The trade-off: median loss over the rounding, and over the threshold of the gate."""
    (reference,) = result.experiment.references
    axes_of = result.experiment.options["curves"]
    fig, axes = figures.panels(len(axes_of), 3.2, 2.6)
    problems = list(dict.fromkeys(entry.problem for entry in result.entries))
    for axis, (entry_of_gate, label) in zip(axes, axes_of.items(), strict=True):
        rows = [r for r in result.experiment.rows if entry_of_gate in r.options.get("curves", ())]
        rows = sorted(rows, key=lambda row: row.options["gate"][entry_of_gate])
        at = [row.options["gate"][entry_of_gate] for row in rows]
        for number, problem in enumerate(problems):
            found = [result.find(problem, row.name, "ll") for row in rows]
            loss = [-entry.differences[reference].median for entry in found if entry is not None]
            figures.line(axis, problem, number, at, loss)
        figures.finish(axis, label, "loss (nats)")
    figures.legend(fig, *axes)
    return fig
