"""`fedmixtures compare`, `demo` and `methods`: what there is, side by side."""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from fedmixtures.cli.fit import UNLESS_GIVEN, FitSettings, TableOptions, default_method, names
from fedmixtures.cli.main import begin, console, say

SHOWN = ("gtv-euclidean", "gtv-kl", "gtv-mmd", "trust")
"""What the demo fits; its report is about the last."""
LARGE = 1e5
"""Numbers from here on would break the columns of a table."""


def compare(
    *data: str,
    table: Annotated[TableOptions, Parameter(name="*")] = UNLESS_GIVEN,
    methods: str | None = None,
    repeats: int = 5,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
) -> None:
    """Compare methods by the held-out log-likelihood of every node.

    All methods see the same splits and the same seeds. The table has the median over repeats with
    a 95% bootstrap interval, and the paired difference to the first method.

    Example: `fedmixtures compare data.parquet --nodes hospital --k 5 --methods local,gtv-mmd`

    Parameters
    ----------
    data
        As for `fedmixtures fit`.
    methods
        Names, as a,b,c, or `all` (that need no setting of their own); `fedmixtures methods` lists
        them. By default local, centralized and the method `fit` takes.
    repeats
        Splits to draw; each is used by all methods.
    out
        Also write the numbers as CSV: method, repeat, node, log-likelihood.
    """
    begin(f"Reading {' '.join(data[:3]) or 'nothing'}")
    from fedmixtures import _checks
    from fedmixtures.cli.prepare import prepare, print_summary
    from fedmixtures.io.runs import check_new
    from fedmixtures.methods.registry import METHODS

    usual = ("local", "centralized", default_method())
    chosen = tuple(METHODS) if methods == "all" else (names(methods) or usual)
    for name in chosen:
        _checks.one_of("--methods", name, METHODS)
    _checks.whole("--repeats", repeats)
    if not data:
        raise ValueError("no data given. Name a file: fedmixtures compare data.csv --nodes COLUMN")
    if table.k is not None and (table.k == "auto" or ":" in table.k):
        raise ValueError(
            f"--k {table.k} is for `fit`. Give compare a number, the same for all methods."
        )
    check_new(out)
    settings = table.settings(
        data, method=default_method() if default_method() in chosen else chosen[0]
    )
    if settings.holdout == 0:
        raise ValueError("--holdout is 0, so there is nothing to compare on. Give, say, 0.2.")
    rows = settings.read_table()
    task = prepare(settings, rows)
    chosen, notes = _possible(chosen, task, settings, drop=methods == "all")
    _check_rounds(settings.rounds, chosen)
    print_summary(task, settings, ", ".join(chosen))
    results = []
    try:
        for repeat in range(repeats):
            one = dataclasses.replace(settings, seed=settings.seed + repeat)
            task = prepare(one, rows, task.data) if repeat else task
            for name in chosen:
                try:
                    with console().status(f"repeat {repeat + 1} of {repeats}: {name}"):
                        found = _fit(task, one, name)
                except (ValueError, ArithmeticError) as error:  # must not cost the others
                    notes.append(f"{name} failed in repeat {repeat + 1}: {error}")
                    found = {"nodes": {}}
                results.append({"method": name, "repeat": repeat} | found)
    finally:  # whatever stopped it, what is computed is not lost
        _tell(chosen, results, notes, out)


def _possible(chosen: tuple, task: Any, settings: Any, drop: bool) -> tuple[tuple, list[str]]:
    """Check every method before any work; with `drop`, leave out those that cannot run as asked."""
    from fedmixtures.estimators.resolve import resolve_method

    possible, notes = [], []
    for name in chosen:
        try:
            task.where(method=resolve_method(name, settings.covariance))
        except ValueError as error:
            if not drop:
                raise ValueError(f"{name}: {error}") from None
            notes.append(f"{name} left out: {error}")
        else:
            possible.append(name)
    return tuple(possible), notes


def _check_rounds(rounds: int | None, chosen: tuple[str, ...]) -> None:
    """A number of rounds only where a method has any."""
    from fedmixtures import _checks
    from fedmixtures.engine.options import in_rounds
    from fedmixtures.methods.registry import METHODS

    if rounds is None:
        return
    _checks.whole("--rounds", rounds, minimum=0)
    if not any(in_rounds(METHODS[name]()) for name in chosen):
        raise ValueError(
            f"--rounds is {rounds}, but none of {', '.join(chosen)} has rounds to count. Leave it "
            "out, or compare a method in rounds, such as gtv-mmd."
        )


