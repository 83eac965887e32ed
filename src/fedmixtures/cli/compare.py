"""`fedmixtures compare` and `fedmixtures methods`: what there is, side by side."""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from fedmixtures.cli.main import begin
from fedmixtures.cli.settings import UNLESS_GIVEN, TableOptions, default_method, names


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
    from fedmixtures.cli.console import console, understood
    from fedmixtures.cli.prepare import prepare
    from fedmixtures.io.runs import check_new
    from fedmixtures.methods.registry import METHODS

    usual = ("local", "centralized", default_method())
    chosen = tuple(METHODS) if methods == "all" else (names(methods) or usual)
    for name in chosen:
        _checks.one_of("--methods", name, METHODS)
    _checks.whole("--repeats", repeats)
    if not data:
        raise ValueError("no data given. Name a file: fedmixtures compare data.csv --nodes COLUMN")
    if table.k == "auto":
        raise ValueError("--k auto is for `fit`. Give compare a number, the same for all methods.")
    check_new(out)
    settings = table.settings(data, method=chosen[0], graph=table.graph or "knn:5")
    if settings.holdout == 0:
        raise ValueError("--holdout is 0, so there is nothing to compare on. Give, say, 0.2.")
    rows = settings.read_table()
    task = prepare(settings, rows)
    chosen, notes = _possible(chosen, task, settings, drop=methods == "all")
    understood(task, settings, ", ".join(chosen))
    results = []
    try:
        for repeat in range(repeats):
            one = dataclasses.replace(settings, seed=settings.seed + repeat)
            task = prepare(one, rows) if repeat else task
            for name in chosen:
                with console.status(f"repeat {repeat + 1} of {repeats}: {name}"):
                    results.append(_attempt(task, one, name, repeat))
    finally:  # whatever stopped it, what is computed is not lost
        _tell(chosen, results, notes, out)


def _possible(chosen: tuple, task: Any, settings: Any, drop: bool) -> tuple[tuple, list[str]]:
    """Check every method before any work; with `drop`, leave out those that cannot run as asked."""
    possible, notes = [], []
    for name in chosen:
        try:
            task.fitted_by(_method(name, settings))
        except ValueError as error:
            if not drop:
                raise ValueError(f"{name}: {error}") from None
            notes.append(f"{name} left out: {error}")
        else:
            possible.append(name)
    return tuple(possible), notes


def _attempt(task: Any, settings: Any, name: str, repeat: int) -> dict[str, Any]:
    """One method on one split; one that fails must not cost the others."""
    from fedmixtures.cli.prepare import standardizes

    try:
        method = _method(name, settings)
        task = task.fitted_by(method, standardizes(settings, method, task.data))
        return _fit(task, settings, name, repeat)
    except (ValueError, ArithmeticError) as error:
        notes = [f"{name} failed in repeat {repeat + 1}: {error}"]
        return {"method": name, "repeat": repeat, "nodes": {}, "notes": notes}


def _method(name: str, settings: Any) -> Any:
    from fedmixtures.estimators.resolve import resolve_method

    return resolve_method(name, settings.covariance)


def _tell(chosen: tuple, results: list[dict[str, Any]], notes: list[str], out: Path | None) -> None:
    """The table of what was computed, the notes, and the file."""
    from fedmixtures.cli.console import say

    if not results:
        return
    whole = len(results) // len(chosen)  # the last repeat may be cut short: it is not comparable
    shown = results[: whole * len(chosen)] or results
    _print(tuple(name for name in chosen if any(r["method"] == name for r in shown)), shown)
    for message in dict.fromkeys([*notes, *(n for result in results for n in result["notes"])]):
        say(f"Note: {message}", "yellow")
    if out is not None:
        _write(out, results)
        say(f"Written to {out}")


