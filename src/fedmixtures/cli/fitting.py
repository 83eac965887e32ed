"""A fit with someone watching, what it is compared with, and the files it leaves behind."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.cli.fit import FitSettings
from fedmixtures.cli.main import console, say
from fedmixtures.cli.prepare import Task
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.options import ROUNDS, in_rounds, used
from fedmixtures.engine.run.watch import Progress, ProgressPrinter
from fedmixtures.engine.solution import FitWarning, Solution, Status
from fedmixtures.estimators.baselines import Baselines, baselines
from fedmixtures.estimators.description import described, memberships
from fedmixtures.estimators.names import aligned
from fedmixtures.estimators.persist import load, save
from fedmixtures.estimators.reporting import categories_note, findings_of
from fedmixtures.estimators.resolve import TOL, resolve_devices
from fedmixtures.estimators.scoring import assigned, log_joints, probabilities
from fedmixtures.io.described import read_described
from fedmixtures.io.runs import (
    ASSIGNMENTS,
    CHECKPOINT,
    CONFIG,
    CONTENT,
    MODEL,
    REPORT,
    SNAPSHOTS,
    RunFolder,
    write_assignments,
    write_text,
)
from fedmixtures.io.tables import Table, read_table
from fedmixtures.metrics import Scores
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.report.content import build_content
from fedmixtures.report.page import render
from fedmixtures.report.sentences import headline

LOOKS = 20
"""How often a run is looked at: snapshots for the slider, checkpoints, held-out likelihood."""


def rounds_between_looks(settings: FitSettings) -> int:
    """Rounds between two looks, of which a whole run has about `LOOKS`."""
    rounds = ROUNDS if settings.rounds is None else settings.rounds
    return max(1, round(rounds / LOOKS))


@dataclass
class Watch:
    """What is seen of a run as its rounds go by; written to the folder, if there is one."""

    task: Task
    folder: RunFolder | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[int, Mixture] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)

    def restore(self) -> None:
        """Take over what an interrupted run has seen."""
        assert self.folder is not None
        self.records, self.snapshots = self.folder.read_history(), self.folder.read_snapshots()
        for reached, theta in self.snapshots.items():
            self._look(reached, theta)

    def __call__(self, progress: Progress) -> None:
        """Keep the records of some rounds and look at the mixtures after them."""
        if progress.final:
            return
        reached, first = progress.round, progress.round - len(progress.records)
        self.records = [r for r in self.records if r["round"] < first] + progress.records
        self.snapshots[reached] = progress.theta
        self._look(reached, progress.theta)
        if self.folder is not None:
            self.folder.write_history(self.history())
            self.folder.write_snapshots(self.snapshots)

    def _look(self, reached: int, theta: Mixture) -> None:
        """Mean over nodes of their held-out rows' mean log-density."""
        rows = self.task.test
        if rows is None:
            return
        test, position = rows.data, {label: i for i, label in enumerate(self.task.labels)}
        joint = rows.log_joint(theta.at(np.array([position[label] for label in test.labels])))
        values = np.logaddexp.reduce(joint, axis=1) + self.task.slopes
        values = values[test.source_index]
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
    """A solution with aligned components, and what was seen on the way."""

    solution: Solution
    watch: Watch
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, solution: Solution, watch: Watch, notes: tuple[str, ...] = ()) -> Fitted:
        """With its components aligned."""
        watch.records = solution.history.records()
        return cls(aligned(solution, watch.task.problem.network), watch, notes)