def _fit(task: Any, settings: Any, name: str) -> dict[str, Any]:
    """One method on one split: log-likelihood of every node's held-out rows."""
    from fedmixtures.engine.options import used
    from fedmixtures.engine.solution import FitWarning
    from fedmixtures.estimators.baselines import Baselines
    from fedmixtures.estimators.resolve import TOL, resolve_method

    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        method = resolve_method(name, settings.covariance)
        problem = task.problem.for_method(method, settings.standardize)
        how = used(method, n_rounds=settings.rounds, tol=TOL)
        solution = problem.solve(seed=settings.seed, **how)
    seconds = time.perf_counter() - began
    scores = Baselines().scores(problem, solution, task.test, task.slopes)
    means = zip(scores.labels, scores.network, strict=True)
    return {
        "nodes": {label: mean for label, mean in means if np.isfinite(mean)},
        "seconds": seconds,
        "sent": solution.traffic.total / len(task.labels),
        "notes": [f"{name}: {w.message}" for w in caught if w.category is FitWarning],
    }


def _tell(chosen: tuple, results: list[dict[str, Any]], notes: list[str], out: Path | None) -> None:
    """The table of what was computed, the notes, and the file."""
    import csv

    if not results:
        return
    whole = len(results) // len(chosen)  # the last repeat may be cut short: it is not comparable
    shown = results[: whole * len(chosen)] or results
    _print(tuple(name for name in chosen if any(r["method"] == name for r in shown)), shown)
    more = (note for result in results for note in result.get("notes", ()))
    for message in dict.fromkeys([*notes, *more]):
        say(f"Note: {message}", "yellow")
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["method", "repeat", "node", "log_likelihood"])
            for one in results:
                for node, value in one["nodes"].items():
                    lines.writerow([one["method"], one["repeat"], node, repr(float(value))])
        say(f"Written to {out}")


def _print(chosen: tuple[str, ...], results: list[dict[str, Any]]) -> None:
    from fedmixtures._ties import first_greatest
    from fedmixtures.metrics import median_interval, paired_difference
    from fedmixtures.report.page import size

    def means(name: str) -> np.ndarray:
        per_node = [list(r["nodes"].values()) for r in results if r["method"] == name]
        return np.array([np.mean(values) if values else np.nan for values in per_node])

    heads = ("LL", "95% interval", f"vs {chosen[0]}", "95% interval", "sent/node", "s")
    table = new_table(*heads)
    medians = {name: median_interval(means(name)) for name in chosen}
    likely = np.nan_to_num([medians[name].median for name in chosen], nan=-np.inf)
    best = chosen[first_greatest(likely, scale=1.0)]
    near = lambda value: f"{value:.2f}" if abs(value) < LARGE else f"{value:.2g}"
    spread = lambda x: "" if not np.isfinite(x.low) else f"{near(x.low)} to {near(x.high)}"
    for name in chosen:
        done = [r for r in results if r["method"] == name and "seconds" in r]
        difference = paired_difference(means(name), means(chosen[0]))
        table.add_row(
            name,
            short(medians[name].median),
            spread(medians[name]),
            "" if name == chosen[0] else short(difference.median),
            "" if name == chosen[0] else spread(difference),
            size(done[0]["sent"]) if done else "",
            f"{np.median([r['seconds'] for r in done]):.1f}" if done else "failed",
            style="bold" if name == best else None,
        )
    console().print("\nMean over nodes of the held-out log-likelihood per row (higher is better):")
    console().print(table)


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
    from fedmixtures.cli.fitting import compared_with, fit_watched, replace_demo, write_run
    from fedmixtures.cli.prepare import print_summary
    from fedmixtures.estimators.resolve import resolve_method

    began = time.perf_counter()
    folder = replace_demo(out)
    task, settings = _built_in(data, seed)
    print_summary(task, settings, "each of " + ", ".join(SHOWN))
    fits = {}
    for name in SHOWN:
        method = resolve_method(name)
        settings = dataclasses.replace(settings, method=name)
        fits[name] = fit_watched(task.where(method=method), settings)
    last = fits[SHOWN[-1]]
    beside = compared_with(last.watch.task, settings, last)  # all are compared with those of this
    _print_demo(fits, beside)
    content = write_run(folder, settings, last, beside)
    say("")
    say(f"{content['headline']}  ({SHOWN[-1]}; {time.perf_counter() - began:.0f} s in all)")
    say(f"Open {folder.file('report.html')}")


