r"""What is made of a solution: one numbering of components, densities of newcomers, one node more.

A newcomer, a node that the network was not fitted on, has the density of the level "everyone" where
there is one; else the sum of all nodes' mixtures, each by its share of the rows:
$p(x) = \sum_i s_i p_i(x)$, whose component c is that of all nodes together (alike ones, once
`align_components` has numbered them).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_matching, in_order
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.layout.blocks import conversation_block, without_edges
from fedmixtures.engine.options import used
from fedmixtures.engine.solution import FitWarning, Solution
from fedmixtures.engine.solve import solve
from fedmixtures.estimators.resolve import own_data_only
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import compilation_cache
from fedmixtures.methods.base import Account, Levels, Method, Outcome
from fedmixtures.methods.conversation import Conversation
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.mixture import Mixture, distinct, matching_costs

OWN, EVERYONE = "own", "everyone"
"""Names of the levels that a node learns from its own rows alone, and that all have in common."""


def aligned(theta: Mixture, network: Network) -> Mixture:
    """The same mixtures, alike components under the same number at all nodes."""
    return theta.relabel(aligned_orders(theta, network))


def aligned_orders(theta: Mixture, network: Network) -> np.ndarray:
    """For every node, the order of its components that matches its neighbours'.

    Nodes are matched along a spanning tree of the most alike pairs, from a root in each connected
    part; the roots are matched to the first root. No unit of a feature matters.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    theta = _in_common_units(theta)

    def matching(i: int, j: int) -> tuple[np.ndarray, float]:
        cost = matching_costs(theta.at(i), theta.at(j))
        partner = first_matching(cost)
        return partner, float(cost[np.arange(len(cost)), partner].sum())

    n = network.n_nodes
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    costs = np.array([matching(i, j)[1] for i, j in ends])
    # The tree depends on the order of costs alone: by rank, from 1, no two edges cost the same.
    rank = np.argsort(in_order(costs)) + 1.0
    tree = minimum_spanning_tree(csr_array((rank, (network.source, network.target)), (n, n)))
    orders = np.full((n, theta.n_components), -1)
    first = None
    for root in range(n):
        if orders[root, 0] >= 0:
            continue
        if first is None:
            orders[root] = np.arange(theta.n_components)
        else:
            orders[root] = matching(first, root)[0][orders[first]]
        first = root if first is None else first
        visited, parents = breadth_first_order(tree, root, directed=False)
        for node in visited[1:].tolist():
            parent = int(parents[node])
            orders[node] = matching(parent, node)[0][orders[parent]]
    return orders


def _in_common_units(theta: Mixture) -> Mixture:
    """Features divided by their standard deviation over all nodes' mixtures together."""
    share = (theta.weights / len(theta.weights))[..., None]
    centre = (share * theta.means).sum((0, 1))
    within = np.diagonal(theta.covariances, axis1=-2, axis2=-1)
    scale = np.sqrt((share * (within + (theta.means - centre) ** 2)).sum((0, 1)))
    spread = scale[:, None] * scale
    return Mixture(theta.weights, (theta.means - centre) / scale, theta.covariances / spread)


def listens(solution: Solution, network: Network) -> bool:
    """Whether any node could hear another: without a graph only a hub makes that possible."""
    traffic = solution.traffic
    return traffic.total > 0 and (network.n_edges > 0 or traffic.recipients == "hub")


def own_level(solution: Solution) -> Solution | None:
    """The same run with what every node learned from its own rows, where that is one of its levels.

    Nothing could be a fairer comparison: it is the method's own first step.
    """
    theta = _level(solution, OWN)
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


def newcomer_density(solution: Solution) -> Mixture:
    """The density of a newcomer as one mixture."""
    theta, share = _mixtures(solution)
    return theta.summed(share).trimmed()


def newcomer_joints(solution: Solution, data: NodeData) -> np.ndarray:
    """Log of weight times density of every component, (rows, k), in the order rows came in."""
    theta, share = _mixtures(solution)
    offsets = np.array([0, len(data.rows)])
    rows = Evaluator(dataclasses.replace(data, labels=(EVERYONE,), offsets=offsets))
    total = np.full((len(data.rows), theta.n_components), -np.inf)
    for i, part in enumerate(share):
        total = np.logaddexp(total, np.log(part) + rows.log_joint(theta.at([i])))
    return total


def joined(
    solution: Solution, network: Network, method: Method, data: NodeData, seed: int, dtype: str
) -> tuple[Solution, Network]:
    """The solution and network with the one node of `data`; the others stay as they are."""
    (label,) = data.labels
    outcome = _outcome(solution, method, data, seed, dtype)
    if outcome.message:
        warnings.warn(outcome.message, FitWarning, stacklevel=4)
    k = max(solution.theta.n_components, outcome.theta.n_components)
    stacked = lambda one, other: _joined(one.padded(k), other.to_numpy().padded(k), 0)
    levels, account, history = solution.levels, solution.account, solution.history
    if levels is not None and outcome.levels is not None:
        levels = _levels(levels, outcome.levels)
    if account is not None:
        told = {n: _added(values, outcome.nodes.get(n)) for n, values in account.nodes.items()}
        account = Account(told, account.edges)
    told = {name: getattr(history, name) for name in ("node_fit", "node_pull")}
    told = {name: of if of is None else _added(of.T, None).T for name, of in told.items()}
    rows = None if solution.rows is None else np.append(solution.rows, data.total_weights())
    traffic = dataclasses.replace(solution.traffic, sent={**solution.traffic.sent, label: 0})
    new = dataclasses.replace(
        solution,
        labels=(*solution.labels, label),
        theta=stacked(solution.theta, outcome.theta),
        levels=levels,
        account=account,
        history=dataclasses.replace(history, **told),
        traffic=traffic,
        rows=rows,
    )
    return new, Network(new.labels, network.source, network.target, network.weight)


def _outcome(solution: Solution, method: Method, data: NodeData, seed: int, dtype: str) -> Outcome:
    """The newcomer's mixture: as its method has it, or that of its own rows alone."""
    k, levels = solution.theta.n_components, solution.levels
    talks = isinstance(method, Conversation)
    if talks and levels is not None and EVERYONE in levels.names:
        rows = solution.share * (len(data.rows) if solution.rows is None else solution.rows.sum())
        account = solution.account or Account({})
        with precision(dtype), compilation_cache():
            block = conversation_block(data, without_edges(data.labels), [k], seed, dtype)
            found = method.join(block, levels, rows, account)
        if found is not None:
            return found
    alone = own_data_only(method, data.rows)
    own = solve(alone, data, n_components=k, seed=seed, **used(alone, dtype=dtype))
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
