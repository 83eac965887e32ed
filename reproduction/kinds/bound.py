"""Proposition 1: both sides of its bound over rounds, for two objectives and two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from reproduction import figures, rendering
from reproduction.cells import Cell, cell
from reproduction.config import Experiment
from reproduction.journal import Journal
from reproduction.results import Result

NAMES = {"once": "edges once", "printed": "F as printed"}
SIDES = ("left side", "right side")
ROUNDING = 1e-9
"""Objectives are sums of some hundred numbers of order one."""


def first(experiment: Experiment) -> list[Cell]:
    """One cell per run."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> dict[str, Cell]:
    problem = experiment.problems[0]
    return {
        run["name"]: cell(
            "gradient_mapping",
            data=problem.data,
            graph=problem.graph,
            n_components=problem.n_components,
            start=asdict(experiment.start),
            gtv=asdict(experiment.gtv),
            n_rounds=experiment.n_rounds,
            **{name: value for name, value in run.items() if name not in ("name", "label")},
        )
        for run in experiment.options["runs"]
    }


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """What held, in how many seeds; the curves of the first seed."""
    extra = {}
    for run, own in zip(experiment.options["runs"], _cells(experiment).values(), strict=True):
        found = [journal.read(own, seed) for seed in seeds]
        extra[run["name"]] = summary(found, run["learning_rate"])
    return Result(experiment, tuple(seeds), extra=extra)


def summary(runs: Sequence[dict[str, Any]], rate: float) -> dict[str, Any]:
    """Both objectives of all seeds."""
    curvatures = [run["curvature"] for run in runs]
    once = [sides(run["once"], run["squared_norms"], rate, None) for run in runs]
    printed = [
        sides(run["printed"], run["squared_norms"], rate, run["lowest_printed"]) for run in runs
    ]
    return {
        "learning_rate": rate,
        "largest_curvature": max(curvatures),
        "seeds": len(runs),
        "step_below_bound": sum(rate < 1 / curvature for curvature in curvatures),
        "once": _outcome(once, [run["once"] for run in runs]),
        "printed": _outcome(printed, [run["printed"] for run in runs]),
        "curves": {
            "once": [side.tolist() for side in once[0]],
            "printed": [side.tolist() for side in printed[0]],
            "objective_once": runs[0]["once"],
            "objective_printed": runs[0]["printed"],
        },
    }


def sides(
    objective: ArrayLike, squared_norms: ArrayLike, rate: float, lowest: float | None
) -> tuple[np.ndarray, np.ndarray]:
    r"""Left and right side of the bound after 1, 2, ... rounds.

    The right side is $2 (F_0 - F^*) / (\eta T)$ with $F^*$ replaced by `lowest`, the lowest value
    found, or by $F_T$ itself. Both are at least $F^*$: a bound that holds with them holds.
    """
    values, squares = np.asarray(objective), np.asarray(squared_norms)
    t = np.arange(1, len(squares) + 1)
    least = values[1 : len(t) + 1] if lowest is None else lowest
    left = np.cumsum(squares) / t
    return left, 2 * (values[0] - least) / (rate * t)


def _outcome(both: Sequence[tuple[np.ndarray, np.ndarray]], objectives: Sequence[Any]) -> dict:
    """In how many seeds the bound held in every round, and where the objective went."""
    held = [bool((left <= right + ROUNDING).all()) for left, right in both]
    change = [values[-1] - values[0] for values in objectives]
    return {
        "held": sum(held),
        "left": float(np.median([left[-1] for left, _ in both])),
        "right": float(np.median([right[-1] for _, right in both])),
        "change": float(np.median(change)),
        "rose": sum(value > 0 for value in change),
    }


def markdown(result: Result) -> str:
    """One line per run and objective."""
    header = ["Run", "step η", "1/β seen", "Objective", "bound held", "left, last round"]
    header += ["right, last round", "change of the objective", "rose"]
    lines = []
    for run in result.experiment.options["runs"]:
        own = result.extra[run["name"]]
        n = own["seeds"]
        for which, name in NAMES.items():
            found = own[which]
            lines.append(
                [
                    run["label"],
                    f"{own['learning_rate']:g}",
                    f"{1 / own['largest_curvature']:.2g}",
                    name,
                    f"{found['held']} of {n} seeds",
                    f"{found['left']:.3g}",
                    f"{found['right']:.3g}",
                    f"{found['change']:+.3g}",
                    f"{found['rose']} of {n}",
                ]
            )
    return f"{rendering.markdown_table(header, lines)}\n\n{NOTE}"


NOTE = (
    "Medians over seeds; 1/β seen is one over the largest curvature of the once-counted objective "
    "at five states of any run, so the true 1/β is at most that. For edges once the right side has "
    "the last objective in place of F*, for F as printed the lowest F found: both make it smaller "
    "than the true one where F* is lower."
)


def figure(result: Result) -> Any:
    """First seed: both sides of the bound; both objectives from near a stationary point of F."""
    runs = result.experiment.options["runs"]
    fig, axes = figures.panels(len(runs))
    for axis, run in zip(axes, runs, strict=True):
        curves = result.extra[run["name"]]["curves"]
        if run["from"] == "stationary":
            for number, (which, name) in enumerate(NAMES.items()):
                values = np.array(curves[f"objective_{which}"])
                rounds = np.arange(len(values))
                figures.line(axis, name, number + 2, rounds, values - values[0], marked=False)
            figures.finish(axis, "round", "objective minus its start")
        else:
            for number, (name, side) in enumerate(zip(SIDES, curves["once"], strict=True)):
                rounds = np.arange(1, len(side) + 1)
                figures.line(axis, name, number, rounds, np.array(side), marked=False)
            axis.set_yscale("symlog", linthresh=0.1)  # a right side may be negative
            figures.finish(axis, "round", "squared gradient mapping", log=True)
        axis.set_title(run["label"], fontsize=7)
    figures.legend(fig, *axes)
    return fig
