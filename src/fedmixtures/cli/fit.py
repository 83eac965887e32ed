"""`fedmixtures fit`: what it is asked to do, and the way from a table to a run folder."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fedmixtures.cli.main import begin, say

WITH_ALPHA = "gtv-mmd"
"""The method where --alpha is given and none is named: the default method has no alpha."""
LISTS = "features", "drop", "describe", "categorical"
"""Options that are names, separated by commas."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What `fit` and `compare` are told alike: the table, the graph and how mixtures are fitted.

    Parameters
    ----------
    nodes
        Column that names the node of each row.
    graph
        Who listens to whom: a CSV with the columns source,target and if you like weight; a GraphML
        file; `knn:5` for the five nodes with the nearest means; `full`; `none`. Without it
        everybody may listen to everybody up to 300 nodes, beyond that to the 20 nodes most like it;
        couplings (gtv-...), which take every edge for true, get the five most alike.
    k
        Clusters: a number, or a CSV with the columns node,k, of components of every node, each of
        which is a cluster; for `fit` also `auto` or a range, `2:12`: the default method then finds
        components by rows that it has not fitted, and joins them; others choose components by BIC,
        per node where they allow it. Unless given, `auto` for the default method in `fit`, else 3.
    covariance
        What covariances are like: `full`, `tied` (one for all components), `diag` (features vary
        apart) or `spherical` (all features alike). With few rows or many features diag or tied
        often fit better.
    features
        Columns to use, as a,b,c. By default all but the node column and those that are no features:
        identifiers, dates, columns that are the same in every row. What is left out is told.
    drop
        Columns to leave out, as a,b,c.
    label
        Column that holds what is known of rows, such as a diagnosis: described as by --describe.
    describe
        Columns that tell what clusters are, as sex,outcome: never fitted. The page and the model
        have their shares and means by cluster.
    categorical
        Columns of numbers that are categories, as sex,cp; columns of words and of true and false
        are so by themselves. The default method, local, centralized and fedem know categories.
    transforms
        Whether skewed columns are fitted by their logarithm or a power: `auto` finds out, `none`
        takes all as they are, `crp=log,age=none` says so of some columns (others are found out).
        Unless given, auto for the default method, none for others. Answers stay in your units.
    rounds
        Exchanges of methods in rounds (gtv-..., fedem and others), 40 unless given. The default
        method knows itself when it is done.
    holdout
        Share of every node's rows kept out of the fit, to judge by. 0 fits all rows, and a report
        then cannot say whether neighbours helped.
    standardize
        Divide every feature by its standard deviation over all nodes' rows, for the fit alone: the
        model and all that is shown are in your units. Unless you say, only for the couplings
        (gtv-...), whose step is made for features of order one, and only where a feature's spread
        within nodes is below 0.5 or above 10; others do not need it.
    allow_isolated
        Accept nodes that no edge names.
    delimiter
        Between the cells of a CSV, if not a comma.
    seed
        Seeds everything random; repeats of a comparison count up from it.
    """

    nodes: Annotated[str | None, Parameter(name=["--nodes", "-n"])] = None
    graph: Annotated[str | None, Parameter(name=["--graph", "-g"])] = None
    k: Annotated[str | None, Parameter(name=["--k", "-k"])] = None
    covariance: str = "full"
    features: str | None = None
    drop: str | None = None
    label: str | None = None
    describe: str | None = None
    categorical: str | None = None
    transforms: str | None = None
    rounds: int | None = None
    holdout: float = 0.2
    standardize: bool | None = None
    allow_isolated: Annotated[bool, Parameter(negative="")] = False
    delimiter: str | None = None
    seed: int = 0

    def settings(self, data: tuple[str, ...], **more: Any) -> FitSettings:
        """With the data and what a command has of its own."""
        listed = {n: names(getattr(self, n)) for n in LISTS}
        given: dict[str, Any] = asdict(self) | listed | more
        given["k"] = given["k"] or "3"
        return FitSettings(**given, data=data)


@dataclass(frozen=True, kw_only=True)
class FitSettings(TableOptions):
    """Everything that decides the numbers of a run, as `config.toml` keeps it."""

    data: tuple[str, ...] = ()
    k: str = "3"
    features: Any = None  # names as a tuple; None: all that are features by their cells
    drop: Any = None  # names as a tuple
    describe: Any = None  # names as a tuple
    categorical: Any = None  # names as a tuple, beside words and booleans
    method: str = "trust"
    alpha: str | None = None
    pooled: bool = True
    devices: int | None = None
    """Over how many the nodes are spread; None leaves the choice to `with_devices`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the method, by name."""
    components: Mapping[str, int] = field(default_factory=dict)
    """Components of each node, where they were chosen one by one."""
    curve: Mapping[str, float] = field(default_factory=dict)
    curve_errors: Mapping[str, float] = field(default_factory=dict)
    """What each number of components was worth, and how far differences are chance."""

    def __post_init__(self):
        if not 0 <= self.holdout < 1:
            raise ValueError(
                f"--holdout is {self.holdout:g}. Give the share of rows to hold out, from 0 to "
                "less than 1."
            )

    def read_table(self) -> Any:
        """The rows, cells of which may be missing."""
        from fedmixtures.io.tables import read_table

        return read_table(
            self.data,
            self.nodes,
            self.features,
            self.delimiter,
            drop=self.drop or (),
            label=self.label,
            describe=self.describe or (),
            recognise=True,
            categorical=self.categorical or (),
        )

    def to_config(self) -> dict[str, Any]:
        """Settings to write to `config.toml`, with absolute paths, so that a run can be resumed."""
        config = asdict(self)
        config["data"] = [str(Path(source).absolute()) for source in self.data]
        if self.graph and Path(self.graph).is_file():
            config["graph"] = str(Path(self.graph).absolute())
        return {name: value for name, value in config.items() if value not in (None, {}, ())}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FitSettings:
        """Read settings back; what other sections of the file say is not for us."""
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in config.items() if name in known}
        for name in ("data", *LISTS):
            if name in given:
                given[name] = tuple(given[name])
        for name in ("k", "alpha"):
            if name in given:
                given[name] = str(given[name])
        return cls(**given)


UNLESS_GIVEN = TableOptions()


def default_method() -> str:
    """The method the library takes where none is named."""
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

    return NetworkGaussianMixture().method


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Settings written as ``name=value``."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set is {text!r}. Write name=value, for example n_local_steps=1.")
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[name.strip()] = value.strip()
    return options


def names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas."""
    if text is None:
        return None
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError("a list of names is empty. Write a,b,c.")
    return found


