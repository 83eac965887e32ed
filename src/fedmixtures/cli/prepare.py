"""From settings to what runs: rows split and scaled, method, components, `auto`; told in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.cli.fit import FitSettings
from fedmixtures.cli.main import console, say
from fedmixtures.data.node_data import NodeData, rows_by_node
from fedmixtures.data.scenarios import holdout
from fedmixtures.estimators import resolve
from fedmixtures.estimators.resolve import Problem
from fedmixtures.estimators.scale import Scale
from fedmixtures.graph.network import Network
from fedmixtures.io.graph_files import read_counts, read_graph
from fedmixtures.io.tables import Table
from fedmixtures.mixture.covariance_types import check_type
from fedmixtures.mixture.moments import column_moments

SPREADS = 0.5, 10.0
"""Standard deviations of nodes' own rows with which step and bandwidths of the couplings work as
they are. (In the paper's data they are 1.5 to 6.)"""


@dataclass(frozen=True)
class Task:
    """Everything a fit needs; rows are grouped by node once."""

    table: Table
    data: NodeData  # all rows by node, in the units of the table
    held_out: np.ndarray  # which rows are held out
    scale: Scale
    problem: Problem
    """What is solved: the other rows, as the fit sees them, with network, method, components."""

    @property
    def labels(self) -> tuple:
        """The nodes, in the order of all stacked arrays."""
        return self.problem.network.labels

    @property
    def network(self) -> Network:
        """Who listens to whom."""
        return self.problem.network

    @property
    def method(self) -> Any:
        """How nodes listen."""
        return self.problem.method

    @property
    def components(self) -> Any:
        """A number for all nodes, or one for each."""
        numbers = self.problem.n_components
        return (
            numbers[0] if len(set(numbers)) == 1 else dict(zip(self.labels, numbers, strict=True))
        )

    @cached_property
    def test(self) -> NodeData | None:
        """Held-out rows in the units of the table, if there are any."""
        return self.data.subset(self.held_out) if self.held_out.any() else None

    @cached_property
    def log_volume(self) -> np.ndarray:
        """(nodes,) what mean log-densities of own rows lose in the units of the table."""
        return self.scale.log_volume(self.problem.data)

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows to fit, as the fit sees them, and the label of each."""
        data = self.problem.data
        labels = np.empty(data.n_nodes, dtype=object)
        labels[:] = data.labels
        return data.rows, labels[data.node_index]

    def fitted_by(self, method: Any, standardize: bool | None = None) -> Task:
        """The same rows for another method; refused if it cannot take them.

        In the same units, unless `standardize` says whether features are to be standardised.
        """
        if standardize is None:
            return dataclasses.replace(self, problem=self.problem.by(method))
        train, scale = scaled_rows(self.data, self.held_out, standardize, method)
        problem = dataclasses.replace(self.problem, data=train).by(method)
        return dataclasses.replace(self, problem=problem, scale=scale)

    def with_components(self, n_components: Any) -> Task:
        """The same with other numbers of components."""
        numbers = resolve.resolve_components(n_components, self.labels)
        return dataclasses.replace(self, problem=self._changed(n_components=numbers))

    def _changed(self, **what: Any) -> Problem:
        return dataclasses.replace(self.problem, **what).checked()


def prepare(settings: FitSettings, table: Table) -> Task:
    """Check everything that can be checked before the long work."""
    data = NodeData.from_rows(table.rows, table.nodes)
    method = choose_method(settings)
    components = choose_components(settings, data.labels)
    fewest = (
        components if isinstance(components, Mapping) else dict.fromkeys(data.labels, components)
    )
    held = hold_out(table.nodes, settings, fewest)
    graph = read_graph(settings.graph, data.labels, settings.allow_isolated)
    standardize = standardizes(settings, method, data)
    return make_task(table, data, held, standardize, graph, method, components or 1)


def make_task(
    table: Table,
    data: NodeData,
    held: np.ndarray,
    standardize: bool,
    graph: Any,
    method: Any,
    k: Any,
) -> Task:
    """The task of fitting all rows that are not held out."""
    method = resolve.resolve_method(method)
    train, scale = scaled_rows(data, held, standardize, method)
    return Task(table, data, held, scale, resolve.Problem.of(train, graph, method, k))


def standardizes(settings: FitSettings, method: Any, data: NodeData) -> bool:
    """Whether the fit sees standardised features: as asked, else where its steps need it."""
    if settings.standardize is not None:
        return settings.standardize
    return hasattr(method, "learning_rate") and not as_they_are(data).all()


def as_they_are(data: NodeData) -> np.ndarray:
    """(features,) whether nodes' rows have a spread that the couplings are made for."""
    _, variance = column_moments(data.rows - data.means()[data.node_index])
    spread = np.sqrt(variance)
    return (spread >= SPREADS[0]) & (spread <= SPREADS[1])


def hint_scale(task: Any, settings: Any) -> None:
    """Say so where features are far from the order of one that step sizes are made for."""
    good = as_they_are(task.data)
    far = [f for f, fine in zip(task.table.features, good, strict=True) if not fine]
    if far and hasattr(task.method, "learning_rate") and not settings.standardize:
        say(
            f"Note: the spread of {_checks.listed(far)} is far from 1, where step sizes and "
            "bandwidths are made for. Leave --no-standardize out.",
            "yellow",
        )


def scaled_rows(
    data: NodeData, held: np.ndarray, standardize: bool, method: Any
) -> tuple[NodeData, Scale]:
    """Rows that are not held out as the fit sees them."""
    train = data.subset(~held)
    scale = Scale.of(train.rows, standardize, method.covariance_type)
    return dataclasses.replace(train, rows=scale.scaled(train.rows)), scale


def choose_method(settings: FitSettings) -> Any:
    """The method by name, with the settings that were given."""
    check_type("--covariance", settings.covariance)
    method = resolve.resolve_method(settings.method, settings.covariance)
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
    if settings.k == "auto":
        return None
    if Path(settings.k).is_file():
        return read_counts(Path(settings.k), labels)
    try:
        k = int(settings.k)
    except ValueError:
        raise ValueError(
            f"--k is {settings.k!r}, neither a number nor a file. Give a whole number, a CSV with "
            "the columns node,k, or auto."
        ) from None
    _checks.whole("--k", k)
    return k


def hold_out(nodes: np.ndarray, settings: FitSettings, fewest: Mapping) -> np.ndarray:
    """A share of every node's rows; a node keeps at least as many rows as components."""
    held = holdout(nodes, settings.holdout, settings.seed)
    for label, rows in rows_by_node(nodes).items():
        own = rows[held[rows]]
        spare = max(0, len(rows) - (fewest[_checks.plain(label)] or 1))
        held[own[spare:]] = False
    return held


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}. Give a number, or auto.") from None


