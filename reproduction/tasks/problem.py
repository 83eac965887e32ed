"""Data, graph and start of one seed; made once and shared by all methods of a process."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np

from fedmixtures import data as scenarios
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.synthetic import Scenario
from fedmixtures.graph import generate
from fedmixtures.graph.network import Network
from fedmixtures.init.kmeans import KMeansStart
from fedmixtures.mixture.mixture import Mixture

GRAPH_STREAM = 7
"""Keeps the draws of the graph apart from those of the data."""


def scenario(settings: dict[str, Any], seed: int) -> Scenario:
    """The rows of one seed."""
    return _scenario(json.dumps(settings["data"], sort_keys=True), seed)


@lru_cache(maxsize=512)
def _scenario(text: str, seed: int) -> Scenario:
    arguments = json.loads(text)
    return getattr(scenarios, arguments.pop("scenario"))(**arguments, seed=seed)


def network(settings: dict[str, Any], n_nodes: int, seed: int) -> Network:
    """The graph of one seed; a method that uses none gets none."""
    arguments = dict(settings["graph"])
    if not arguments:
        nobody = np.zeros(0, dtype=int)
        return Network(tuple(range(n_nodes)), nobody, nobody, np.zeros(0))
    rng = np.random.default_rng([GRAPH_STREAM, seed])
    kind = arguments.pop("kind")
    if kind == "erdos_renyi_ring":
        arguments["n"] = n_nodes
    return getattr(generate, kind)(**arguments, seed=rng)


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
