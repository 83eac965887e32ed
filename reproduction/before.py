"""The default method against its earlier form, seed by seed: ``python -m reproduction.before``.

Runs the default method, and the oracle with the same prior, on the problems of the trust
experiments. Values of the earlier form were made by `make trust` at its last commit and are kept in
`before.json`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.metrics import median_interval
from reproduction.config import load
from reproduction.page import made, made_in_words
from reproduction.run import run_experiments

KEPT = Path(__file__).with_name("before.json")
BETTER = {"ll": 1, "nmi": 1, "err": -1}
ROWS = ("trust", "oracle-prior", "centralized-prior")
HEAD = "| problem | metric | minus the earlier form | worst seed | {} | worst seed |"


def main() -> int:
    """Compute what is missing and write the table."""
    stored = json.loads(KEPT.read_text())
    folder = Path("results") / "trust-before"
    names = sys.argv[1:] or list(stored["values"])
    experiments = [
        replace(
            e, rows=[row for row in e.rows if row.name in ROWS], options={}, references=["trust"]
        )
        for e in map(load, names)
    ]
    cores = os.cpu_count() or 1
    run_experiments(experiments, None, cores, folder, lambda *what: print(*what, flush=True))
    lines = [
        "## Trust-then-Pool against its earlier form",
        "",
        f"Earlier form: {stored['made']}.",
        "",
    ]
    for name in names:
        result = json.loads((folder / name / "result.json").read_text())
        lines += [f"### {name}", "", *table(result, stored["values"][name]), ""]
    command = " ".join(["python -m reproduction.before", *names])
    lines.append(made_in_words(made(command), range(20)))
    (folder / "table.md").write_text("\n".join([*lines, ""]))
    return 0


def table(result: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Differences by problem and metric; above zero the present form is better."""
    values = {(e["row"], e["problem"], e["metric"]): e["values"] for e in result["entries"]}
    other = next(row for row in ROWS[1:] if any(key[0] == row for key in values))
    found = [HEAD.format(f"minus {other}"), "|---|---|---|---|---|---|"]
    for problem in sorted({key[1] for key in values}):
        for metric in ("ll", "err", "nmi"):
            new = values.get(("trust", problem, metric))
            if new is None:
                continue
            cells = [f"| {problem} | {metric} "]
            for old in (
                before.get(problem, {}).get(metric),
                values.get((other, problem, metric)),
            ):
                cells.append(_difference(BETTER[metric], new, old))
            found.append("".join(cells) + "|")
    return found


def _difference(sign: int, new: list[float], old: list[float] | None) -> str:
    if old is None or any(v is None for v in old):
        return "| — | — "
    difference = sign * (np.array(new) - np.array(old))
    median = median_interval(difference)
    low, high = f"{median.low:+.4f}", f"{median.high:+.4f}"
    return f"| {median.median:+.4f} [{low}, {high}] | {difference.min():+.4f} "


if __name__ == "__main__":
    sys.exit(main())
