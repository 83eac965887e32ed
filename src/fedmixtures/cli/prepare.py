"""From settings to what runs: rows split, method, components, `auto`; told in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.cli.fit import FitSettings
from fedmixtures.cli.main import console, say
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.splits import holdout_of
from fedmixtures.data.transform import Transform, to_fit
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.estimators.default_graph import words_on_default_graph
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.resolve import (
    AUTO,
    numbers_of,
    resolve_components,
    resolve_method,
    resolve_transform,
)
from fedmixtures.estimators.scale import of_order_one
from fedmixtures.io.graph_files import read_counts, read_graph
from fedmixtures.io.tables import Table
from fedmixtures.mixture.covariance_types import check_type

NODES_WORTH_SPREADING = 500
"""From so many nodes on a second core saves more than it costs to set up."""


@dataclass(frozen=True)
class Task:
    """A table and what is to be solved of it; rows are grouped by node once, here."""

    table: Table
    data: NodeData
    """All rows by node, in the user's units; categories are one-hot."""
    held_out: np.ndarray
    """Which rows are held out, in the order of the table."""
    problem: Problem
    """The other rows as the fit sees them, with network, method, components and units."""
    test: Evaluator | None
    """The rows that are held out, if any, in units of the fit: laid out once for all that is asked
    of them."""
    transform: Transform
    """How columns are taken."""
    slopes: np.ndarray
    """(rows held out,) what their log-densities gain in the user's units."""

    @classmethod
    def of(
        cls,
        table: Table,
        data: NodeData,
        held: np.ndarray,
        graph: Any,
        transforms: Any = "none",
        seed: int = 0,
        **what: Any,
    ) -> Task:
        """To fit the rows that are not held out; `what` as `Problem.of` takes it."""
        train, test, slopes = data, None, np.zeros(0)
        if held.any():
            train = data.subset(~held)
        taken = resolve_transform(transforms, train, table.columns, resolve_method(what["method"]))
        if held.any():
            raw = data.subset(held)
            test = Evaluator(dataclasses.replace(raw, rows=taken.apply(raw.rows)))
            slopes = np.empty(len(raw.rows))
            slopes[raw.source_index] = taken.log_slopes(raw.rows)
        train = to_fit(train, taken, seed)
        train = train if table.categories is None else table.categories.softened(train)
        return cls(table, data, held, Problem.of(train, graph, **what), test, taken, slopes)

    @property
    def in_units_of_fit(self) -> NodeData:
        """All rows in the units of the fit."""
        return dataclasses.replace(self.data, rows=self.transform.apply(self.data.rows))

    @property
    def volume(self) -> np.ndarray:
        """(nodes,) what mean log-densities of fitted rows lose in the user's units."""
        fitted = self.data.subset(~self.held_out) if self.held_out.any() else self.data
        return self.transform.volume(fitted)

    @property
    def labels(self) -> tuple:
        """The nodes, in the order of all stacked arrays."""
        return self.problem.network.labels

    def where(self, **changed: Any) -> Task:
        """A copy of this task with another method or other components."""
        return dataclasses.replace(self, problem=self.problem.where(**changed))


def prepare(settings: FitSettings, table: Table, data: NodeData | None = None) -> Task:
    """Check everything that can be checked before the long work; `data` are the rows by node."""
    data = table.by_node() if data is None else data
    method = choose_method(settings)
    components = choose_components(settings, data.labels)
    keep = resolve_components(components or 1, data.labels)
    held = holdout_of(data, settings.holdout, settings.seed, keep)
    graph = read_graph(settings.graph, data.labels, settings.allow_isolated)
    what = {"n_components": components or 1, "standardize": settings.standardize}
    what |= {"transforms": transforms_of(settings.transforms), "seed": settings.seed}
    return Task.of(table, data, held, graph, method=method, **what)


def transforms_of(text: str | None) -> Any:
    """What was written as `auto`, `none` or `crp=log,age=none`, as the estimator takes it."""
    if text is None or "=" not in text:
        return text
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {name.strip(): kind.strip() for name, _, kind in pairs}


def hint_scale(task: Task, settings: FitSettings) -> None:
    """Say so where features are far from the order of one that step sizes are made for."""
    problem = task.problem
    if problem.scale is not None or not hasattr(problem.method, "learning_rate"):
        return
    good = of_order_one(problem.data)
    far = [f for f, fine in zip(task.table.features, good, strict=True) if not fine]
    if far:
        say(
            f"Note: the spread of {_checks.listed(far)} is far from 1, where step sizes and "
            "bandwidths are made for. Leave --no-standardize out.",
            "yellow",
        )


