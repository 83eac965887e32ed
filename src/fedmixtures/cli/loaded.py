"""A run folder as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmixtures.cli.settings import FitSettings
from fedmixtures.estimators.persist import load
from fedmixtures.io.runs import MODEL, RunFolder


def load_run(path: Path) -> tuple[Any, FitSettings, tuple[str, ...]]:
    """Model, settings and feature names of a run."""
    folder = RunFolder.existing(path)
    if not folder.file(MODEL).is_file():
        raise ValueError(
            f"the run in {str(path)!r} is not finished. Go on with: fedmixtures fit --resume {path}"
        )
    model: Any = load(folder.path)
    features = tuple(str(name) for name in model.feature_names_in_)
    del model.feature_names_in_  # columns are chosen by name here; the model sees arrays
    return model, FitSettings.from_config(folder.read_config()), features


def node_label(model: Any, text: str) -> Any:
    """The node that is written this way."""
    from fedmixtures import _checks

    known = {str(label): label for label in model.mixtures_}
    if text not in known:
        raise ValueError(
            f"there is no node {text!r} in this run. Its nodes are {_checks.listed(known, 12)}."
        )
    return known[text]
