"""The selection protocol itself: validation likelihood over the grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedmixtures.metrics import median_interval
from reproduction import figures, rendering, selecting
from reproduction.cells import Cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.results import Entry, Result, filled


def first(experiment: Experiment) -> list[Cell]:
    """The whole grid on every problem."""
    return [
        cell
        for row, problem in experiment.pairs()
        for _, cell in selecting.grid(experiment, row, problem)
    ]


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Median likelihood of every choice, and which one the protocol takes."""
    found, extra = [], {}
    for row, problem in experiment.pairs():
        candidates = selecting.grid(experiment, row, problem)
        best = selecting.choose(candidates, seeds, journal)
        extra.setdefault(problem.name, {})[row.name] = best
        for choice, cell in candidates:
            values = tuple(journal.read(cell, seed)["ll"] for seed in seeds)
            ours = median_interval(filled(values, "ll"))
            name = f"{row.name} {named(choice)}"
            found.append(Entry(problem.name, name, "ll", values, ours, None, ""))
    return Result(experiment, tuple(seeds), found, extra=extra)


def named(choice: dict[str, Any]) -> str:
    """A choice in words."""
    return ", ".join(f"{name} = {value:g}" for name, value in choice.items())


def markdown(result: Result) -> str:
    """A table per problem: the grid, its own choice, and what the paper uses."""
    experiment, parts = result.experiment, []
    used = experiment.options.get("used", {})
    for problem in experiment.problems:
        rows = [row for row, at in experiment.pairs() if at is problem]
        alphas = next(row.tune["alpha"] for row in rows if "alpha" in row.tune)
        header = ["Method", *(f"alpha = {a:g}" for a in alphas), "grid's choice", "paper's choice"]
        lines = []
        for row in rows:
            if list(row.tune) != ["alpha"]:
                continue
            texts = [_text(result, problem.name, f"{row.name} alpha = {a:g}") for a in alphas]
            best = result.extra[problem.name][row.name]["alpha"]
            stated = used.get(problem.name, {}).get(row.name)
            lines.append(
                [
                    row.label,
                    *texts,
                    f"{best:g}",
                    rendering.NOTHING if stated is None else f"{stated:g}",
                ]
            )
        parts += [f"### {problem.label}: validation LL", rendering.markdown_table(header, lines)]
        parts += [_other(result, row, problem.name) for row in rows if list(row.tune) != ["alpha"]]
    return "\n\n".join(parts)


def _text(result: Result, problem: str, name: str) -> str:
    entry = result.find(problem, name, "ll")
    return rendering.ours_text(entry) if entry else rendering.NOTHING


def _other(result: Result, row: Any, problem: str) -> str:
    """A row that is tuned in two options."""
    down, across = row.tune
    header = [f"{row.label}: {down}", *(f"{across} = {v:g}" for v in row.tune[across])]
    lines = [
        [f"{v:g}"]
        + [
            _text(result, problem, f"{row.name} {named({down: v, across: w})}")
            for w in row.tune[across]
        ]
        for v in row.tune[down]
    ]
    best = named(result.extra[problem][row.name])
    table = rendering.markdown_table(header, lines)
    return f"{table}\n\nThe grid's choice for {row.label}: {best}."


def figure(result: Result) -> Any:
    """Likelihood against alpha, a panel per problem."""
    experiment = result.experiment
    fig, axes = figures.panels(len(experiment.problems))
    for axis, problem in zip(axes, experiment.problems, strict=True):
        for number, row in enumerate(experiment.rows):
            if list(row.tune) != ["alpha"]:
                continue
            points = [
                (alpha, entry.ours, None)
                for alpha in row.tune["alpha"]
                if (entry := result.find(problem.name, f"{row.name} alpha = {alpha:g}", "ll"))
            ]
            figures.curve(axis, row.label, number, points)
        figures.finish(axis, "alpha", "ll", log=True)
        axis.set_title(problem.label, fontsize=8)
    figures.legend(fig, *axes)
    return fig