def fit_watched(
    task: Task, settings: FitSettings, folder: RunFolder | None = None, resume: bool = False
) -> Fitted:
    """Fit with a line of progress; with a folder, checkpoints and history are written."""
    method, watch = task.problem.method, Watch(task, folder)
    checkpoint = None if folder is None else folder.file(CHECKPOINT)
    begun = checkpoint if resume and checkpoint and checkpoint.is_file() else None
    if begun is not None:
        watch.restore()
    printer = ProgressPrinter(settings.rounds or 0, enabled=True)
    rounds = in_rounds(method)
    looks = [printer, watch] if rounds else [printer]
    how = used(
        method,
        n_rounds=settings.rounds,
        report_every=rounds_between_looks(settings) if rounds else None,
        checkpoint=checkpoint,
        resume=begun,
        devices=resolve_devices(settings.devices if (settings.devices or 1) > 1 else None),
        tol=TOL,
        keep_interrupted=True,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        solution = task.problem.solve(
            seed=settings.seed,
            watch=lambda progress: [look(progress) for look in looks],
            announce=partial(printer.say, lasting=False),
            **how,
        )
    printer.ended(solution)
    solution = solution.changed(lambda theta: theta, task.volume)
    notes = dict.fromkeys(str(w.message) for w in caught if w.category is FitWarning)
    return Fitted.of(solution, watch, tuple(notes))


def compared_with(task: Task, settings: FitSettings, fitted: Fitted) -> Baselines:
    """What a fit is compared with: own data only, and all rows pooled where that is allowed."""
    with console().status("for comparison") as status:
        return baselines(
            task.problem,
            fitted.solution,
            task.test,
            pooled=settings.pooled,
            begin=lambda words: status.update(f"for comparison: {words}"),
            seed=settings.seed,
            n_rounds=settings.rounds,
            # As often as in the run itself, though nobody looks: it is then the same program.
            report_every=rounds_between_looks(settings),
        )


def _shown_settings(task: Task, settings: FitSettings, solution: Solution) -> dict[str, Any]:
    """Settings for the page: names of files, not where they lie."""
    config = settings.to_config()
    for name in ("components", "curve", "curve_errors"):
        config.pop(name, None)
    config["data"] = ", ".join(Path(source).name for source in settings.data[:3])
    if settings.graph:
        config["graph"] = Path(settings.graph).name
    if (alpha := getattr(task.problem.method, "alpha", None)) is not None:
        config["alpha"] = alpha
    return config | {"status": str(solution.status)}


def write_run(
    folder: RunFolder,
    settings: FitSettings,
    fitted: Fitted,
    beside: Baselines,
    left: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Write everything a run leaves behind; returns the content of the report.

    `left`: what left each site, by its own log.
    """
    task, solution, watch = fitted.watch.task, fitted.solution, fitted.watch
    problem, table, taken = task.problem, task.table, task.transform
    folder.write_config(settings.to_config())
    folder.write_history(watch.history())
    joint = log_joints(solution, task.in_units_of_fit)
    write_rows(folder.file(ASSIGNMENTS), task, joint)
    params = {
        "n_components": problem.components,
        "method": problem.method,
        "standardize": problem.scale is not None,
        "n_rounds": settings.rounds,
        "random_state": settings.seed,
    }
    known: dict[str, Any] = {"transform": taken, "categories": table.categories}
    known["feature_names"] = table.features
    named = dict.fromkeys(
        (*([settings.label] if settings.label else ()), *(settings.describe or ()))
    )
    if named:
        cells = read_described(settings.data, tuple(named), settings.delimiter)
        shares = memberships(joint, problem.method.has_likelihood)[task.data.source_index]
        known["described"] = described(cells, shares, task.data)
    save(folder.path, solution, problem.network, params, **known)
    told, atlas = tuple(taken.told(table.columns)), {}
    if table.categories is not None or not taken.is_identity:
        from fedmixtures.estimators.network_mixture import NetworkGaussianMixture  # a second

        model = NetworkGaussianMixture(**params).adopt(solution, problem.network, **known)
        atlas = {"atlas": model.atlas_}
        told = (*told, *([] if table.categories is None else [categories_note(model)]))
    found = findings_of(
        solution,
        problem.network,
        problem.method,
        task.in_units_of_fit,
        beside.scores(problem, solution, task.test, task.slopes),
        taken.names(table.columns),
        **atlas,
        described=known.get("described"),
        theta_scaled=problem.scaled(solution.theta),
        snapshots=watch.snapshots,
        held_out=watch.held_out,
        settings=_shown_settings(task, settings, solution),
        curve={int(k): worth for k, worth in settings.curve.items()},
        curve_errors={int(k): error for k, error in settings.curve_errors.items()},
        notes=(*told, *fitted.warnings, *beside.notes),
        left=left,
    )
    content = build_content(found)
    content["headline"] = headline(content)
    write_text(folder.file(CONTENT), json.dumps(content, allow_nan=False))
    write_text(folder.file(REPORT), render(content))
    if solution.status is not Status.INTERRUPTED:
        for name in (CHECKPOINT, SNAPSHOTS):
            folder.file(name).unlink(missing_ok=True)
    return content


def write_rows(path: Path, task: Task, joint: np.ndarray) -> None:
    """Component of every row, and the probability of each."""
    table = task.table
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
    known = task.problem.method.has_likelihood
    write_assignments(path, columns, shown if known else shown[:, :0])


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
    """New rows, a table and by node in the user's units; of the one node if there is one."""
    column, delimiter = nodes or settings.nodes, delimiter or settings.delimiter
    table = read_known(model, features, data, column, delimiter)
    if column is None and len(model.nodes_) == 1:
        table = replace(table, nodes=np.repeat(model.nodes_, table.n_rows))
    return table, table.by_node()


def read_known(
    model: Any, features: tuple[str, ...], data: tuple[str, ...], nodes: Any, delimiter: Any
) -> Table:
    """A table with the columns and categories of a model."""
    kinds, known = model.categories_, None
    if kinds is not None:
        known = {features[i]: of for i, of in zip(kinds.positions, kinds.levels, strict=True)}
    table = read_table(data, nodes, features, delimiter, constant_ok=True, known=known)
    for name, values in table.unknown:
        say(
            f"Note: column {name!r} holds {_checks.listed(values)}, which the run was not fitted "
            "on: taken as missing.",
            "yellow",
        )
    return replace(table, categories=kinds)


def in_units_of_fit(model: Any, data: NodeData) -> NodeData:
    """Rows of the user as the model's mixtures know them."""
    return replace(data, rows=model.transform_.apply(data.rows))


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
