"""`fedmixtures fit`: one mixture per node, from a table to a run folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fedmixtures.cli.main import begin
from fedmixtures.cli.settings import (
    UNLESS_GIVEN,
    FitSettings,
    TableOptions,
    default_method,
    offer_cores,
    parse_options,
    with_devices,
)

WITH_ALPHA = "gtv-mmd"
"""The method where --alpha is given and none is named: the default method has no alpha."""


def fit(
    *data: str,
    table: Annotated[TableOptions, Parameter(name="*")] = UNLESS_GIVEN,
    method: Annotated[str | None, Parameter(name=["--method", "-m"])] = None,
    alpha: str | None = None,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("run"),
    pooled: bool = True,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    devices: int | None = None,
    config: Path | None = None,
    resume: Path | None = None,
) -> None:
    """Fit one mixture per node and write a run folder with a report.

    Example: `fedmixtures fit data.csv --nodes hospital --graph edges.csv --k 5 --out run/`

    One file per node: `fedmixtures fit sites/*.csv --graph knn:5 --k auto --alpha auto --out run/`

    After a crash or Ctrl-C: `fedmixtures fit --resume run/`

    The folder holds `config.toml` (the effective settings), `history.jsonl` (a line per round),
    `model.safetensors`, `assignments.parquet` (component and probabilities of every row) and
    `report.html`. The same settings and seed give the same numbers.

    Parameters
    ----------
    data
        A table with a node column (CSV, Parquet, Feather, NPZ with an array X), or one file per
        node: several files, a folder or a pattern. Without --nodes, the file name is the node.
    method
        How nodes listen; `fedmixtures methods` lists them and names the default. With --alpha and
        no method, gtv-mmd.
    alpha
        How much nodes listen to neighbours: 0 is not at all. `auto` tries several by
        cross-validation on every node's own rows.
    out
        Folder to write; it must not exist yet.
    pooled
        Also fit one mixture of all rows, for comparison. Leave it out where rows may not be pooled.
    set_
        A further setting of the method, as name=value; may be repeated.
    devices
        GPUs or cores to spread the nodes over. Unless given, all from 500 nodes on, otherwise one.
    config
        Take all settings from the config.toml of another run; data and out may be given anew.
    resume
        Run folder to go on with, exactly where it stopped.
    """
    begin(f"Reading {' '.join(data[:3]) or resume or config or 'nothing'}")
    from fedmixtures.io.runs import RunFolder

    offer_cores()
    if resume is not None:
        folder = RunFolder.existing(resume)
        _go_on(folder, FitSettings.from_config(folder.read_config()))
        return
    if config is not None:
        settings = FitSettings.from_config(RunFolder.existing(config.parent).read_config())
        settings = dataclasses.replace(settings, data=data or settings.data)
    else:
        if not data:
            raise ValueError("no data given. Name a file: fedmixtures fit data.csv --nodes COLUMN")
        settings = table.settings(
            data,
            method=method or (default_method() if alpha is None else WITH_ALPHA),
            alpha=alpha,
            pooled=pooled,
            devices=devices,
            options=parse_options(set_ or []),
        )
    _begin(settings, out)


def _begin(settings: Any, out: Path) -> None:
    """Check everything, then make the folder, then work."""
    from fedmixtures import _checks
    from fedmixtures.cli.console import hint_scale, say, understood
    from fedmixtures.cli.prepare import choose_automatic, prepare, standardizes
    from fedmixtures.estimators.resolve import resolve_devices
    from fedmixtures.estimators.rows import notes_on_columns
    from fedmixtures.io.runs import RunFolder

    _checks.whole("--rounds", settings.rounds, minimum=0)
    table = settings.read_table()
    task = prepare(settings, table)
    standardize = standardizes(settings, task.method, task.data)
    settings = dataclasses.replace(settings, standardize=standardize)
    settings = with_devices(settings, len(task.labels))
    resolve_devices(settings.devices)
    folder = RunFolder.create(out)
    understood(task, settings)
    hint_scale(task, settings)
    for note in notes_on_columns(task.problem.data, table.features):
        say(f"Note: {note}", "yellow")
    task, settings = choose_automatic(task, settings)
    folder.write_config(settings.to_config())
    _work(folder, task, settings)


def _go_on(folder: Any, settings: Any) -> None:
    """The same task again, from the last checkpoint if there is one."""
    from fedmixtures.cli.console import understood
    from fedmixtures.cli.prepare import prepare
    from fedmixtures.io.runs import CHECKPOINT, MODEL

    if folder.file(MODEL).is_file() and not folder.file(CHECKPOINT).is_file():
        raise ValueError(
            f"the run in {str(folder.path)!r} is complete; there is nothing to resume. "
            f"`fedmixtures report {folder.path}` writes its report again."
        )
    table = settings.read_table()
    task = prepare(settings, table)
    understood(task, settings)
    _work(folder, task, settings, resume=True)


def _work(folder: Any, task: Any, settings: Any, resume: bool = False) -> None:
    """Fit, compare with the baselines, write."""
    from fedmixtures.cli.console import say
    from fedmixtures.cli.fitting import baseline_scores, fit_watched, write_run

    fitted = fit_watched(task, settings, folder, resume)
    for warning in fitted.warnings:
        say(f"Note: {warning}", "yellow")
    scores, notes = baseline_scores(task, settings, fitted)
    content = write_run(folder, task, settings, fitted, scores, notes)
    say("")
    say(content["headline"], "bold")
    medians = content["scores"]["medians"]
    network = "with neighbours" if medians["local"][0] is not None else "own data only"
    for name, words in (("local", "own data only"), ("network", network)):
        median = medians[name][0]
        if median is not None:
            say(f"  {words:<16} {median:9.3f}  median held-out log-likelihood per row")
    if fitted.model.status_ == "interrupted":
        say(f"Stopped at round {fitted.model.n_iter_}.")
        say(f"Go on with: fedmixtures fit --resume {folder.path}")
    say(f"Open {folder.file('report.html')}")
