"""What Trust-then-Pool costs beside GTV-MMD: bytes on an edge, seconds over the size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction import rendering
from reproduction.cells import Cell, cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.results import Result


def first(experiment: Experiment) -> list[Cell]:
    """Every method at every size."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> dict[tuple[str, int], Cell]:
    options = experiment.options
    return {
        (row.name, n): cell(
            "network_cost",
            **options["base"],
            n_rounds=experiment.n_rounds,
            n_nodes=n,
            degree=min(options["degree"], n - 1),
            method=row.method,
        )
        for row in experiment.rows
        for n in options["sizes"]
    }


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """All timings."""
    extra: dict[str, Any] = {}
    for (name, n), own in _cells(experiment).items():
        extra.setdefault(name, {})[str(n)] = journal.read(own, seeds[0])
    return Result(experiment, tuple(seeds), extra=extra)


def markdown(result: Result) -> str:
    """Bytes, and seconds by size."""
    experiment = result.experiment
    sizes = experiment.options["sizes"]
    lines, devices = [], set()
    for row in experiment.rows:
        found = [result.extra[row.name][str(n)] for n in sizes]
        devices |= {numbers["device"] for numbers in found}
        lines.append([row.label, str(found[0]["bytes"]), *(_seconds(one) for one in found)])
    header = ["Method", "bytes per edge, direction and round", *(f"n = {n:,}" for n in sizes)]
    words = (
        f"Seconds (on a CPU those of the processor, one thread) of a whole solve of "
        f"{experiment.n_rounds} rounds in float64 after compilation (of the first solve, with it, "
        f"in brackets), on {', '.join(sorted(devices))}."
    )
    return f"{words}\n\n{rendering.markdown_table(header, lines)}"


def _seconds(numbers: dict[str, Any]) -> str:
    return f"{numbers['seconds']:.3g} ({numbers['first']:.3g})"
