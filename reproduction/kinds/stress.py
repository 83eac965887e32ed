"""The stress list: the default method minus the better of Local and Centralized."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reproduction import rendering
from reproduction.cells import Cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.kinds.real import held_out_cell
from reproduction.results import Keyed, Result, entries, filled, finite
from reproduction.tasks.stresses import PLAIN, UNITS

AT_LEAST = -0.05
"""What is wanted of the median difference."""


def first(experiment: Experiment) -> list[Cell]:
    """Every method under every stress."""
    if len(experiment.rows) < 2:
        raise ValueError(
            f"`rows` leaves nothing that {experiment.name} could compare with. Name two or more."
        )
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> Keyed:
    return {
        (problem.name, row.name): held_out_cell(
            row, problem.data, problem.graph["kind"], PLAIN["n_components"], experiment.n_rounds
        )
        for row, problem in experiment.pairs()
    }


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Paired differences by stress, and the change where a stress changes units alone."""
    cells = _cells(experiment)
    result = Result(experiment, tuple(seeds), entries(experiment, cells, seeds, journal))
    own, *others = [row.name for row in experiment.rows]
    for problem in experiment.problems:
        column = lambda name, at=problem.name: _column(result, at, name)
        gaps = column(own) - np.max([column(name) for name in others], axis=0)
        unit = UNITS.get(problem.name, 1.0)
        moved = column(own) + PLAIN["n_features"] * np.log(unit) - column(own, "none")
        same = problem.name in UNITS or problem.name == "float32"
        messages = [journal.read(cells[problem.name, own], seed).get("message") for seed in seeds]
        result.extra[problem.name] = {
            "median": finite(np.median(gaps)),
            "worst": finite(gaps.min()),
            "moved": finite(np.abs(moved).max()) if same else None,
            "holds": bool(np.median(gaps) >= AT_LEAST),
            "message": next(filter(None, messages), None),
        }
    return result


def _column(result: Result, problem: str, row: str) -> np.ndarray:
    entry = result.find(problem, row, "ll")
    values = (None,) * len(result.seeds) if entry is None else entry.values
    return filled(values, "ll")


def markdown(result: Result) -> str:
    """One line per stress."""
    experiment = result.experiment
    own = experiment.rows[0].label
    lines = []
    for problem in experiment.problems:
        found = result.extra[problem.name]
        ll = [result.find(problem.name, row.name, "ll") for row in experiment.rows]
        lines.append(
            [
                problem.label,
                *(rendering.ours_text(entry) if entry else "diverged" for entry in ll),
                _number(found["median"]),
                _number(found["worst"]),
                rendering.NOTHING if found["moved"] is None else f"{found['moved']:.1e}",
                "yes" if found["holds"] else "**no**",
            ]
        )
    header = ["Stress", *(f"LL, {row.label}" for row in experiment.rows)]
    header += ["median difference", "worst seed", "largest change", f"≥ {AT_LEAST}"]
    raised = [
        f"{experiment.problem(name).label}: {found['message']}"
        for name, found in result.extra.items()
        if found["message"]
    ]
    words = (
        f"{own} minus the better of the others, seed by seed. The others get rows in pooled units, "
        f"and their log-densities are converted back; {own} gets the rows as they are. Largest "
        "change: against the fit of the unchanged rows, where a stress changes units or precision "
        "alone."
    )
    return "\n\n".join([words, rendering.markdown_table(header, lines), *raised])


def _number(value: float | None) -> str:
    return "−∞" if value is None else f"{value:+.3f}"
