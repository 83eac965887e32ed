"""A fit with someone watching, what it is compared with, and the files it leaves behind."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.cli.fit import FitSettings
from fedmixtures.cli.main import console
from fedmixtures.cli.prepare import Task
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.options import ROUNDS, in_rounds, used
from fedmixtures.engine.run.watch import Progress, ProgressPrinter
from fedmixtures.engine.solution import FitWarning, Solution, Status
from fedmixtures.estimators.names import aligned
from fedmixtures.estimators.persist import load, save
from fedmixtures.estimators.reporting import findings_of, own_densities, pooled_densities
from fedmixtures.estimators.resolve import TOL, resolve_devices
from fedmixtures.estimators.scoring import assigned, log_densities, log_joints, probabilities
from fedmixtures.io.runs import (
    ASSIGNMENTS,
    CHECKPOINT,
    CONFIG,
    CONTENT,
    MODEL,
    REPORT,
    SNAPSHOTS,
    RunFolder,
    read_checkpoint,
    write_assignments,
    write_checkpoint,
    write_text,
)
from fedmixtures.io.tables import Table, read_table
from fedmixtures.methods.base import Method
from fedmixtures.metrics import Scores
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.report.content import Findings, build_content
from fedmixtures.report.page import render
from fedmixtures.report.sentences import headline

LOOKS = 20
"""How often a run is looked at: snapshots for the slider, checkpoints, held-out likelihood."""


def rounds_between_looks(settings: FitSettings) -> int:
    """So that the whole run is looked at about `LOOKS` times."""
    rounds = ROUNDS if settings.rounds is None else settings.rounds
    return max(1, round(rounds / LOOKS))


@dataclass
class Watch:
    """What is seen of a run as its rounds go by; written to the folder, if there is one."""

    task: Task
    folder: RunFolder | None
    printer: ProgressPrinter
    records: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[int, Mixture] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)

    def restore(self, reached: int) -> None:
        """Take over what an interrupted run has seen up to this round."""
        if self.folder is None:
            return
        self.records = [r for r in self.folder.read_history() if r["round"] < reached]
        snapshots = self.folder.read_snapshots()
        self.snapshots = {r: theta for r, theta in snapshots.items() if r <= reached}
        self._look(self.snapshots)

    def __call__(self, progress: Progress) -> None:
        """Keep the records of some rounds and look at the mixtures after them."""
        volume = float(self.task.log_volume.sum())  # likelihoods of rows as the table has them
        for record in progress.records:
            likelihoods = {name: record[name] + volume for name in ("objective", "fit")}
            self.records.append(record | likelihoods)
        if progress.final:
            return
        reached = progress.round
        self.snapshots[reached] = progress.theta
        self._look({reached: progress.theta})
        self.printer(replace(progress, records=self.records[-1:]))
        if self.folder is not None:
            self.folder.write_history(self.history())
            self.folder.write_snapshots(self.snapshots)
            if reached:
                write_checkpoint(self.folder.file(CHECKPOINT), progress.checkpoint)

    @cached_property
    def _evaluator(self) -> Evaluator | None:
        """The held-out rows, laid out once for all looks."""
        return None if self.task.test is None else Evaluator(self.task.test)

    def _look(self, snapshots: dict[int, Mixture]) -> None:
        """Mean over nodes of their held-out rows' mean log-density, in the table's units."""
        test, evaluator = self.task.test, self._evaluator
        if test is None or evaluator is None:
            return
        position = {label: i for i, label in enumerate(self.task.labels)}
        places = np.array([position[label] for label in test.labels])
        for reached, theta in snapshots.items():
            joint = evaluator.log_joint(self.task.scale.original(theta.at(places)))
            values = np.logaddexp.reduce(joint, axis=1)[test.source_index]
            means = np.add.reduceat(values, test.offsets[:-1]) / test.counts
            self.held_out[reached] = float(means.mean())

    def history(self) -> list[dict[str, Any]]:
        """Records of all rounds, with the held-out log-likelihood where it was taken."""
        seen = self.held_out
        return [
            record | ({"held_out": seen[record["round"]]} if record["round"] in seen else {})
            for record in self.records
        ]


@dataclass(frozen=True)
class Fitted:
    """A solution, aligned and in the table's units, and what was seen on the way."""

    solution: Solution
    theta_scaled: Mixture  # the same mixtures in the units of the fit
    watch: Watch
    warnings: tuple[str, ...] = ()


