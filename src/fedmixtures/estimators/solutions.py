r"""What is made of a solution: densities of newcomers, one node more.

A newcomer, a node that the network was not fitted on, has the density of the level "everyone" where
there is one; else the sum of all nodes' mixtures, each by its share of the rows:
$p(x) = \sum_i s_i p_i(x)$, whose component c is that of all nodes together: they have one numbering
(`estimators/names.py`).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.layout.blocks import protocol_block, without_edges
from fedmixtures.engine.options import used
from fedmixtures.engine.solution import FitWarning, Solution
from fedmixtures.estimators.names import nearest_clusters
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.resolve import own_data_only
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import compilation_cache
from fedmixtures.methods.base import Diagnostics, Joined, Levels, Method, Outcome
from fedmixtures.methods.protocol import Protocol
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.mixture import Mixture, distinct

OWN, EVERYONE = "own", "everyone"
"""Names of the levels that a node learns from its own rows alone, and that all have in common."""


def listens(solution: Solution, network: Network) -> bool:
    """Whether any node could hear another: without a graph only a hub makes that possible."""
    traffic = solution.traffic
    return traffic.total > 0 and (network.n_edges > 0 or traffic.is_far)


def own_level(solution: Solution) -> Solution | None:
    """Solution of the level that nodes learned from their own rows; None where there is none.

    Nothing could be a fairer comparison: it is the method's own first step.
    """
    return _of_level(solution, OWN)


def everyone_level(solution: Solution) -> Solution | None:
    """Solution of the level learned from all rows of the network; None where there is none."""
    return _of_level(solution, EVERYONE)


def _of_level(solution: Solution, name: str) -> Solution | None:
    theta = _level(solution, name)
    return None if theta is None else dataclasses.replace(solution, theta=theta, levels=None)


def _level(solution: Solution, name: str) -> Mixture | None:
    levels = solution.levels
    if levels is None or name not in levels.names:
        return None
    return levels.theta.at(levels.names.index(name))


def unknown(solution: Solution, labels: Sequence[Label]) -> list[Label]:
    """Which of the labels are no node of the network."""
    known = set(solution.labels)
    return [label for label in labels if label not in known]


def warn_of_newcomers(solution: Solution, labels: Sequence[Label]) -> None:
    """Name the labels that were never fitted: they may be typing errors."""
    new = unknown(solution, labels)
    if new:
        warnings.warn(
            f"`nodes` names {_checks.listed(new)}, which the model was not fitted on. Its rows are "
            "taken as everyone's. If it is no typing error, `adapt(X, node=...)` makes it a node. "
            f"Known nodes are {_checks.listed(solution.labels)}.",
            FitWarning,
            stacklevel=4,
        )


def _mixtures(solution: Solution) -> tuple[Mixture, np.ndarray]:
    """Different mixtures that a newcomer's density is made of, and the share of each."""
    theta = _level(solution, EVERYONE)
    return distinct(solution.theta if theta is None else theta, solution.share)


def by_cluster(joint: np.ndarray, cluster: np.ndarray, n_clusters: int) -> np.ndarray:
    """Logarithms of sums over the components of each cluster: (rows, clusters) from (rows, k).

    `cluster` (rows, k), or (k,) if that is the same for all rows, numbers the components.
    """
    own = lambda c: np.logaddexp.reduce(np.where(cluster == c, joint, -np.inf), axis=1)
    return np.stack([own(c) for c in range(n_clusters)], axis=1)


def newcomer_density(solution: Solution) -> Mixture:
    """The density of a newcomer as one mixture."""
    theta, share = _mixtures(solution)
    return theta.summed(share).trimmed()


def newcomer_joints(solution: Solution, data: NodeData) -> np.ndarray:
    """Log of weight times density of every component, (rows, k), in the order rows came in."""
    theta, share = _mixtures(solution)
    k, clusters = theta.n_components, None
    if solution.joined is not None:
        k = solution.n_clusters
        clusters = solution.joined.cluster[_places_of(solution, theta)]
    offsets = np.array([0, len(data.rows)])
    rows = Evaluator(dataclasses.replace(data, labels=(EVERYONE,), offsets=offsets))
    total = np.full((len(data.rows), k), -np.inf)
    for i, part in enumerate(share):
        joint = rows.log_joint(theta.at([i]))
        if clusters is not None:
            joint = by_cluster(joint, clusters[i], k)
        total = np.logaddexp(total, np.log(part) + joint)
    return total


def _places_of(solution: Solution, theta: Mixture) -> np.ndarray:
    """A node that each of the different mixtures of `_mixtures` belongs to."""
    everyone = _level(solution, EVERYONE)
    every = solution.theta if everyone is None else everyone
    near = lambda one: np.abs(every.means - one.means).sum((1, 2)).argmin()
    return np.array([near(theta.at(i)) for i in range(len(theta.weights))])