def with_devices(settings: FitSettings, method: Any, n_nodes: int) -> FitSettings:
    """The settings with a number of devices: all for many nodes, else one.

    Other methods than those in rounds fill a machine's cores by themselves.
    """
    import jax

    from fedmixtures.engine.options import in_rounds, plays_a_part

    if settings.devices is not None:
        return settings
    spreads = in_rounds(method) and plays_a_part("devices", method)
    many = n_nodes >= NODES_WORTH_SPREADING and spreads
    return dataclasses.replace(settings, devices=jax.device_count() if many else 1)


def choose_method(settings: FitSettings) -> Any:
    """The method by name, with the settings that were given."""
    check_type("--covariance", settings.covariance)
    method = resolve_method(settings.method, settings.covariance)
    options = dict(settings.options)
    if settings.alpha is not None and settings.alpha != "auto":
        options["alpha"] = _number("--alpha", settings.alpha)
        _checks.positive("--alpha", options["alpha"], allow_zero=True)
    known = {f.name for f in dataclasses.fields(method)}
    wanted = [*options, *(["alpha"] if settings.alpha == "auto" else [])]
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"the method {settings.method!r} has no setting {name!r}. "
                f"It has {', '.join(sorted(known)) or 'none'}."
            )
    return dataclasses.replace(method, **options) if options else method


def choose_components(settings: FitSettings, labels: tuple) -> Any:
    """A number for all nodes, a mapping, or None where it is to be found (`auto`)."""
    if settings.components:
        known = {str(label): label for label in labels}
        return {known[name]: int(k) for name, k in settings.components.items() if name in known}
    if Path(settings.k).is_file():
        return read_counts(Path(settings.k), labels)
    if settings.k == AUTO or ":" in settings.k:
        numbers_of(settings.k, "--k")
        return None
    try:
        k = int(settings.k)
    except ValueError:
        raise ValueError(
            f"--k is {settings.k!r}, neither a number nor a file. Give a whole number, a range "
            "such as 2:12, a CSV with the columns node,k, or auto."
        ) from None
    _checks.whole("--k", k)
    return k


def _is_open(settings: FitSettings) -> bool:
    """Whether the number of components is to be found."""
    return not settings.components and (settings.k == AUTO or ":" in settings.k)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}. Give a number, or auto.") from None