def offer_cores() -> None:
    """Make every core of this machine a device of JAX; before anything else uses it."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # JAX runs already, with the devices it has
        jax.config.update("jax_num_cpu_devices", cores or 1)


def with_rounds(settings: FitSettings, method: Any) -> FitSettings:
    """The settings with a number of rounds, where there are any; else it is refused."""
    from fedmixtures import _checks
    from fedmixtures.engine.options import ROUNDS, in_rounds, refuse_idle

    if settings.rounds is not None:
        _checks.whole("--rounds", settings.rounds, minimum=0)
    if settings.devices is not None:
        _checks.whole("--devices", settings.devices)
    refuse_idle(method, "--{}", rounds=settings.rounds, devices=settings.devices)
    rounds = settings.rounds
    if rounds is None and in_rounds(method):
        rounds = ROUNDS
    return dataclasses.replace(settings, rounds=rounds)


def _stored(folder: Any) -> FitSettings:
    """Settings of a run, without what its method has no use for: earlier versions wrote it."""
    from fedmixtures.engine.options import plays_a_part
    from fedmixtures.methods.registry import METHODS

    settings = FitSettings.from_config(folder.read_config())
    if settings.method not in METHODS:  # is refused later
        return settings
    method = METHODS[settings.method]()
    idle = [name for name in ("rounds", "devices") if not plays_a_part(name, method)]
    return dataclasses.replace(settings, **dict.fromkeys(idle))


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
        GPUs or cores to spread the nodes over. Only the default method and those in rounds between
        neighbours (gtv-... and others) take several; the latter all from 500 nodes on, unless
        given.
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
        _go_on(folder, _stored(folder))
        return
    if config is not None:
        settings = _stored(RunFolder.existing(config.parent))
        settings = dataclasses.replace(settings, data=data or settings.data)
    else:
        if not data:
            raise ValueError("no data given. Name a file: fedmixtures fit data.csv --nodes COLUMN")
        method = method or (default_method() if alpha is None else WITH_ALPHA)
        settings = table.settings(
            data,
            k=table.k or ("auto" if method == default_method() else None),
            method=method,
            alpha=alpha,
            pooled=pooled,
            devices=devices,
            options=parse_options(set_ or []),
        )
    _begin(settings, out)


def _begin(settings: Any, out: Path) -> None:
    """Check everything, then make the folder, then work."""
    from fedmixtures import _checks
    from fedmixtures.cli.prepare import (
        choose_automatic,
        hint_scale,
        prepare,
        print_summary,
        with_devices,
    )
    from fedmixtures.estimators.columns import notes_on_columns
    from fedmixtures.estimators.resolve import resolve_devices
    from fedmixtures.io.runs import RunFolder

    table = settings.read_table()
    task = prepare(settings, table)
    method = task.problem.method
    settings = with_rounds(settings, method)
    settings = dataclasses.replace(settings, standardize=task.problem.scale is not None)
    if table.left_out:  # a run that is resumed, or read again, has the same features
        settings = dataclasses.replace(settings, features=table.features)
    settings = with_devices(settings, method, len(task.labels))
    resolve_devices(settings.devices)
    folder = RunFolder.create(out)
    print_summary(task, settings)
    hint_scale(task, settings)
    if table.doubtful:
        say(
            f"Note: a different whole number in every row of {_checks.listed(table.doubtful)}. If "
            f"these are identifiers, leave them out: --drop {','.join(table.doubtful)}",
            "yellow",
        )
    for note in notes_on_columns(task.data, table.columns, method, "--categorical"):
        say(f"Note: {note}", "yellow")
    task, settings = choose_automatic(task, settings)
    folder.write_config(settings.to_config())
    _work(folder, task, settings)


def _go_on(folder: Any, settings: Any) -> None:
    """Fit the task of a run folder again, from its last checkpoint if there is one."""
    from fedmixtures.cli.prepare import prepare, print_summary
    from fedmixtures.io.runs import CHECKPOINT, MODEL

    if folder.file(MODEL).is_file() and not folder.file(CHECKPOINT).is_file():
        raise ValueError(
            f"the run in {str(folder.path)!r} is complete; there is nothing to resume. "
            f"`fedmixtures report {folder.path}` writes its report again."
        )
    table = settings.read_table()
    task = prepare(settings, table)
    print_summary(task, settings)
    _work(folder, task, settings, resume=True)


def _work(folder: Any, task: Any, settings: Any, resume: bool = False) -> None:
    """Fit, compare with the baselines, write."""
    from fedmixtures.cli.fitting import compared_with, fit_watched, write_run

    fitted = fit_watched(task, settings, folder, resume)
    for warning in fitted.warnings:
        say(f"Note: {warning}", "yellow")
    content = write_run(folder, settings, fitted, compared_with(task, settings, fitted))
    say("")
    say(content["headline"], "bold")
    medians = content["scores"]["medians"]
    network = "with neighbours" if medians["local"][0] is not None else "own data only"
    shown = ("local", "own data only"), ("network", network), ("pooled", "all rows pooled")
    for name, words in shown:
        median = medians[name][0]
        if median is not None:
            say(f"  {words:<16} {median:9.3f}  median held-out log-likelihood per row")
    if fitted.solution.status == "interrupted":
        say(f"Stopped at round {fitted.solution.n_rounds}.")
        say(f"Go on with: fedmixtures fit --resume {folder.path}")
    say(f"Open {folder.file('report.html')}")
