"""Trust-then-Pool beside everything else: what was to be shown, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedmixtures.metrics import Interval, paired_difference
from reproduction import figures, rendering
from reproduction.cells import HUBS, ONE_SHOT, Cell, cell
from reproduction.config import Experiment, Problem, Row
from reproduction.journal import Journal
from reproduction.results import Entry, Result, entries, filled

NO_GRAPH = (*ONE_SHOT, *HUBS, "block")
"""Methods that look at no edge: a sweep over graphs is one cell for them."""
BOUNDS = ("median_at_least", "worst_at_least", "median_at_most")


def first(experiment: Experiment) -> list[Cell]:
    """Every row on every problem it is for."""
    return list(_cells(experiment).values())


def _cells(experiment: Experiment) -> dict[tuple[str, str], Cell]:
    return {
        (problem.name, row.name): compared_cell(experiment, row, problem)
        for row, problem in experiment.pairs()
    }


def compared_cell(experiment: Experiment, row: Row, problem: Problem) -> Cell:
    """The cell of a row on a problem."""
    options = {**row.options, **row.on.get(problem.name, {})}
    without_liars = options.pop("without_liars", False)
    gtv = {**asdict(experiment.gtv), **row.gtv} if row.method.startswith("gtv") else {}
    return cell(
        "compared",
        data=problem.data,
        graph={} if row.method in NO_GRAPH else problem.graph,
        n_components=problem.n_components,
        start={**asdict(experiment.start), **row.start},
        method=row.method,
        options=options,
        gtv=gtv,
        n_rounds=0 if row.method in ONE_SHOT or row.method == "block" else experiment.n_rounds,
        without_liars=without_liars,
    )


def make(experiment: Experiment, seeds: Sequence[int], journal: Journal) -> Result:
    """Summaries of all cells, and every claim with what was found."""
    result = Result(
        experiment, tuple(seeds), entries(experiment, _cells(experiment), seeds, journal)
    )
    claims = experiment.options.get("claims", [])
    result.extra["claims"] = [
        judged(result, claim, problem) for claim in claims for problem in claim["problems"]
    ]
    return result


def judged(result: Result, claim: dict[str, Any], problem: str) -> dict[str, Any]:
    """One claim on one problem: the paired difference, its worst seed, and whether it holds.

    Of several rows to be measured against, the one with the best median is taken.
    """
    metric = claim.get("metric", "ll")
    sign = -1.0 if metric == "err" else 1.0
    found = [result.find(problem, name, metric) for name in claim["against"]]
    rivals = [entry for entry in found if entry is not None]
    rival = max(rivals, key=lambda entry: sign * _ranked(entry, sign))
    own = result.find(problem, claim["row"], metric)
    assert own is not None
    a, b = filled(own.values, metric), filled(rival.values, metric)
    difference, gaps = paired_difference(a, b), sign * (a - b)
    bounds = {name: claim[name] for name in BOUNDS if name in claim}
    kept = {
        "median_at_least": lambda bound: difference.median >= bound,
        "median_at_most": lambda bound: difference.median <= bound,
        "worst_at_least": lambda bound: gaps.min() >= bound,
    }
    return {
        "point": claim["point"],
        "problem": problem,
        "row": claim["row"],
        "metric": metric,
        "against": rival.row,
        "difference": list(difference),
        "worst": float(sign * gaps.min()),
        "bounds": bounds,
        "holds": all(bool(kept[name](bound)) for name, bound in bounds.items()),
    }


def _ranked(entry: Entry, sign: float) -> float:
    """Its median; what diverged comes last."""
    return entry.ours.median if np.isfinite(entry.ours.median) else -sign * np.inf


def markdown(result: Result) -> str:
    """What was claimed and found, then the medians of all rows on all problems."""
    parts = [_claims(result) if result.extra["claims"] else _against(result)]
    for metric in result.experiment.metrics:
        parts += [f"### {rendering.METRICS[metric]}, medians", _matrix(result, metric)]
    return "\n\n".join(parts)


def _claims(result: Result) -> str:
    experiment = result.experiment
    header = ["Point", "Problem", "Metric", "Against", "median difference", "worst seed"]
    lines = [
        [
            str(claim["point"]),
            experiment.problem(claim["problem"]).label,
            rendering.METRICS[claim["metric"]],
            experiment.row(claim["against"]).label,
            rendering.interval_text(Interval(*claim["difference"]), 4, sign=True),
            f"{claim['worst']:+.4f}",
            "; ".join(_bound(name, bound) for name, bound in claim["bounds"].items()),
            "yes" if claim["holds"] else "**no**",
        ]
        for claim in result.extra["claims"]
    ]
    held = sum(claim["holds"] for claim in result.extra["claims"])
    own = [experiment.row(claim["row"]).label for claim in result.extra["claims"]]
    if len(set(own)) > 1:
        header.insert(3, "Row")
        lines = [[*line[:3], name, *line[3:]] for name, line in zip(own, lines, strict=True)]
        own = ["The row"]
    table = rendering.markdown_table([*header, "wanted", "holds"], lines)
    words = f"{own[0]} minus the best row named, seed by seed; {held} of {len(lines)} hold."
    return f"{words}\n\n{table}"


def _against(result: Result) -> str:
    """Every row minus the reference in LL, seed by seed: the median, and the worst seed."""
    experiment = result.experiment
    reference, lines = experiment.references[0], []
    for row in experiment.rows:
        if row.name == reference:
            continue
        line = [row.label]
        for problem in experiment.problems:
            own = result.find(problem.name, row.name, "ll")
            other = result.find(problem.name, reference, "ll")
            if own is None or other is None:
                line.append(rendering.NOTHING)
                continue
            gaps = filled(own.values, "ll") - filled(other.values, "ll")
            text = f"{np.median(gaps):+.3f} ({gaps.min():+.3f})"
            line.append(f"**{text}**" if np.median(gaps) > 0 else text)
        lines.append(line)
    table = rendering.markdown_table(["", *(p.label for p in experiment.problems)], lines)
    label = experiment.row(reference).label
    words = f"LL minus that of {label}, seed by seed: median (worst seed); bold where above it."
    return f"{words}\n\n{table}"


def _bound(name: str, bound: float) -> str:
    which, _, side = name.partition("_")
    return f"{which} {'≥' if side == 'at_least' else '≤'} {bound:g}"


def _matrix(result: Result, metric: str) -> str:
    experiment = result.experiment
    shown = [p for p in experiment.problems if _known(result, p, metric)]
    lines = []
    for row in experiment.rows:
        found = [result.find(problem.name, row.name, metric) for problem in shown]
        if any(found):
            cells = [f"{e.ours.median:.3f}" if e and _settled(e) else _no(e) for e in found]
            lines.append([row.label, *cells])
    return rendering.markdown_table(["Method", *(p.label for p in shown)], lines)


def _settled(entry: Entry) -> bool:
    return bool(np.isfinite(entry.ours.median))


def _no(entry: Entry | None) -> str:
    return rendering.NOTHING if entry is None else "diverged"


def _known(result: Result, problem: Problem, metric: str) -> bool:
    return any(e.problem == problem.name and e.metric == metric for e in result.entries)


def figure(result: Result) -> Any:
    """Metrics along a sweep, where the experiment has one."""
    options = result.experiment.options
    if "panels" not in options:
        return None
    fig, axes = figures.panels(len(options["panels"]))
    for axis, metric in zip(axes, options["panels"], strict=True):
        for number, name in enumerate(options["curves"]):
            points = [
                (problem.at, entry.ours, None)
                for problem in result.experiment.problems
                if problem.at is not None
                and (entry := result.find(problem.name, name, metric)) is not None
            ]
            if points:  # a first look may leave the row out
                figures.curve(axis, result.experiment.row(name).label, number, points)
        figures.finish(axis, options["axis"], metric, log=options.get("log", False))
        if metric == "ll" and "low" in options:
            axis.set_ylim(bottom=options["low"])
    figures.legend(fig, *axes)
    return fig
