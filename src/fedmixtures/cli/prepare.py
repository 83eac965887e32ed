"""From settings to what runs: rows split and scaled, the network, the method, the components."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.cli.settings import FitSettings
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.partition import holdout, rows_by_node
from fedmixtures.estimators import resolve
from fedmixtures.graph.network import Network
from fedmixtures.io.tables import Table
from fedmixtures.io.tables_edges import read_counts, read_graph
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Scale:
    """Shift and scale of every feature: what `--standardize` divides out."""

    shift: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, standardize: bool) -> Scale:
        """Mean and standard deviation of all nodes' rows together, or no change."""
        if not standardize:
            return cls(np.zeros(rows.shape[1]), np.ones(rows.shape[1]))
        deviation = rows.std(0)
        return cls(rows.mean(0), np.where(deviation > 0, deviation, 1.0))

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Rows as the fit sees them."""
        return (rows - self.shift) / self.factor

    def original(self, theta: Mixture) -> Mixture:
        """Mixtures in the units of the table."""
        return Mixture(
            theta.weights,
            theta.means * self.factor + self.shift,
            theta.covariances * np.outer(self.factor, self.factor),
        )

    @property
    def log_volume(self) -> float:
        """What to take off a log-density of scaled rows to get that of the table's own."""
        return float(np.log(self.factor).sum())


@dataclass(frozen=True)
class Task:
    """Everything a fit needs."""

    table: Table
    held: np.ndarray
    """Which rows are held out."""
    scale: Scale
    network: Network
    method: Any
    components: Any

    @property
    def labels(self) -> tuple:
        """The nodes, in the order of all stacked arrays."""
        return self.network.labels

    @cached_property
    def rows(self) -> np.ndarray:
        """All rows as the fit sees them."""
        return self.scale.scaled(self.table.rows)

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows to fit, and their nodes."""
        return self.rows[~self.held], self.table.nodes[~self.held]

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Held-out rows, and their nodes."""
        return self.rows[self.held], self.table.nodes[self.held]


def prepare(settings: FitSettings, table: Table) -> Task:
    """Check everything that can be checked before the long work."""
    labels = tuple(_checks.plain(label) for label in np.unique(table.nodes))
    method = choose_method(settings)
    components = choose_components(settings, labels)
    fewest = components if isinstance(components, Mapping) else dict.fromkeys(labels, components)
    held = hold_out(table.nodes, settings, fewest)
    scale = Scale.of(table.rows[~held], settings.standardize)
    graph = read_graph(settings.graph, labels, settings.allow_isolated)
    train = NodeData.from_rows(scale.scaled(table.rows[~held]), table.nodes[~held])
    network = resolve.resolve_graph(graph, train)
    method.check([fewest[label] or 1 for label in labels], network)
    return Task(table, held, scale, network, method, components)


def choose_method(settings: FitSettings) -> Any:
    """The method by name, with the settings that were given."""
    method = resolve.resolve_method(settings.method)
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