def _built_in(data: str, seed: int) -> tuple[Any, FitSettings]:
    """Task and settings of a built-in data set."""
    from fedmixtures.cli.prepare import Task
    from fedmixtures.data.node_data import NodeData
    from fedmixtures.data.scenarios import digits_scenario, shifted_blocks
    from fedmixtures.graph.generate import erdos_renyi_ring, stochastic_blocks
    from fedmixtures.io.tables import Table

    if data == "digits":
        scenario, labels = digits_scenario(seed=seed), [f"site{i}" for i in range(10)]
        network, k = erdos_renyi_ring(10, 0.5, seed=seed, labels=labels), 10
    else:
        scenario = shifted_blocks(seed=seed)
        labels = [f"{block}{i + 1}" for block in "abc" for i in range(5)]
        network, k = stochastic_blocks([5, 5, 5], 0.8, 0.2, seed=seed, labels=labels), 5
    X = np.concatenate([scenario.X, scenario.X_validation])
    nodes = np.array(labels)[np.concatenate([scenario.nodes, scenario.nodes_validation])]
    axes = "xy" if X.shape[1] == 2 else [f"PC{i + 1}" for i in range(X.shape[1])]
    number = np.arange(len(X))
    table = Table(X, nodes, tuple(axes), (data,), 0 * number, number)
    settings = FitSettings(data=(f"built-in {data}",), k=str(k), seed=seed)
    held_out, rows = number >= len(scenario.X), NodeData.from_rows(X, nodes)
    task = Task.of(table, rows, held_out, network, method=SHOWN[-1], n_components=k)
    return task, settings


def new_table(*heads: str) -> Any:
    """A table of names and, under these heads, numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def short(value: float) -> str:
    """A number for a table."""
    if not np.isfinite(value):
        return "–"
    return f"{value:,.3f}" if abs(value) < LARGE else f"{value:.3g}"


def _print_demo(fits: dict[str, Any], beside: Any) -> None:
    from fedmixtures.metrics import median_interval
    from fedmixtures.report.page import size

    table = new_table("median", "95% interval", "gained*", "lost*", "sent/node")
    scored = {}
    for name, fit in fits.items():
        task = fit.watch.task
        scored[name] = beside.scores(task.problem, fit.solution, task.test, task.slopes)
    first = next(iter(scored.values()))
    rows: list[tuple[str, Any, Any, str]] = [("own data only", first.local, None, size(0))]
    for name, scores in scored.items():
        sent = size(fits[name].solution.traffic.total / len(scores.labels))
        rows.append((f"neighbours, {name}", scores.network, scores, sent))
    rows.append(("all rows pooled", first.pooled, None, "every row"))
    for name, values, scores, sent in rows:
        median, low, high = median_interval(values)
        counts = ("", "")
        if scores is not None:
            counts = tuple(str(int((sign * scores.verdict > 0).sum())) for sign in (1, -1))
        table.add_row(name, short(median), f"{short(low)} to {short(high)}", *counts, sent)
    console().print("\nHeld-out log-likelihood per row, over nodes (higher is better):")
    console().print(table)
    console().print("* nodes, beyond the noise of their own held-out rows")


def methods() -> None:
    """List the methods there are, with their settings.

    Example: `fedmixtures methods`, then `fedmixtures fit ... --method gtv-kl --set n_local_steps=1`
    """
    begin("Methods and their settings:")
    from rich.table import Table

    from fedmixtures.methods.registry import METHODS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("method", "what it does", "settings"):
        table.add_column(head, vertical="top")
    default = default_method()
    for name, make in METHODS.items():
        method = make()
        line = (type(method).__doc__ or "").strip().splitlines()[0].rstrip(".")
        if (discrepancy := getattr(method, "discrepancy", None)) is not None:
            line = f"{line}: {type(discrepancy).__name__}"
        line += " (rows leave their nodes)" if method.moves_rows else ""
        given = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
        settings = ", ".join(
            f"{key}={value!r}"
            for key, value in given.items()
            if isinstance(value, (int, float, str)) and key != "covariance_type"
        )
        table.add_row(name, f"{line} (the default)" if name == default else line, settings)
    console().print(table)