def choose_automatic(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    """The task and settings with numbers where there was `auto`, chosen on training rows alone."""
    if settings.k == "auto":
        task, settings = _components(task, settings)
    if settings.alpha == "auto":
        task, settings = _alpha(task, settings)
    return task, settings


def _components(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    from fedmixtures.estimators.selection import select_components

    rows, nodes = task.train
    with console().status("choosing k") as status:
        found = select_components(
            rows,
            nodes,
            method=task.method,
            network=task.network,
            random_state=settings.seed,
            on_fit=lambda k: status.update(f"choosing k: {k}"),
        )
    numbers = found.n_components
    distinct = sorted(set(numbers.values()))
    k: Any = distinct[0] if len(distinct) == 1 else numbers
    words = distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}, by node"
    how = "held-out log-likelihood" if found.bic is None else "BIC"
    say(f"  k chosen by {how} on training rows: {words}")
    if max(distinct) == max(found.candidates):
        say(f"  (some nodes took the largest k tried, {max(found.candidates)})")
    by_node = {} if len(distinct) == 1 else {str(label): n for label, n in numbers.items()}
    text = str(k) if len(distinct) == 1 else "auto"
    volume = task.log_volume.mean() if found.bic is None else 0.0
    curve = {str(k): worth - volume for k, worth in found.curve.items()}
    chosen = {"k": text, "components": by_node, "curve": curve}
    return task.with_components(k), dataclasses.replace(settings, **chosen)


def _alpha(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    from fedmixtures.estimators.selection import select_alpha

    rows, nodes = task.train
    with console().status("choosing alpha") as status:
        found = select_alpha(
            rows,
            nodes,
            graph=task.network,
            n_components=task.components,
            method=task.method,
            n_rounds=settings.rounds,
            random_state=settings.seed,
            on_fit=lambda alpha, fold: status.update(
                f"choosing alpha: {alpha:g}, fold {fold + 1} of 3"
            ),
        )
    volume = task.log_volume.mean()
    tried = ", ".join(
        f"{alpha:g}: {score - volume:.3f}"
        for alpha, score in zip(found.alphas, found.scores, strict=True)
    )
    say(f"  alpha {found.alpha:g} chosen by held-out log-likelihood ({tried})")
    if found.at_edge:
        say("  (the largest alpha tried was the best: nodes may be alike enough to be pooled)")
    settings = dataclasses.replace(settings, alpha=str(found.alpha))
    return task.fitted_by(choose_method(settings)), settings


def print_summary(task: Task, settings: FitSettings, methods: str | None = None) -> None:
    """Say what was print_summary, before anything long begins."""
    table, network = task.table, task.network
    labels, counts = np.unique(table.nodes, return_counts=True)
    counts = counts.tolist()
    least = counts.index(min(counts))
    parts = [len(part) for part in network.components()]
    held = int(task.held_out.sum())
    own = int((~task.held_out[table.nodes == labels[least]]).sum())
    learning = f", {own:,} of them to learn from" if held else ""
    k = task.components
    if settings.k == "auto" and not settings.components:
        by_rows = task.method.has_levels
        components = "chosen by held-out rows" if by_rows else "chosen per node by BIC"
    elif isinstance(k, dict):
        components = f"{min(k.values())} to {max(k.values())}, by node"
    else:
        components = str(k)
    coupling, alpha = "", getattr(task.method, "alpha", None)
    if settings.alpha == "auto":
        coupling = ", alpha chosen on every node's own held-out rows"
    elif alpha is not None:
        coupling = f", alpha {alpha:g} (how much nodes listen; 0 is not at all)"
    connected = (
        "connected"
        if len(parts) == 1
        else f"{len(parts)} separate parts, the largest of {max(parts)}"
    )
    words = resolve.words_on_default_graph(network) if settings.graph is None else connected
    lines = {
        "rows": f"{table.n_rows:,} ({held:,} held out to judge by)"
        if held
        else f"{table.n_rows:,}",
        "nodes": f"{len(labels):,}; the smallest is {_checks.plain(labels[least])!r} with "
        f"{counts[least]:,} row{'s' * (counts[least] != 1)}" + learning,
        "features": _checks.listed(table.features, 6).replace("'", ""),
        **left_out_line(table),
        **missing_line(table),
        "edges": f"{network.n_edges:,}; {words or connected}",
        "components": components,
        "method": methods or settings.method + coupling,
    }
    if settings.standardize:
        lines["scale"] = (
            "each feature divided by its standard deviation over all nodes together, for the fit "
            "alone; between sites `shift` and `scale` of the job do this"
        )
    for name, text in lines.items():
        console().print(f"  [dim]{name:<11}[/dim]", end="")
        console().print(text, soft_wrap=True, markup=False)


def left_out_line(table: Table) -> dict[str, str]:
    """Which columns are not fitted and why, and how to have them all the same."""
    if not table.left_out:
        return {}
    named = "; ".join(f"{name} ({why})" for name, why in table.left_out)
    found = any(why not in ("--drop", "the label") for _, why in table.left_out)
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
