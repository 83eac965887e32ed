"""Figures of metrics against a number: p_out, the Dirichlet concentration."""

from __future__ import annotations

from typing import Any

from reproduction import figures
from reproduction.kinds import comparison
from reproduction.kinds.comparison import first, make, then
from reproduction.results import Result

__all__ = ["figure", "first", "make", "markdown", "then"]


def markdown(result: Result) -> str:
    """The numbers behind the curves, problem by problem."""
    return comparison.markdown(result)


def figure(result: Result) -> Any:
    """One panel per metric, one curve per row."""
    experiment = result.experiment
    options = experiment.options
    panels = options["panels"]
    fig, axes = figures.panels(len(panels))
    hidden = options.get("hidden", [])
    for axis, metric in zip(axes, panels, strict=True):
        for number, row in enumerate(r for r in experiment.rows if not r.only):
            if row.name in hidden:
                continue
            points = [
                (problem.at, entry.ours, entry.paper)
                for problem in experiment.problems
                if (entry := result.find(problem.name, row.name, metric)) is not None
            ]
            if points:
                figures.curve(axis, row.label, number, points)
        figures.finish(axis, options["axis"], metric, log=options.get("log", False))
        if metric == "ll" and "low" in options:
            axis.set_ylim(bottom=options["low"])
    figures.legend(fig, *axes)
    return fig
