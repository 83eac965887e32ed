"""A fit with someone watching: progress, snapshots, checkpoints, baselines, what was found."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmixtures.cli.console import RoundsBar, console
from fedmixtures.cli.prepare import Task
from fedmixtures.cli.settings import FitSettings
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.engine.solution import FitWarning
from fedmixtures.estimators.baselines import all_rows_pooled, own_data_only
from fedmixtures.estimators.network_mixture import NetworkGaussianMixture
from fedmixtures.io.checkpoint import read_checkpoint
from fedmixtures.io.runs import CHECKPOINT, RunFolder
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.report.findings import Findings
from fedmixtures.report.scores import Scores

LOOKS = 20
"""How often a run is looked at: snapshots for the slider, checkpoints, held-out likelihood."""


@dataclass
class Watch:
    """What is seen of a run as its rounds go by; written to the folder, if there is one."""

    task: Task
    folder: RunFolder | None
    bar: RoundsBar | None
    records: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[int, Mixture] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)

    def __post_init__(self):
        rows, nodes = self.task.test
        self.test = NodeData.from_rows(rows, nodes) if len(rows) else None
        if self.test is not None:
            position = {label: i for i, label in enumerate(self.task.labels)}
            self.places = np.array([position[label] for label in self.test.labels])

    def restore(self, reached: int) -> None:
        """Take over what an interrupted run has seen up to this round."""
        if self.folder is None:
            return
        self.records = [r for r in self.folder.read_history() if r["round"] < reached]
        snapshots = self.folder.read_snapshots()
        self.snapshots = {r: theta for r, theta in snapshots.items() if r <= reached}
        if self.test is not None:
            seen = self.snapshots.items()
            self.held_out = {r: self.mean_over_nodes(theta, self.test) for r, theta in seen}

    def on_round(self, record: dict[str, Any]) -> None:
        """Keep the record of a round."""
        self.records.append(dict(record))

    def on_chunk(self, reached: int, theta: Mixture) -> None:
        """Look at the mixtures after some rounds."""
        self.snapshots[reached] = theta
        if self.test is not None:
            self.held_out[reached] = self.mean_over_nodes(theta, self.test)
        objective = self.records[-1]["objective"] if self.records else None
        if self.bar is not None:
            self.bar.reached(reached, objective, self.held_out.get(reached))
        if self.folder is not None:
            self.folder.write_history(self.history())
            self.folder.write_snapshots(self.snapshots)

    def mean_over_nodes(self, theta: Mixture, test: NodeData) -> float:
        """Mean over nodes of their held-out rows' mean log-density, in the table's units."""
        joint = log_joint_rows(theta.at(self.places), test)
        values = np.logaddexp.reduce(joint, axis=1)[test.source_index]
        means = np.add.reduceat(values, test.offsets[:-1]) / test.counts
        return float(means.mean()) - self.task.scale.log_volume

    def history(self) -> list[dict[str, Any]]:
        """Records of all rounds, with the held-out log-likelihood where it was taken."""
        seen = self.held_out
        return [
            record | ({"held_out": seen[record["round"]]} if record["round"] in seen else {})
            for record in self.records
        ]


@dataclass(frozen=True)
class Fitted:
    """A fitted model, aligned and in the table's units, and what was seen on the way."""

    model: NetworkGaussianMixture
    theta_scaled: Mixture
    """The same mixtures in the units of the fit."""
    watch: Watch
    warnings: tuple[str, ...]


def fit_watched(
    task: Task, settings: FitSettings, folder: RunFolder | None = None, resume: bool = False
) -> Fitted:
    """Fit with a progress bar; with a folder, checkpoints and history are written as it goes."""
    checkpoint = None if folder is None else folder.file(CHECKPOINT)
    going_on = resume and checkpoint is not None and checkpoint.is_file()
    done = read_checkpoint(checkpoint).round if going_on and checkpoint else 0
    with RoundsBar(settings.rounds, done) as bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        watch = Watch(task, folder, bar)
        if going_on:
            watch.restore(done)
        model = NetworkGaussianMixture(
            task.components,
            graph=task.network,
            method=task.method,
            n_rounds=settings.rounds,
            random_state=settings.seed,
            on_round=watch.on_round,
            report_every=max(1, round(settings.rounds / LOOKS)),
            checkpoint=checkpoint,
            keep_interrupted=True,
            devices=settings.devices if (settings.devices or 1) > 1 else None,
        )
        model._on_chunk = watch.on_chunk
        rows, nodes = task.train
        model.fit(rows, nodes=nodes, resume=checkpoint if going_on else None)
        model._on_chunk = model.on_round = model.checkpoint = model.devices = None
        model.keep_interrupted = False
    watch.records = model.history_.records()
    model.align_components()
    scaled = model._theta
    model._set_theta(task.scale.original(scaled))
    told = tuple(dict.fromkeys(str(w.message) for w in caught if w.category is FitWarning))
    return Fitted(model, scaled, watch, told)