def choose_automatic(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    """The task and settings with numbers where there was `auto`, chosen on training rows alone."""
    if _is_open(settings):
        task, settings = _components(task, settings)
    if settings.alpha == "auto":
        task, settings = _alpha(task, settings)
    return task, settings


def _components(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    """Numbers by node, or one for all and clusters to be joined."""
    from fedmixtures.estimators.search import Search
    from fedmixtures.estimators.selection import with_components

    with console().status("looking for the number of components") as status:
        tell = _teller(status)
        tell("looking for the number of components")
        how = {"seed": settings.seed, "dtype": "float64"}
        problem, found = with_components(task.problem, settings.k, tell, **how)
    numbers = sorted(set(problem.n_components))
    words = numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}, by node"
    chosen: dict[str, Any] = {"k": str(numbers[0]) if len(numbers) == 1 else AUTO}
    if not isinstance(found, Search):
        say(f"  k chosen by BIC on training rows: {words}")
        if numbers[-1] == max(found.candidates):
            say(f"  (some nodes took the largest k tried, {numbers[-1]})")
        by_node = found.n_components.items()
        chosen["components"] = {str(n): k for n, k in by_node} if len(numbers) > 1 else {}
    else:
        found = found.moved(task.volume, task.problem.data.counts)
        say(f"  components chosen by rows that were not fitted: {words}, joined into clusters")
        say(f"  log-density of such a row, by number, ± what chance differs by: {found}")
        if found.at_edge:
            wider = f"--k {numbers[0]}:{4 * numbers[0]}"
            say(f"  (the largest number that was tried is the best: {wider} looks further)")
        if found.stability[numbers[0]] > 0:
            agreed = found.stability[numbers[0]]
            say(f"  (its clusters agree by {agreed:.2f} with those of the numbers beside it)")
        given = getattr(problem.method, "n_clusters", None)
        clusters = AUTO if given is None else given
        chosen["options"] = {**settings.options, "n_clusters": clusters}
        chosen["curve_errors"] = {str(k): error for k, error in found.errors.items()}
        problem = problem.where(method=dataclasses.replace(problem.method, n_clusters=clusters))
    chosen["curve"] = {str(k): worth for k, worth in found.curve.items()}
    return dataclasses.replace(task, problem=problem), dataclasses.replace(settings, **chosen)


def _teller(status: Any) -> Callable[[str], None]:
    """Says what is looked for: on a terminal in one line, in a log in lines of its own."""
    if console().is_terminal:
        return status.update
    return lambda words: say(f"  {words}")


def _alpha(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    from fedmixtures.estimators.selection import alpha_for

    with console().status("choosing alpha") as status:
        found = alpha_for(
            task.problem,
            n_rounds=settings.rounds,
            random_state=settings.seed,
            on_fit=lambda alpha, fold: status.update(
                f"choosing alpha: {alpha:g}, fold {fold + 1} of 3"
            ),
        )
    scores = zip(found.alphas, found.scores, strict=True)
    tried = ", ".join(f"{alpha:g}: {score:.3f}" for alpha, score in scores)
    say(f"  alpha {found.alpha:g} chosen by held-out log-likelihood ({tried})")
    if found.at_edge:
        say("  (the largest alpha tried was the best: nodes may be alike enough to be pooled)")
    settings = dataclasses.replace(settings, alpha=str(found.alpha))
    return task.where(method=choose_method(settings)), settings


def print_summary(task: Task, settings: FitSettings, methods: str | None = None) -> None:
    """Say what was understood, before anything long begins."""
    table, problem, network = task.table, task.problem, task.problem.network
    counts, train = task.data.counts, problem.data.counts
    least = int(counts.argmin())
    rows, own, n_nodes = int(counts[least]), int(train[least]), len(counts)
    parts = [len(part) for part in network.components()]
    held = int(task.held_out.sum())
    learning = f", {own:,} of them to learn from" if held else ""
    k = problem.components
    if _is_open(settings):
        by_rows = problem.method.has_levels
        components = "chosen by held-out rows" if by_rows else "chosen per node by BIC"
    elif isinstance(k, dict):
        components = f"{min(k.values())} to {max(k.values())}, by node"
    else:
        components = str(k)
    coupling, alpha = "", getattr(problem.method, "alpha", None)
    if settings.alpha == "auto":
        coupling = ", alpha chosen on every node's own held-out rows"
    elif alpha is not None:
        coupling = f", alpha {alpha:g} (how much nodes listen; 0 is not at all)"
    connected = (
        "connected"
        if len(parts) == 1
        else f"{len(parts)} separate parts, the largest of {max(parts)}"
    )
    words = words_on_default_graph(network) if settings.graph is None else ""
    lines = {
        "rows": f"{table.n_rows:,} ({held:,} held out to judge by)"
        if held
        else f"{table.n_rows:,}",
        "nodes": f"{n_nodes:,}; the smallest is {task.labels[least]!r} with "
        f"{rows:,} row{'s' * (rows != 1)}" + learning,
        "features": _checks.listed(table.features, 6).replace("'", ""),
        **left_out_line(table),
        **missing_line(table),
        "edges": f"{network.n_edges:,}; {words or connected}",
        "components": components,
        "method": methods or settings.method + coupling,
    }
    if problem.scale is not None:
        lines["scale"] = (
            "each feature divided by its standard deviation over all nodes together, for the fit "
            "alone; between sites `shift` and `scale` of the job do this"
        )
    if table.categories is not None:
        kinds = zip(table.categories.positions, table.categories.levels, strict=True)
        named = (f"{table.features[i]} ({_checks.listed(levels, 4)})" for i, levels in kinds)
        lines["categories"] = _checks.listed(named, 8).replace("'", "").replace('"', "")
    for number, told in enumerate(task.transform.told(table.columns)):
        lines[("columns", "")[number]] = told
    for name, text in lines.items():
        console().print(f"  [dim]{name:<11}[/dim]", end="")
        console().print(text, soft_wrap=True, markup=False)


def left_out_line(table: Table) -> dict[str, str]:
    """Which columns are not fitted and why, and how to have them all the same."""
    if not table.left_out:
        return {}
    named = "; ".join(f"{name} ({why})" for name, why in table.left_out)
    found = any(why not in ("--drop", "--describe", "the label") for _, why in table.left_out)
    return {"left out": named + ". --features chooses others" * found}


def missing_line(table: Table) -> dict[str, str]:
    """How many cells are missing, and in which columns, where any is."""
    gone = np.isnan(table.rows).sum(0)
    if not gone.any():
        return {}
    most = sorted(zip(gone.tolist(), table.features, strict=True), key=lambda one: -one[0])
    named = _checks.listed((f"{name} ({n:,})" for n, name in most if n), 4).replace("'", "")
    share = gone.sum() / table.rows.size
    return {"missing": f"{gone.sum():,} cells ({share:.1%}), taken as missing at random: {named}"}
