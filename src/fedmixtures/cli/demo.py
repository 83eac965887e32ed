"""`fedmixtures demo`: a small network, fitted several ways, and its report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from fedmixtures.cli.main import begin

METHODS = ("gtv-euclidean", "gtv-kl", "gtv-mmd", "trust")
"""What the demo fits."""
REPORTED = "trust"
"""What its report is about."""


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
    from fedmixtures.cli.console import say, understood
    from fedmixtures.cli.fitting import replace_demo, write_run

    began = time.perf_counter()
    folder = replace_demo(out)
    task, settings = _built_in(data, seed)
    understood(task, settings, "each of " + ", ".join(METHODS))
    runs = _fit_all(task, settings)
    _print_table(task, runs)
    content = write_run(folder, *runs[REPORTED])
    say("")
    say(f"{content['headline']}  ({REPORTED}; {time.perf_counter() - began:.0f} s in all)")
    say(f"Open {folder.file('report.html')}")


def _built_in(data: str, seed: int) -> tuple[Any, Any]:
    """Task and settings of a built-in data set."""
    import numpy as np

    from fedmixtures.cli.prepare import posed
    from fedmixtures.cli.settings import FitSettings
    from fedmixtures.data.node_data import NodeData
    from fedmixtures.data.scenarios import digits_scenario, shifted_blocks
    from fedmixtures.graph.generate import erdos_renyi_ring, stochastic_blocks
    from fedmixtures.io.tables import Table

    if data == "digits":
        scenario, names = digits_scenario(seed=seed), [f"site{i}" for i in range(10)]
        network, k = erdos_renyi_ring(10, 0.5, seed=seed, labels=names), 10
    else:
        scenario = shifted_blocks(seed=seed)
        names = [f"{block}{i + 1}" for block in "abc" for i in range(5)]
        network, k = stochastic_blocks([5, 5, 5], 0.8, 0.2, seed=seed, labels=names), 5
    X = np.concatenate([scenario.X, scenario.X_validation])
    nodes = np.array(names)[np.concatenate([scenario.nodes, scenario.nodes_validation])]
    axes = "xy" if X.shape[1] == 2 else [f"PC{i + 1}" for i in range(X.shape[1])]
    number = np.arange(len(X))
    table = Table(X, nodes, tuple(axes), (data,), 0 * number, number)
    settings = FitSettings(data=(f"built-in {data}",), k=str(k), seed=seed)
    held_out, rows = number >= len(scenario.X), NodeData.from_rows(X, nodes)
    return posed(table, rows, held_out, False, network, REPORTED, k), settings


def _fit_all(task: Any, settings: Any) -> dict[str, tuple]:
    """Every network method; all are compared with the baselines of the one that is reported."""
    import dataclasses

    from fedmixtures.cli.fitting import baselines, fit_watched, scores_beside
    from fedmixtures.estimators.resolve import resolve_method

    fits = {}
    for name in METHODS:
        one = dataclasses.replace(settings, method=name)
        this = task.fitted_by(resolve_method(name))
        fits[name] = this, one, fit_watched(this, one)
    beside = baselines(*fits[REPORTED])
    return {
        name: (this, one, fitted, scores_beside(this, fitted, beside), beside.notes)
        for name, (this, one, fitted) in fits.items()
    }


def _print_table(task: Any, runs: dict[str, tuple]) -> None:
    from rich.table import Table

    from fedmixtures.cli.console import console, short, size
    from fedmixtures.metrics import median_interval

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
