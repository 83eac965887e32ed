r"""What a fitted network says about rows: densities and assignments.

A node has *clusters*, those of its mixture in `Solution.theta`, and a *density*. The density is
that of the same mixture, unless the method has found several levels (`Solution.levels`: own, group,
everyone, ...): then it is their weighted sum $p_i(x) = \sum_l w_{il} p_{il}(x)$. All that scores
asks `log_densities`, all that assigns asks `log_joints`. A method whose outcome has levels needs
nothing else: scoring, saving and loading, `node(label, level=...)` and export work from there.

Rows that are scored more than once are given as an `Evaluator`, which lays them out once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.transform import Transform
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.solution import Solution
from fedmixtures.estimators.solutions import by_cluster, newcomer_joints, unknown
from fedmixtures.mixture.mixture import Mixture

DENSITY = "density"  # the level that is all levels together, weighed


def log_joints(solution: Solution, data: NodeData | Evaluator) -> np.ndarray:
    """Log of weight times density of every cluster, (rows, k), in the order the rows came in.

    Of nodes that were not fitted, those of everyone.
    """
    return _of_all(solution, data, _node_joints, newcomer_joints)


def log_densities(solution: Solution, data: NodeData | Evaluator) -> np.ndarray:
    """Log-density of every row under its node's model, in the order the rows came in.

    Of nodes that were not fitted, under everyone's.
    """
    summed = lambda joints: lambda *of: np.logaddexp.reduce(joints(*of), axis=1)
    own = summed(_node_joints) if solution.levels is None else _weighed_densities
    return _of_all(solution, data, own, summed(newcomer_joints))


def user_densities(solution: Solution, transform: Transform, data: NodeData) -> np.ndarray:
    """`log_densities` of rows in the user's units, in these units."""
    inside = dataclasses.replace(data, rows=transform.apply(data.rows))
    slopes = np.empty(len(data.rows))
    slopes[data.source_index] = transform.log_slopes(data.rows)
    return log_densities(solution, inside) + slopes


def _of_all(
    solution: Solution, given: NodeData | Evaluator, own: Callable, newcomer: Callable
) -> np.ndarray:
    """By row, in the order they came in: `own` of fitted nodes' rows, `newcomer` of others'."""
    rows = given if isinstance(given, Evaluator) else Evaluator(given)
    data = rows.data
    new = set(unknown(solution, data.labels))
    if not new:
        return own(solution, rows)
    mask = np.empty(len(data.rows), dtype=bool)
    mask[data.source_index] = np.array([label in new for label in data.labels])[data.node_index]
    found = newcomer(solution, data.subset(mask))
    if mask.all():
        return found
    result = np.empty((len(mask), *found.shape[1:]))
    result[mask], result[~mask] = found, own(solution, Evaluator(data.subset(~mask)))
    return result


def _node_joints(solution: Solution, rows: Evaluator) -> np.ndarray:
    data, joined = rows.data, solution.joined
    places = node_places(solution, data)
    joint = rows.log_joint(solution.theta.at(places))
    if joined is None:
        return joint
    node = np.empty(len(data.rows), dtype=np.int64)
    node[data.source_index] = places[data.node_index]
    return by_cluster(joint, joined.cluster[node], solution.n_clusters)


def _weighed_densities(solution: Solution, rows: Evaluator) -> np.ndarray:
    """Of all levels together."""
    data, levels = rows.data, solution.levels
    assert levels is not None
    places = node_places(solution, data)
    with np.errstate(divide="ignore"):  # a level may have no weight at a node
        weight = np.log(levels.weights[places])
    total = np.full(len(data.rows), -np.inf)
    node = np.empty(len(data.rows), dtype=np.int64)
    node[data.source_index] = data.node_index
    for number in range(len(levels.names)):
        joint = rows.log_joint(levels.theta.at(number).at(places))
        total = np.logaddexp(total, np.logaddexp.reduce(joint, axis=1) + weight[node, number])
    return total


def mixture_at(solution: Solution, label: Label, level: str | None = None) -> Mixture:
    """A node's clusters, one of its levels, or all of them weighed, as one mixture."""
    label = _checks.plain(label)
    if label not in solution.labels:
        raise ValueError(
            f"there is no node {label!r}. Known nodes are {_checks.listed(solution.labels)}."
        )
    place, levels = solution.labels.index(label), solution.levels
    if level is not None:
        _checks.one_of("level", level, (*(levels.names if levels else ()), DENSITY))
    if levels is None or level is None:
        return solution.theta.at(place).trimmed()
    if level != DENSITY:
        return levels.theta.at(levels.names.index(level)).at(place).trimmed()
    return levels.theta.at(np.s_[:, place]).summed(levels.weights[place]).trimmed()


def node_places(solution: Solution, data: NodeData) -> np.ndarray:
    """Where the nodes of these rows stand among the fitted ones."""
    known = {label: i for i, label in enumerate(solution.labels)}
    if new := unknown(solution, data.labels):
        raise ValueError(
            f"`nodes` names {_checks.listed(new)}, which the model was not fitted on. "
            f"Known nodes are {_checks.listed(known)}."
        )
    return np.array([known[label] for label in data.labels])


def assigned(joint: np.ndarray) -> np.ndarray:
    """The most probable component of every row; of equals up to rounding the first."""
    return np.asarray(first_greatest(joint, scale=1.0))


def probabilities(joint: np.ndarray) -> np.ndarray:
    """Probability of every component given every row."""
    return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
