"""The default method against its earlier form, seed by seed: ``python -m reproduction.before``.

Values of the earlier form were made by `make trust` at its last commit and are kept in
`before.json`; those of the present form are read from the results of the same experiments.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from fedmixtures.metrics.summary import median_interval

KEPT = Path(__file__).with_name("before.json")
BETTER = {"ll": 1, "nmi": 1, "err": -1}


def lines(results: Path) -> list[str]:
    """A Markdown table: differences (above zero: the present form is better) by problem."""
    stored = json.loads(KEPT.read_text())["values"]
    found = [
        "| experiment | problem | metric | median difference | worst seed |",
        "|---|---|---|---|---|",
    ]
    for experiment, problems in stored.items():
        result = json.loads((results / experiment / "result.json").read_text())
        new = {
            (e["problem"], e["metric"]): e["values"]
            for e in result["entries"]
            if e["row"] == "trust"
        }
        for problem, metrics in problems.items():
            for metric, old in metrics.items():
                if (problem, metric) not in new:
                    continue
                difference = BETTER[metric] * (np.array(new[problem, metric]) - np.array(old))
                median = median_interval(difference)
                found.append(
                    f"| {experiment} | {problem} | {metric} | {median.median:+.4f} "
                    f"[{median.low:+.4f}, {median.high:+.4f}] | {difference.min():+.4f} |"
                )
    return found


def main() -> int:
    """Write the table beside the results."""
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    folder = results / "trust-before"
    folder.mkdir(parents=True, exist_ok=True)
    title = [
        "## Trust-then-Pool against its earlier form",
        "",
        json.loads(KEPT.read_text())["made"],
    ]
    (folder / "table.md").write_text("\n".join([*title, "", *lines(results), ""]))
    print(folder / "table.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