def joined(
    solution: Solution,
    network: Network,
    method: Method,
    data: NodeData,
    seed: int,
    dtype: str,
    standardize: bool | None = False,
) -> tuple[Solution, Network]:
    """The solution and network with the one node of `data`; the others stay as they are."""
    (label,) = data.labels
    outcome = _outcome(solution, method, data, seed, dtype, standardize)
    if outcome.message:
        warnings.warn(outcome.message, FitWarning, stacklevel=4)
    k = max(solution.theta.n_components, outcome.theta.n_components)
    stacked = lambda one, other: _joined(one.padded(k), other.to_numpy().padded(k), 0)
    levels, diagnostics, history = solution.levels, solution.diagnostics, solution.history
    if levels is not None and outcome.levels is not None:
        levels = _levels(levels, outcome.levels)
    if diagnostics is not None:
        told = {n: _added(values, outcome.nodes.get(n)) for n, values in diagnostics.nodes.items()}
        diagnostics = Diagnostics(told, diagnostics.edges)
    told = {name: getattr(history, name) for name in ("node_fit", "node_pull")}
    told = {name: of if of is None else _added(of.T, None).T for name, of in told.items()}
    joining = solution.joined
    if joining is not None:
        joining = _joining(solution, network, outcome)
    rows = None if solution.rows is None else np.append(solution.rows, data.total_weights())
    traffic = dataclasses.replace(solution.traffic, sent={**solution.traffic.sent, label: 0})
    new = dataclasses.replace(
        solution,
        labels=(*solution.labels, label),
        theta=stacked(solution.theta, outcome.theta),
        levels=levels,
        joined=joining,
        diagnostics=diagnostics,
        history=dataclasses.replace(history, **told),
        traffic=traffic,
        rows=rows,
    )
    return new, Network(new.labels, network.source, network.target, network.weight)


def _joining(solution: Solution, network: Network, outcome: Outcome) -> Joined:
    """Which components are one cluster, the newcomer last: its own are those of the network.

    A newcomer without levels has components of its own, each of the cluster that it is most like.
    """
    joined = solution.joined
    assert joined is not None
    part = network.parts()
    largest = int(first_greatest(np.bincount(part, solution.share)[part]))
    new = joined.cluster[[largest]]
    if outcome.levels is None:
        new = nearest_clusters(solution, outcome.theta.to_numpy().padded(new.shape[1]))
    unsure = solution.share @ joined.unsure
    return Joined(np.concatenate([joined.cluster, new]), np.vstack([joined.unsure, unsure]))


def _outcome(
    solution: Solution,
    method: Method,
    data: NodeData,
    seed: int,
    dtype: str,
    standardize: bool | None,
) -> Outcome:
    """The newcomer's mixture: as its method has it, or that of its own rows alone."""
    k, levels = solution.theta.n_components, solution.levels
    talks = isinstance(method, Protocol)
    if talks and levels is not None and EVERYONE in levels.names:
        rows = solution.share * (len(data.rows) if solution.rows is None else solution.rows.sum())
        diagnostics = solution.diagnostics or Diagnostics({})
        with precision(dtype), compilation_cache():
            block = protocol_block(data, without_edges(data.labels), [k], seed, dtype)
            found = method.join(block, levels, rows, diagnostics)
        if found is not None:
            return found
    problem = Problem.of(data, "none", method, k, standardize)
    alone = own_data_only(method, problem.fitted_data.rows)
    own = problem.where(method=alone).solve(seed=seed, **used(alone, dtype=dtype))
    return Outcome(own.theta, own.message)


def _levels(levels: Levels, new: Levels) -> Levels:
    """Levels of all nodes, the newcomer last."""
    arrays = ("weights", "evidence", "clusters", "prequential")
    added = {n: np.concatenate([getattr(levels, n), getattr(new, n)]) for n in arrays}
    return dataclasses.replace(levels, theta=_joined(levels.theta, new.theta, 1), **added)


def _joined(one: Mixture, other: Mixture, axis: int) -> Mixture:
    parts = zip(one.parts, other.parts, strict=True)
    return Mixture(*(np.concatenate([a, b], axis) for a, b in parts))


def _added(values: np.ndarray, new: Any) -> np.ndarray:
    """Arrays by node with one line more: as told, or what says that nothing is known."""
    if new is None:
        nothing = np.nan if values.dtype.kind == "f" else -1 if values.dtype.kind == "i" else 0
        new = np.full_like(values[:1], nothing)
    return np.concatenate([values, np.asarray(new, values.dtype)])