def _fit(task: Any, settings: Any, name: str, repeat: int) -> dict[str, Any]:
    """One method on one split: log-likelihood of every node's held-out rows."""
    from fedmixtures.engine.solution import FitWarning
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture
    from fedmixtures.estimators.scoring import log_densities
    from fedmixtures.metrics import node_means

    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        how = {"n_rounds": settings.rounds, "seed": settings.seed}
        solution = task.problem.solve(**how, tol=NetworkGaussianMixture().tol)
        solution = solution.changed(task.scale.original)
    seconds = time.perf_counter() - began
    likelihood: dict[Any, float] = {}
    if task.method.has_likelihood:
        values = log_densities(solution, task.test)
        likelihood = node_means(values, task.table.nodes[task.held_out])
    return {
        "method": name,
        "repeat": repeat,
        "nodes": likelihood,
        "seconds": seconds,
        "sent": solution.traffic.total / len(task.labels),
        "notes": [f"{name}: {w.message}" for w in caught if w.category is FitWarning],
    }


def _print(chosen: tuple[str, ...], results: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from fedmixtures._ties import first_greatest
    from fedmixtures.cli.console import console, short, size
    from fedmixtures.metrics import median_interval, paired_difference

    def means(name: str) -> np.ndarray:
        per_node = [list(r["nodes"].values()) for r in results if r["method"] == name]
        return np.array([np.mean(values) if values else np.nan for values in per_node])

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for head in ("LL", "95% interval", f"vs {chosen[0]}", "95% interval", "sent/node", "s"):
        table.add_column(head, justify="right", no_wrap=True)
    medians = {name: median_interval(means(name)) for name in chosen}
    likely = np.nan_to_num([medians[name].median for name in chosen], nan=-np.inf)
    best = chosen[first_greatest(likely, scale=1.0)]
    for name in chosen:
        own = [r for r in results if r["method"] == name]
        difference = paired_difference(means(name), means(chosen[0]))
        spread = lambda x: "" if not np.isfinite(x.low) else f"{x.low:.2f} to {x.high:.2f}"
        table.add_row(
            name,
            short(medians[name].median),
            spread(medians[name]),
            "" if name == chosen[0] else short(difference.median),
            "" if name == chosen[0] else spread(difference),
            next((size(r["sent"]) for r in own if "sent" in r), ""),
            _median_seconds(own),
            style="bold" if name == best else None,
        )
    console.print("\nMean over nodes of the held-out log-likelihood per row (higher is better):")
    console.print(table)


def _median_seconds(runs: list[dict[str, Any]]) -> str:
    seconds = [r["seconds"] for r in runs if "seconds" in r]
    return f"{np.median(seconds):.1f}" if seconds else "failed"


def _write(path: Path, results: list[dict[str, Any]]) -> None:
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["method", "repeat", "node", "log_likelihood"])
        for result in results:
            for node, value in result["nodes"].items():
                lines.writerow([result["method"], result["repeat"], node, repr(float(value))])


def methods() -> None:
    """List the methods there are, with their settings.

    Example: `fedmixtures methods`, then `fedmixtures fit ... --method gtv-kl --set n_local_steps=1`
    """
    begin("Methods and their settings:")
    from rich.table import Table

    from fedmixtures.cli.console import console
    from fedmixtures.methods.registry import METHODS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("method", "what it does", "settings"):
        table.add_column(head, vertical="top")
    default = default_method()
    for name, make in METHODS.items():
        method = make()
        line = (type(method).__doc__ or "").strip().splitlines()[0].rstrip(".")
        discrepancy = getattr(method, "discrepancy", None)
        if discrepancy is not None:
            line = f"{line}: {type(discrepancy).__name__}"
        if getattr(method, "moves_rows", False):
            line += " (rows leave their nodes)"
        settings = ", ".join(
            f"{f.name}={getattr(method, f.name)!r}"
            for f in dataclasses.fields(method)
            if isinstance(getattr(method, f.name), (int, float, str))
            and f.name != "covariance_type"
        )
        table.add_row(name, f"{line} (the default)" if name == default else line, settings)
    console.print(table)
