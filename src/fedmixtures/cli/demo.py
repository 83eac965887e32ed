"""`fedmixtures demo`: a small network, fitted several ways, and its report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from fedmixtures.cli.main import begin


def demo(
    *,
    data: Literal["blocks", "digits"] = "blocks",
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("demo"),
    seed: int = 0,
) -> None:
    """Fit a small built-in network several ways, print a table and write a report.

    `blocks`: 15 nodes in three blocks, 50 rows each, five components; nodes of one block share a
    mixture, but one link in five leads to another block. `digits`: the handwritten digits over ten
    nodes with very different mixes of classes.

    Example: `fedmixtures demo`, then open `demo/report.html`. With digits:
    `fedmixtures demo --data digits --out digits-demo`

    Parameters
    ----------
    data
        The built-in data to use.
    out
        Folder for the report; a former demo there is replaced.
    seed
        Seeds data and fits; the same seed gives the same numbers.
    """
    begin("Making a network of nodes, each with a few rows of its own:")
    from fedmixtures.cli import demo_data
    from fedmixtures.cli.console import say, understood
    from fedmixtures.cli.fitting import replace_demo, write_run

    began = time.perf_counter()
    folder = replace_demo(out)
    task, settings = demo_data.build(data, seed)
    understood(task, settings, "each of " + ", ".join(demo_data.present()))
    runs = _fit_all(task, settings)
    shown = demo_data.shown()
    _print_table(task, runs)
    content = write_run(folder, *runs[shown])
    say("")
    say(f"{content['headline']}  ({shown}; {time.perf_counter() - began:.0f} s in all)")
    say(f"Open {folder.file('report.html')}")


def _fit_all(task: Any, settings: Any) -> dict[str, tuple]:
    """Every network method; all are compared with the baselines of the one that is shown."""
    import dataclasses

    from fedmixtures.cli import demo_data
    from fedmixtures.cli.fitting import baselines, fit_watched, scores_beside
    from fedmixtures.estimators.resolve import resolve_method

    fits = {}
    for name in demo_data.present():
        one = dataclasses.replace(settings, method=name)
        this = task.fitted_by(resolve_method(name))
        fits[name] = this, one, fit_watched(this, one)
    beside = baselines(*fits[demo_data.shown()])
    return {
        name: (this, one, fitted, scores_beside(this, fitted, beside), beside.notes)
        for name, (this, one, fitted) in fits.items()
    }


def _print_table(task: Any, runs: dict[str, tuple]) -> None:
    from rich.table import Table

    from fedmixtures.cli.console import console, short, size
    from fedmixtures.metrics.summary import median_interval

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("", no_wrap=True)
    for head in ("median", "95% interval", "gained*", "lost*", "sent/node"):
        table.add_column(head, justify="right", no_wrap=True)
    first = next(iter(runs.values()))[3]
    rows: list[tuple[str, Any, Any, float | None]] = [("own data only", first.local, None, 0.0)]
    rows += [
        (f"neighbours, {name}", scores.network, scores, fitted.model.traffic_.total)
        for name, (_, _, fitted, scores, _) in runs.items()
    ]
    rows.append(("all rows pooled", first.pooled, None, None))
    for name, values, scores, sent in rows:
        median, low, high = median_interval(values)
        table.add_row(
            name,
            short(median),
            f"{short(low)} to {short(high)}",
            "" if scores is None else str(int((scores.verdict > 0).sum())),
            "" if scores is None else str(int((scores.verdict < 0).sum())),
            "every row" if sent is None else size(sent / len(task.labels)),
        )
    console.print("\nHeld-out log-likelihood per row, over nodes (higher is better):")
    console.print(table)
    console.print("* nodes, beyond the noise of their own held-out rows")
