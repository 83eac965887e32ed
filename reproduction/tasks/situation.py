"""One seed of a problem: rows, graph, start, components of every node, and who lies."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedmixtures import data as scenarios
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.scenarios import Scenario
from fedmixtures.graph import generate
from fedmixtures.graph.network import Network
from fedmixtures.init import KMeansStart
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks.union import Part

ROWS_STREAM, COMPONENTS_STREAM, GRAPH_STREAM, LIARS_STREAM = 5, 6, 7, 9
"""Keep these draws apart from those of rows."""
LIAR_ROWS = 51
"""Nodes have 50 rows where some lie: a liar is known, to the experiment alone, by one row more."""


@dataclass(frozen=True, eq=False)
class Situation:
    """What all methods are given of one seed."""

    name: str
    """Made from the settings and the seed alone."""
    seed: int
    scenario: Scenario
    network: Network
    n_components: tuple[int, ...]
    honest: np.ndarray
    """(nodes,) whether a node's result counts: liars' do not."""

    @property
    def blocks(self) -> np.ndarray:
        """Nodes that draw from one truth; all of them where none is known."""
        known = self.scenario.blocks
        return np.zeros(self.scenario.n_nodes, int) if known is None else known

    def rows(self) -> NodeData:
        """Training rows by node."""
        return NodeData.from_rows(self.scenario.X, self.scenario.nodes)

    def part(self, start: dict[str, Any], width: int) -> Part:
        """What a solver needs, with k-means starts padded to `width` components."""
        rows = self.rows()
        theta = KMeansStart(**start).mixtures(rows, self.n_components, self.seed, 0.0)
        return Part(self.name, rows, self.network, theta.padded(width))

    def without_liars(self) -> Situation:
        """The same network if the liars had never joined."""
        kept = np.flatnonzero(self.honest)
        number = np.full(len(self.honest), -1)
        number[kept] = np.arange(len(kept))
        found = self.scenario
        train, held = np.isin(found.nodes, kept), np.isin(found.nodes_validation, kept)
        part = lambda values: None if values is None else values[kept]
        scenario = replace(
            found,
            X=found.X[train],
            nodes=number[found.nodes[train]],
            components=found.components[train],
            X_validation=found.X_validation[held],
            nodes_validation=number[found.nodes_validation[held]],
            components_validation=found.components_validation[held],
            labels=tuple(range(len(kept))),
            weights=part(found.weights),
            means=part(found.means),
            covariances=part(found.covariances),
            blocks=part(found.blocks),
        )
        inside = self.honest[self.network.source] & self.honest[self.network.target]
        source, target = (number[end[inside]] for end in (self.network.source, self.network.target))
        network = Network(tuple(range(len(kept))), source, target, self.network.weight[inside])
        components = tuple(self.n_components[i] for i in kept)
        name = f"{self.name}-honest"
        return Situation(name, self.seed, scenario, network, components, np.ones(len(kept), bool))


def situation(settings: dict[str, Any], seed: int) -> Situation:
    """Rows, graph and liars of one seed."""
    wanted = ("data", "graph", "n_components")
    return _situation(json.dumps({name: settings[name] for name in wanted}, sort_keys=True), seed)


@lru_cache(maxsize=512)
def _situation(text: str, seed: int) -> Situation:
    settings = json.loads(text)
    arguments, graph = settings["data"], settings["graph"]
    between, lies = arguments.pop("rows_between", None), arguments.pop("liars", None)
    components = arguments.pop("components_between", None)
    n = _n_nodes(arguments)
    honest = np.ones(n, bool)
    if between is not None:
        rng = np.random.default_rng([seed, ROWS_STREAM])
        low, high = np.log(between)
        arguments["rows_per_node"] = np.exp(rng.uniform(low, high, n)).astype(int).tolist()
    liars_rng = np.random.default_rng([seed, LIARS_STREAM])
    if lies is not None:
        honest[liars_rng.choice(n, lies["count"], replace=False)] = False
        arguments["rows_per_node"] = np.where(honest, LIAR_ROWS - 1, LIAR_ROWS).tolist()
    scenario = getattr(scenarios, arguments.pop("scenario"))(**arguments, seed=seed)
    if lies is not None and lies["kind"] == "shifted":
        for node in np.flatnonzero(~honest):
            shift = liars_rng.standard_normal(scenario.X.shape[1])
            scenario.X[scenario.nodes == node] += shift / np.linalg.norm(shift)
    counts = [settings["n_components"]] * n
    if components is not None:
        low, high = components
        rng = np.random.default_rng([seed, COMPONENTS_STREAM])
        counts = rng.integers(low, high + 1, n).tolist()
    name = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return Situation(
        f"{name}-{seed}", seed, scenario, network(graph, n, seed), tuple(counts), honest
    )


def _n_nodes(arguments: dict[str, Any]) -> int:
    if arguments["scenario"] == "shifted_blocks":
        return arguments["n_blocks"] * arguments["nodes_per_block"]
    return arguments["n_nodes"]


def scenario(settings: dict[str, Any], seed: int) -> Scenario:
    """The rows of one seed, where all nodes are alike and honest."""
    return _scenario(json.dumps(settings["data"], sort_keys=True), seed)


@lru_cache(maxsize=512)
def _scenario(text: str, seed: int) -> Scenario:
    arguments = json.loads(text)
    return getattr(scenarios, arguments.pop("scenario"))(**arguments, seed=seed)


def start(settings: dict[str, Any], seed: int) -> Mixture:
    """Local k-means of all nodes, stacked."""
    wanted = ("data", "start", "n_components")
    return _start(json.dumps({name: settings[name] for name in wanted}, sort_keys=True), seed)


@lru_cache(maxsize=512)
def _start(text: str, seed: int) -> Mixture:
    settings = json.loads(text)
    found = scenario(settings, seed)
    rows = NodeData.from_rows(found.X, found.nodes)
    components = [settings["n_components"]] * found.n_nodes
    return KMeansStart(**settings["start"]).mixtures(rows, components, seed, 0.0)


def network(graph: dict[str, Any], n: int, seed: int) -> Network:
    """The graph of one seed; a method that uses none gets none."""
    arguments = dict(graph)
    if not arguments:
        nobody = np.zeros(0, dtype=int)
        return Network(tuple(range(n)), nobody, nobody, np.zeros(0))
    kind = arguments.pop("kind")
    if kind in ("ring", "star"):
        return getattr(generate, kind)(n)
    if kind == "erdos_renyi_ring":
        arguments["n"] = n
    rng = np.random.default_rng([GRAPH_STREAM, seed])
    return getattr(generate, kind)(**arguments, seed=rng)
