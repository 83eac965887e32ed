"""What an experiment is: plain dataclasses that are read from TOML and written back to it."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from typing import Any

import tomli_w

NAMES = (
    "table1",
    "table2",
    "fig-sbm",
    "fig-rounds",
    "table3",
    "fig-digits",
    "proposition1",
    "alpha-grid",
    "sensitivity",
)
"""All experiments: the paper's in its order, then what stands behind them."""
BEYOND = (
    "trust-sbm",
    "trust-robust",
    "trust-digits",
    "trust-ablation",
    "trust-cost",
    "trust-cost-gpu",
    "trust-stress",
    "real",
    "relatives",
    "release-price",
    "covariances",
    "gaps",
    "clusters",
)
"""Experiments beyond the paper: run by name, not with ``all``."""


@dataclass(frozen=True)
class Problem:
    """Data and graph, drawn anew for every seed."""

    name: str
    label: str
    data: dict[str, Any]
    """The function of `fedmixtures.data` under ``scenario``, and its arguments."""
    graph: dict[str, Any]
    """The function of `fedmixtures.graph.generate` under ``kind``, and its arguments."""
    n_components: int
    at: float | None = None
    """Where the problem stands in a sweep."""


@dataclass(frozen=True)
class Row:
    """A method as it is compared: one row of a table, one curve of a figure."""

    name: str
    label: str
    method: str
    """A name of the estimator's `method` slot, or ``start``: round 0, before any exchange."""
    options: dict[str, Any] = field(default_factory=dict)
    on: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further options on single problems, by name."""
    tune: dict[str, list[Any]] = field(default_factory=dict)
    """Options to choose by the grid protocol, with their values."""
    start: dict[str, Any] = field(default_factory=dict)
    gtv: dict[str, Any] = field(default_factory=dict)
    """Where this row departs from the experiment's `start` and `gtv`."""
    only: list[str] = field(default_factory=list)
    """The problems this row is for; all if empty."""
    extra: bool = False
    """Not in the paper's table or figure: shown beside it."""


@dataclass(frozen=True)
class Start:
    """Local k-means, Algorithm 1, line 1."""

    n_init: int = 2
    reg_covar: float = 1e-3


@dataclass(frozen=True)
class Gtv:
    """What all GTV rows of an experiment have in common."""

    learning_rate: float = 0.02
    n_local_steps: int = 5
    n_samples: int = 50
    bandwidths: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0, 4.0])
    min_weight: float = 0.01
    max_mean_norm: float = 1000.0
    min_variance: float = 0.01
    max_variance: float = 1000.0


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper."""

    name: str
    title: str
    kind: str
    """The module of `reproduction.kinds` that makes it."""
    n_seeds: int = 20
    first_seed: int = 0
    n_rounds: int = 40
    metrics: list[str] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    """Rows that the others are compared with, seed by seed."""
    start: Start = field(default_factory=Start)
    gtv: Gtv = field(default_factory=Gtv)
    tuning: list[Problem] = field(default_factory=list)
    """Where rows with `tune` are tuned: one problem, homogeneous in the paper's protocol."""
    problems: list[Problem] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """What only this kind of experiment knows."""
    quick: dict[str, Any] = field(default_factory=dict)
    """What a first look does otherwise: `options` in place of its own, and the `problems` and
    `rows` it leaves out; `n_seeds` if not three."""

    def quickened(self) -> Experiment:
        """The experiment as a first look sees it."""
        left_out = self.quick.get("problems", []) + self.quick.get("rows", [])
        stay = lambda entries: [entry for entry in entries if entry.name not in left_out]
        options = {**self.options, **self.quick.get("options", {})}
        return replace(
            self,
            n_seeds=self.quick.get("n_seeds", self.n_seeds),
            problems=stay(self.problems),
            rows=stay(self.rows),
            options=options,
            quick={},
        )

    def problem(self, name: str) -> Problem:
        """The problem of this name."""
        return next(problem for problem in self.problems if problem.name == name)

    def row(self, name: str) -> Row:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)

    def pairs(self) -> list[tuple[Row, Problem]]:
        """Every row on every problem it is for."""
        return [
            (row, problem)
            for row in self.rows
            for problem in self.problems
            if not row.only or problem.name in row.only
        ]


def check_name(name: str, *also: str) -> None:
    """Refuse a name that no experiment has."""
    known = (*NAMES, *BEYOND, *also)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"`name` is {name!r}.{meant} Choose one of {', '.join(known)}.")


def load(name: str) -> Experiment:
    """The experiment of this name, from the package."""
    check_name(name)
    text = files("reproduction").joinpath("configs", f"{name}.toml").read_text("utf-8")
    return from_toml(text)


def from_toml(text: str) -> Experiment:
    """An experiment from its TOML text; unknown and missing entries are named."""
    values = tomllib.loads(text)
    nested = {"start": Start, "gtv": Gtv}
    lists = {"tuning": Problem, "problems": Problem, "rows": Row}
    for name, kind in nested.items():
        if name in values:
            values[name] = _build(kind, values[name], name)
    for name, kind in lists.items():
        values[name] = [_build(kind, entry, name) for entry in values.get(name, [])]
    return _build(Experiment, values, "experiment")


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML text; `from_toml` gives the same experiment back."""
    return tomli_w.dumps(_without_none(asdict(experiment)))


def _without_none(value: Any) -> Any:
    """TOML has no word for nothing: what is None is left out."""
    if isinstance(value, dict):
        return {name: _without_none(part) for name, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value


def _build(kind: type, values: dict[str, Any], where: str) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(
            f"`{where}` of an experiment names {', '.join(map(repr, unknown))}. "
            f"Known are {', '.join(sorted(known))}."
        )
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"`{where}` of an experiment is incomplete: {error}.") from None
