"""The built-in data of the demo."""

from __future__ import annotations

import numpy as np

from fedmixtures.cli.prepare import Task, posed
from fedmixtures.cli.settings import FitSettings
from fedmixtures.data.digits import digits_scenario
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.synthetic import Scenario, shifted_blocks
from fedmixtures.estimators import resolve
from fedmixtures.graph.generate import erdos_renyi_ring, stochastic_blocks
from fedmixtures.io.tables import Table

METHODS = ("gtv-euclidean", "gtv-kl", "gtv-mmd", "trust")
"""What the demo fits, as far as there is such a method."""
SHOWN = ("trust", "gtv-mmd")
"""What its report is about: the first that is there."""


def present() -> list[str]:
    """Those of `METHODS` that this version has."""
    return [name for name in METHODS if name in resolve.METHODS]


def shown() -> str:
    """The method its report is about."""
    return next(name for name in SHOWN if name in resolve.METHODS)


def build(data: str, seed: int) -> tuple[Task, FitSettings]:
    """Rows, network and settings of a built-in data set."""
    if data == "digits":
        scenario, names = digits_scenario(seed=seed), [f"site{i}" for i in range(10)]
        network, k = erdos_renyi_ring(10, 0.5, seed=seed, labels=names), 10
    else:
        scenario = shifted_blocks(seed=seed)
        names = [f"{block}{i + 1}" for block in "abc" for i in range(5)]
        network, k = stochastic_blocks([5, 5, 5], 0.8, 0.2, seed=seed, labels=names), 5
    table, held = _table(scenario, names, data)
    settings = FitSettings(data=(f"built-in {data}",), k=str(k), seed=seed)
    rows = NodeData.from_rows(table.rows, table.nodes)
    return posed(table, rows, held, False, network, shown(), k), settings


def _table(scenario: Scenario, names: list[str], title: str) -> tuple[Table, np.ndarray]:
    rows = np.concatenate([scenario.X, scenario.X_validation])
    nodes = np.concatenate([scenario.nodes, scenario.nodes_validation])
    held = np.arange(len(rows)) >= len(scenario.X)
    axes = "xy" if rows.shape[1] == 2 else [f"PC{i + 1}" for i in range(rows.shape[1])]
    number = np.arange(len(rows))
    table = Table(
        rows, np.array(names)[nodes], tuple(axes), (title,), np.zeros(len(rows), int), number
    )
    return table, held
