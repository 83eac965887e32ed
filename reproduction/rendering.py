"""Results as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmixtures.metrics import Interval
from reproduction.config import to_toml
from reproduction.results import Entry, Result

METRICS = {
    "ll": "LL",
    "ll_train": "training LL",
    "err": "error",
    "slack": "slack of the bound at the worst node",
    "shortfall": "shortfall of test rows at the worst node",
    "nmi": "NMI",
    "k_eff": "K_eff",
    "ll_trimmed": "trimmed LL",
    "worst": "worst node − Local",
    "ari": "ARI",
    "seconds": "seconds",
    "across": "ARI across",
    "within": "ARI within",
    "nmi_across": "NMI across",
    "nmi_within": "NMI within",
    "f": "F",
    "n_clusters": "clusters",
}
"""How metrics are called in tables and figures."""
DIGITS = 3
NOTHING = "—"


def interval_text(interval: Interval, digits: int = DIGITS, sign: bool = False) -> str:
    """``median [low, high]``, or the median alone where there is no interval."""
    form = f"{{:{'+' if sign else ''}.{digits}f}}"
    if not np.isfinite(interval.median):
        return NOTHING
    text = form.format(interval.median)
    if np.isnan([interval.low, interval.high]).any():
        return text
    written = f"{text} [{form.format(interval.low)}, {form.format(interval.high)}]"
    return written.replace("inf", "∞")  # where some seeds diverged


def ours_text(entry: Entry, digits: int = DIGITS) -> str:
    """Our number; where seeds diverged it says how many."""
    total = len(entry.values)
    if entry.n_diverged == total or not np.isfinite(entry.ours.median):
        return f"diverged ({entry.n_diverged} of {total})"
    text = interval_text(entry.ours, digits)
    return f"{text} ({entry.n_diverged} of {total} diverged)" if entry.n_diverged else text


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *lines])


def comparison(result: Result, problem: str) -> str:
    """Paper and ours side by side, a row per method."""
    metrics = [m for m in result.experiment.metrics if _any(result, problem, m)]
    header = ["Method"]
    for metric in metrics:
        printed = _any_paper(result, problem, metric)
        name = METRICS[metric]
        header += [f"{name}, paper", f"{name}, ours", ""] if printed else [f"{name}, ours"]
    lines = []
    for row in result.experiment.rows:
        if row.only and problem not in row.only:
            continue
        line = [f"*{row.label}*" if row.extra else row.label]
        for metric in metrics:
            entry = result.find(problem, row.name, metric)
            ours = ours_text(entry) if entry else NOTHING
            paper = entry.paper.text if entry and entry.paper else NOTHING
            verdict = entry.verdict if entry else ""
            line += [paper, ours, verdict] if _any_paper(result, problem, metric) else [ours]
        lines.append(line)
    return markdown_table(header, lines)


def differences(result: Result, problem: str) -> str:
    """Every row minus the reference rows, seed by seed, in the two leading metrics."""
    experiment = result.experiment
    columns = [
        (metric, reference)
        for metric in experiment.metrics[:2]
        for reference in experiment.references
        if result.find(problem, reference, metric)
    ]
    header = ["Method"] + [
        f"{METRICS[metric]} − {experiment.row(reference).label}" for metric, reference in columns
    ]
    lines = []
    for row in experiment.rows:
        found = [(result.find(problem, row.name, metric), ref) for metric, ref in columns]
        cells = [
            interval_text(entry.differences[ref], sign=True)
            if entry and ref in entry.differences
            else NOTHING
            for entry, ref in found
        ]
        if any(cell != NOTHING for cell in cells):
            lines.append([row.label, *cells])
    return markdown_table(header, lines)


def counts(result: Result) -> dict[str, int]:
    """How many cells of the paper lie inside, overlap and lie outside."""
    verdicts = [entry.verdict for entry in result.entries if entry.verdict]
    names = ("inside", "overlapping", "outside", "diverged")
    return {name: verdicts.count(name) for name in names if name in verdicts}


def to_csv(result: Result) -> str:
    """One line per problem, row and metric; the seeds' values in the last columns."""
    references = result.experiment.references
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["problem", "row", "metric", "paper", "median", "low", "high", "verdict", "diverged"]
        + [f"minus {ref} {part}" for ref in references for part in ("median", "low", "high")]
        + [f"seed {seed}" for seed in result.seeds]
    )
    for entry in result.entries:
        record = entry.record()
        paired = [record["differences"].get(ref, [None] * 3) for ref in references]
        plain = [record[name] for name in ("problem", "row", "metric", "paper", "median")]
        plain += [record[name] for name in ("low", "high", "verdict", "diverged")]
        writer.writerow(plain + [value for part in paired for value in part] + record["values"])
    return out.getvalue()


def to_json(result: Result, made: dict[str, Any]) -> str:
    """Everything: settings, seeds, choices, entries, and how it was made."""
    content = {
        "name": result.experiment.name,
        "title": result.experiment.title,
        "made": made,
        "seeds": list(result.seeds),
        "chosen": result.chosen,
        "verdicts": counts(result),
        "entries": [entry.record() for entry in result.entries],
        "extra": result.extra,
        "config": to_toml(result.experiment),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _any(result: Result, problem: str, metric: str) -> bool:
    return any(e.problem == problem and e.metric == metric for e in result.entries)


def _any_paper(result: Result, problem: str, metric: str) -> bool:
    return any(
        e.paper is not None and e.problem == problem and e.metric == metric for e in result.entries
    )
