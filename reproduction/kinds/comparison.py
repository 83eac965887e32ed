"""Tables 2 and 3: methods against data sets."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction import rendering, selecting
from reproduction.cells import Cell, fit_cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.results import Keyed, Result, entries


def first(experiment: Experiment) -> list[Cell]:
    """What can be computed before anything is known."""
    fixed = [fit_cell(experiment, row, at) for row, at in experiment.pairs() if not row.tune]
    return [*selecting.tuning_cells(experiment), *fixed]


def then(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> list[Cell]:
    """What needs the chosen options."""
    return list(keyed(experiment, seeds, journal).values())


def keyed(
    experiment: Experiment, seeds: Sequence[int], journal: Journal, record: str = "final"
) -> Keyed:
    """All cells by problem and row, tuned rows with what the protocol chose."""
    chosen = selecting.chosen(experiment, seeds, journal)
    return {
        (problem.name, row.name): fit_cell(
            experiment, row, problem, chosen.get(row.name), record if row.tune else "final"
        )
        for row, problem in experiment.pairs()
    }


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Summaries of all cells."""
    cells = keyed(experiment, seeds, journal)
    found = entries(experiment, cells, seeds, journal)
    chosen = selecting.chosen(experiment, seeds, journal)
    return Result(experiment, tuple(seeds), found, chosen)


def markdown(result: Result) -> str:
    """A table per problem, and one of paired differences."""
    parts = [chosen_text(result)] if result.chosen else []
    for problem in result.experiment.problems:
        parts += [f"### {problem.label}", rendering.comparison(result, problem.name)]
        parts += ["Paired differences over seeds:", rendering.differences(result, problem.name)]
    return "\n\n".join(parts)


def chosen_text(result: Result) -> str:
    """One line on what the grid protocol chose."""
    named = [
        f"{result.experiment.row(row).label} {', '.join(f'{k} = {v:g}' for k, v in choice.items())}"
        for row, choice in result.chosen.items()
    ]
    return f"Chosen by the grid protocol: {'; '.join(named)}."