@dataclass(frozen=True)
class Baselines:
    """Log-density of every held-out row under what a fit is compared with; None if not fitted."""

    own: np.ndarray | None = None
    pooled: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def baseline_scores(
    task: Task, settings: FitSettings, fitted: Fitted
) -> tuple[Scores, tuple[str, ...]]:
    """Held-out log-likelihood with neighbours, with own data only, and pooled where allowed.

    Where nothing was sent, nobody listened: the fit itself is the one with own data only.
    """
    beside = baselines(task, settings, own=fitted.model.traffic_.total > 0)
    return scores_beside(task, fitted, beside), beside.notes


def baselines(task: Task, settings: FitSettings, own: bool = True) -> Baselines:
    """Fit what there is to compare with, if any row was held out to compare on."""
    if not task.held.any() or not has_likelihood(task.method):
        return Baselines()
    rows = task.train[0]
    values = pooled = None
    notes: tuple[str, ...] = ()
    if own:
        method = own_data_only(task.method, rows)
        values, notes = _baseline(task, settings, method, "own data only")
    if settings.pooled and not isinstance(task.components, dict):
        method = all_rows_pooled(task.method, rows)
        pooled, more = _baseline(task, settings, method, "all rows pooled")
        notes += more
    return Baselines(values, pooled, notes)


def scores_beside(task: Task, fitted: Fitted, beside: Baselines) -> Scores:
    """The fit's own held-out log-likelihood beside those."""
    rows, nodes = task.table.rows[task.held], task.table.nodes[task.held]
    if not len(rows) or not has_likelihood(task.method):
        return Scores.of(task.labels, nodes[:0], np.zeros(0), None, None)
    network = fitted.model.score_samples(rows, nodes)
    return Scores.of(task.labels, nodes, network, beside.own, beside.pooled)


def has_likelihood(method: Any) -> bool:
    """Whether the method's mixtures are densities that can be scored."""
    return bool(getattr(method, "has_likelihood", True))


def _baseline(
    task: Task, settings: FitSettings, method: Any, words: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Log-density of the held-out rows under another method's mixtures."""
    with (
        console.status(f"for comparison: {words}"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", FitWarning)
        model = NetworkGaussianMixture(
            task.components,
            graph=task.network,
            method=method,
            n_rounds=settings.rounds,
            random_state=settings.seed,
        )
        rows, nodes = task.train
        model.fit(rows, nodes=nodes)
        values = model.score_samples(*task.test) - task.scale.log_volume
    return values, tuple(f"{words}: {w.message}" for w in caught if w.category is FitWarning)


def findings(
    task: Task, settings: FitSettings, fitted: Fitted, scores: Scores, notes: tuple[str, ...]
) -> Findings:
    """All there is to report."""
    model = fitted.model
    scale = task.scale
    return Findings(
        theta=model._theta,
        theta_scaled=fitted.theta_scaled,
        network=model.network_,
        data=NodeData.from_rows(task.table.rows, task.table.nodes),
        features=task.table.features,
        history=model.history_,
        method=task.method,
        scores=scores,
        snapshots={r: scale.original(theta) for r, theta in fitted.watch.snapshots.items()},
        held_out=fitted.watch.held_out,
        certificate=model.certificate_,
        converged=model.converged_,
        traffic=model.traffic_,
        trust=getattr(model, "trust_", None),
        settings=shown_settings(settings, model),
        notes=notes,
    )


def shown_settings(settings: FitSettings, model: NetworkGaussianMixture) -> dict[str, Any]:
    """Settings for the page: names of files, not where they lie."""
    from pathlib import Path

    config = settings.to_config()
    config.pop("components", None)
    config["data"] = ", ".join(Path(source).name for source in settings.data[:3])
    if settings.graph:
        config["graph"] = Path(settings.graph).name
    if hasattr(model.method, "alpha"):
        config["alpha"] = model.method.alpha
    return config | {"status": model.status_}