def fit_watched(
    task: Task, settings: FitSettings, folder: RunFolder | None = None, resume: bool = False
) -> Fitted:
    """Fit with a progress bar; with a folder, checkpoints and history are written as it goes."""
    checkpoint = None if folder is None else folder.file(CHECKPOINT)
    begun = read_checkpoint(checkpoint) if resume and checkpoint and checkpoint.is_file() else None
    done = 0 if begun is None else begun.round
    printer = ProgressPrinter(settings.rounds or 0, enabled=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        watch = Watch(task, folder, printer)
        if begun is not None:
            watch.restore(done)
        how = used(
            task.method,
            n_rounds=settings.rounds,
            report_every=rounds_between_looks(settings),
            resume=begun,
            devices=resolve_devices(settings.devices if (settings.devices or 1) > 1 else None),
            tol=TOL,
            keep_interrupted=True,
        )
        solution = task.problem.solve(
            seed=settings.seed,
            watch=watch if in_rounds(task.method) else None,
            announce=partial(printer.say, lasting=False),
            **how,
        )
    printer.ended(solution)
    notes = dict.fromkeys(str(w.message) for w in caught if w.category is FitWarning)
    return as_fitted(task, solution, watch, tuple(notes))


def as_fitted(task: Task, solution: Solution, watch: Watch, notes: tuple[str, ...] = ()) -> Fitted:
    """A solution in the units of the fit, aligned and in those of the table."""
    solution = aligned(solution, task.network)
    users = solution.changed(task.scale.original, task.log_volume)
    watch.records = users.history.records()
    return Fitted(users, solution.theta, watch, notes)


@dataclass(frozen=True)
class Baselines:
    """Log-density of every held-out row under what a fit is compared with; None if not fitted."""

    own: np.ndarray | None = None
    pooled: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def baseline_scores(
    task: Task, settings: FitSettings, fitted: Fitted
) -> tuple[Scores, tuple[str, ...]]:
    """Held-out log-likelihood with neighbours, with own data only, and pooled where allowed."""
    beside = baselines(task, settings, fitted)
    return scores_beside(task, fitted, beside), beside.notes


def baselines(task: Task, settings: FitSettings, fitted: Fitted) -> Baselines:
    """Fit what there is to compare with, if any row was held out to compare on."""
    test, rows = task.test, task.problem.data.rows
    if test is None or not task.method.has_likelihood:
        return Baselines()
    notes: list[str] = []

    def densities(words: str, method: Method) -> np.ndarray:
        """Of the held-out rows under another method's mixtures."""
        with (
            console().status(f"for comparison: {words}"),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always", FitWarning)
            # As often as in the run itself, though nobody looks: it is then the same program.
            often = rounds_between_looks(settings)
            how = used(method, n_rounds=settings.rounds, report_every=often)
            solution = task.fitted_by(method).problem.solve(seed=settings.seed, **how)
            values = log_densities(solution.changed(task.scale.original), test)
        notes.extend(f"{words}: {w.message}" for w in caught if w.category is FitWarning)
        return values

    known = fitted.solution, task.network, task.method, rows, test
    own = own_densities(*known, partial(densities, "own data only"))
    may_pool = settings.pooled and not isinstance(task.components, dict)
    pooling = partial(densities, "all rows pooled") if may_pool else None
    return Baselines(own, pooled_densities(*known, pooling), tuple(notes))


def scores_beside(task: Task, fitted: Fitted, beside: Baselines) -> Scores:
    """The fit's own held-out log-likelihood beside those."""
    if task.test is None or not task.method.has_likelihood:
        return Scores.of(task.labels, None)
    network = log_densities(fitted.solution, task.test)
    return Scores.of(task.labels, task.test, network, beside.own, beside.pooled)


def findings(
    task: Task, settings: FitSettings, fitted: Fitted, scores: Scores, **more: Any
) -> Findings:
    """All there is to report."""
    scale = task.scale
    return findings_of(
        fitted.solution,
        task.network,
        task.method,
        task.data,
        scores,
        task.table.features,
        theta_scaled=fitted.theta_scaled,
        snapshots={r: scale.original(theta) for r, theta in fitted.watch.snapshots.items()},
        held_out=fitted.watch.held_out,
        settings=shown_settings(task, settings, fitted.solution),
        curve={int(k): worth for k, worth in settings.curve.items()},
        **more,
    )


def shown_settings(task: Task, settings: FitSettings, solution: Solution) -> dict[str, Any]:
    """Settings for the page: names of files, not where they lie."""
    config = settings.to_config()
    for name in ("components", "curve"):
        config.pop(name, None)
    config["data"] = ", ".join(Path(source).name for source in settings.data[:3])
    if settings.graph:
        config["graph"] = Path(settings.graph).name
    if hasattr(task.method, "alpha"):
        config["alpha"] = task.method.alpha
    return config | {"status": str(solution.status)}


def write_run(
    folder: RunFolder,
    task: Task,
    settings: FitSettings,
    fitted: Fitted,
    scores: Scores,
    notes: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Write everything a run leaves behind; returns the content of the report.

    `left`: what left each site, by its own log.
    """
    folder.write_config(settings.to_config())
    folder.write_history(fitted.watch.history())
    write_rows(folder.file(ASSIGNMENTS), task, fitted)
    params = {
        "n_components": task.components,
        "method": task.method,
        "n_rounds": settings.rounds,
        "random_state": settings.seed,
    }
    known = fitted.solution, task.network, params
    save(folder.path, *known, feature_names=task.table.features)
    notes = *fitted.warnings, *notes
    found = findings(task, settings, fitted, scores, notes=notes, left=left)
    content = build_content(found)
    content["headline"] = headline(content)
    write_text(folder.file(CONTENT), json.dumps(content, allow_nan=False))
    write_text(folder.file(REPORT), render(content))
    if fitted.solution.status is not Status.INTERRUPTED:
        for name in (CHECKPOINT, SNAPSHOTS):
            folder.file(name).unlink(missing_ok=True)
    return content


def write_rows(path: Path, task: Task, fitted: Fitted) -> None:
    """Component of every row, and the probability of each."""
    table = task.table
    joint = log_joints(fitted.solution, task.data)
    columns = {
        "row": np.arange(table.n_rows),
        "node": table.nodes,
        "held_out": task.held_out,
        "component": assigned(joint),
    }
    if len(table.files) > 1:
        columns["file"] = np.array([Path(f).name for f in table.files])[table.origin]
        columns["row_in_file"] = table.row_in_file
    shown = probabilities(joint)
    write_assignments(path, columns, shown if task.method.has_likelihood else shown[:, :0])


def replace_demo(path: Path) -> RunFolder:
    """The folder of the demo; one that no demo has written is left alone."""
    if path.is_dir() and (path / CONFIG).is_file():
        config = RunFolder.existing(path).read_config()
        if str(config.get("data", [""])[0]).rpartition("/")[2].startswith("built-in"):
            return RunFolder(path)
    return RunFolder.create(path)


def load_run(path: Path) -> tuple[Any, FitSettings, tuple[str, ...]]:
    """Model, settings and feature names of a run."""
    folder = RunFolder.existing(path)
    model: Any = load(folder.finished(MODEL))
    features = tuple(str(name) for name in model.feature_names_in_)
    return model, FitSettings.from_config(folder.read_config()), features


def new_rows(
    model: Any,
    settings: FitSettings,
    features: tuple[str, ...],
    data: tuple[str, ...],
    nodes: str | None = None,
    delimiter: str | None = None,
) -> tuple[Table, NodeData]:
    """New rows, as a table and by node; of the one node where there is no other."""
    column, delimiter = nodes or settings.nodes, delimiter or settings.delimiter
    table = read_table(data, column, features, delimiter, constant_ok=True)
    if column is None and len(model.nodes_) == 1:
        table = replace(table, nodes=np.repeat(model.nodes_, table.n_rows))
    return table, NodeData.from_rows(table.rows, table.nodes)


def site_content(folder: RunFolder) -> dict[str, Any]:
    """The page of a site that keeps its model of a job, from its data as they are now."""
    model, settings, features = load_run(folder.path)
    about, solution = folder.read_config()["site"], model.solution_
    _, data = new_rows(model, settings, features, settings.data)
    shown = {"method": settings.method, "k": settings.k, "job": about["job"]}
    known = solution, model.network_, model.resolved_method(), data, Scores.of(data.labels, None)
    told = {"notes": tuple(about["words"]), "left": (about["left"],)}
    found = findings_of(*known, features, settings=shown | {"status": str(solution.status)}, **told)
    return build_content(found)


def node_label(model: Any, text: str) -> Any:
    """The node that is written this way."""
    known = {str(label): label for label in model.mixtures_}
    if text not in known:
        raise ValueError(
            f"there is no node {text!r} in this run. Its nodes are {_checks.listed(known, 12)}."
        )
    return known[text]
