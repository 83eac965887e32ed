"""The files of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.cli.prepare import Task
from fedmixtures.cli.session import Fitted, findings, has_likelihood
from fedmixtures.cli.settings import FitSettings
from fedmixtures.io.runs import (
    ASSIGNMENTS,
    CHECKPOINT,
    CONFIG,
    CONTENT,
    REPORT,
    SNAPSHOTS,
    RunFolder,
    write_assignments,
    write_text,
)
from fedmixtures.report.content import build_content
from fedmixtures.report.page import render
from fedmixtures.report.scores import Scores
from fedmixtures.report.words import headline


def write_run(
    folder: RunFolder,
    task: Task,
    settings: FitSettings,
    fitted: Fitted,
    scores: Scores,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Write everything a run leaves behind; returns the content of the report."""
    folder.write_config(settings.to_config())
    folder.write_history(fitted.watch.history())
    write_rows(folder.file(ASSIGNMENTS), task, fitted)
    names = np.array(task.table.features, dtype=object)
    setattr(fitted.model, "feature_names_in_", names)  # noqa: B010  (scikit-learn sets it so too)
    fitted.model.save(folder.path)
    found = findings(task, settings, fitted, scores, (*fitted.warnings, *notes))
    content = build_content(found)
    content["headline"] = headline(content)
    write_text(folder.file(CONTENT), json.dumps(content, allow_nan=False))
    write_text(folder.file(REPORT), render(content))
    if fitted.model.status_ != "interrupted":
        for name in (CHECKPOINT, SNAPSHOTS):
            folder.file(name).unlink(missing_ok=True)
    return content


def write_rows(path: Path, task: Task, fitted: Fitted) -> None:
    """Component of every row, and the probability of each."""
    table = task.table
    probabilities = fitted.model.predict_proba(table.rows, table.nodes)
    columns = {
        "row": np.arange(table.n_rows),
        "node": table.nodes,
        "held_out": task.held,
        "component": first_greatest(probabilities),
    }
    if len(table.files) > 1:
        columns["file"] = np.array([Path(f).name for f in table.files])[table.origin]
        columns["row_in_file"] = table.row_in_file
    if not has_likelihood(task.method):
        probabilities = probabilities[:, :0]
    write_assignments(path, columns, probabilities)


def replace_demo(path: Path) -> RunFolder:
    """The folder of the demo; one that no demo has written is left alone."""
    if path.is_dir() and (path / CONFIG).is_file():
        config = RunFolder.existing(path).read_config()
        if str(config.get("data", [""])[0]).rpartition("/")[2].startswith("built-in"):
            return RunFolder(path)
    return RunFolder.create(path)
