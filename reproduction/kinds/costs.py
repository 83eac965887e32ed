"""Table 1: the cost of D over components, features and samples, with fitted exponents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reproduction import figures, rendering
from reproduction.cells import Cell, cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.published import order
from reproduction.results import Result

LABELS = {
    "euclidean": "Euclidean, all pairs",
    "matching": "Euclidean, with matching",
    "kl": "KL",
    "mmd": "MMD",
}
LEADING = {
    ("euclidean", "k"): 2,
    ("euclidean", "d"): 2,
    ("matching", "k"): 3,
    ("kl", "k"): 1,
    ("kl", "n_samples"): 1,
    ("kl", "d"): 3,
    ("mmd", "k"): 2,
    ("mmd", "d"): 3,
}
"""The exponent of the stated leading order as one number grows and the others stand."""


def first(experiment: Experiment) -> list[Cell]:
    """Every discrepancy along each axis it depends on."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> dict[tuple[str, str, int], Cell]:
    options = experiment.options
    return {
        (name, axis, value): cell(
            "operations",
            **{**options["base"], **options["others"][axis], axis: value},
            discrepancy=name,
        )
        for name, axis in LEADING
        for value in options[axis]
    }


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Costs and exponents by discrepancy and axis."""
    extra: dict[str, Any] = {}
    for (name, axis, value), own in _cells(experiment).items():
        numbers = journal.read(own, seeds[0])
        line = extra.setdefault(name, {}).setdefault(
            axis, {"at": [], "operations": [], "seconds": []}
        )
        line["at"].append(value)
        line["operations"].append(numbers["operations"])
        line["seconds"].append(numbers["seconds"])
    for name, axes in extra.items():
        for axis, line in axes.items():
            line["stated"] = LEADING[name, axis]
            line["exponent"] = exponent(line["at"], line["operations"])
            line["exponent_of_time"] = exponent(line["at"], line["seconds"])
    return Result(experiment, tuple(seeds), extra=extra)


def exponent(at: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Slope in doubly logarithmic axes over the upper three points: the leading order."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return float(np.polyfit(np.log(at[-3:]), np.log(known[-3:]), 1)[0])


def markdown(result: Result) -> str:
    """Exponents, and the counts they come from."""
    header = ["D", "Stated order", "grows in", "stated exponent", "operations", "time"]
    lines, details = [], []
    for name, axes in result.extra.items():
        for axis, line in axes.items():
            lines.append(
                [
                    LABELS[name],
                    order("euclidean" if name == "matching" else name),
                    f"{axis} = {line['at'][0]} … {line['at'][-1]}",
                    str(line["stated"]),
                    _number(line["exponent"], ".2f"),
                    _number(line["exponent_of_time"], ".2f"),
                ]
            )
            counts = ", ".join(_number(n, ",") for n in line["operations"])
            times = ", ".join(f"{1e6 * t:.3g}" for t in line["seconds"])
            details.append([LABELS[name], axis, ", ".join(map(str, line["at"])), counts, times])
    columns = ["D", "axis", "at", "operations per edge", "microseconds per edge"]
    return "\n\n".join(
        [rendering.markdown_table(header, lines), rendering.markdown_table(columns, details)]
    )


def _number(value: float | None, form: str) -> str:
    return rendering.NOTHING if value is None else format(value, form)


def figure(result: Result) -> Any:
    """Operations against each number, doubly logarithmic."""
    fig, axes = figures.panels(3)
    for axis, name in zip(axes, ("k", "d", "n_samples"), strict=True):
        for number, (discrepancy, lines) in enumerate(result.extra.items()):
            line = lines.get(name)
            if line and None not in line["operations"]:
                figures.line(axis, LABELS[discrepancy], number, line["at"], line["operations"])
        axis.set_yscale("log")
        figures.finish(axis, name, "operations per edge", log=True)
    figures.legend(fig, *axes)
    return fig
