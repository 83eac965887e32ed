"""Methods on the situations of the trust experiments: all seeds of a method at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import Status
from fedmixtures.init import node_seed
from fedmixtures.methods.base import Levels, Method
from fedmixtures.methods.compared.baselines import WITH_PRIOR, Centralized, EMFits
from fedmixtures.methods.programs import NodeProgram
from fedmixtures.methods.trust_then_pool.program import TrustThenPool
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks import fit, measure
from reproduction.tasks.ablations import PARTS, without
from reproduction.tasks.lies import Lying
from reproduction.tasks.measure import centroid_error
from reproduction.tasks.situation import Situation, situation
from reproduction.tasks.union import Union

Numbers = dict[str, Any]
GROUPINGS = ("local", "block", "centralized")
"""Ordinary fits: of each node's rows, of each true block's (an oracle), of all rows together."""


class End(NamedTuple):
    """What a method ends with on one situation: mixtures of all nodes, stacked."""

    theta: Mixture
    """What clusters are read from."""
    density: Mixture
    """What new rows are scored with: the same, unless nodes weigh several densities."""
    levels: Levels | None = None


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[Numbers]:
    """The numbers of each run, in their order; all have the same method and options.

    Liars run a program of their own, so runs with other lies are solved apart.
    """
    places: dict[str, list[int]] = {}
    for place, (settings, _) in enumerate(runs):
        places.setdefault(_lie(settings), []).append(place)
    numbers: list[Numbers] = [{} for _ in runs]
    for own in places.values():
        for place, found in zip(own, _together([runs[i] for i in own]), strict=True):
            numbers[place] = found
    return iter(numbers)


def _lie(settings: dict[str, Any]) -> str:
    """How liars among the nodes lie; empty where there are none."""
    return "" if settings["without_liars"] else settings["data"].get("liars", {}).get("kind", "")


def _together(runs: Sequence[tuple[dict[str, Any], int]]) -> list[Numbers]:
    settings = runs[0][0]
    found = [situation(own, seed) for own, seed in runs]
    if settings["without_liars"]:
        found = [one.without_liars() for one in found]
    with without(settings["options"].get("without")):
        ends = _fitted(settings, [own for own, _ in runs], found)
    return _numbers(ends, found)


def _fitted(
    settings: dict[str, Any], all_settings: list[dict[str, Any]], found: list[Situation]
) -> list[End | None]:
    """What each situation ended with; None where the run diverged."""
    if settings["method"] in GROUPINGS:
        thetas = grouped_fits(settings["method"], settings["options"], found)
        return [End(theta, theta) for theta in thetas]
    method = build(settings)
    if isinstance(method.program(), NodeProgram):
        return union_fits(method, settings, found)
    return [_alone(method, own, one) for own, one in zip(all_settings, found, strict=True)]


def build(settings: dict[str, Any]) -> Method:
    """The method with its options: whole, with liars among its nodes, or with a part taken out."""
    if settings["method"] != "trust":
        return fit.build(settings)
    options = dict(settings["options"])
    part = options.pop("without", None)
    options |= PARTS.get(part, {})
    if lie := _lie(settings):
        return Lying(lie=lie, **options)
    return TrustThenPool(**options)


def grouped_fits(
    grouping: str, options: dict[str, Any], found: Sequence[Situation]
) -> list[Mixture]:
    """Ordinary fits of nodes, blocks or everything; liars' rows count for themselves alone."""
    options = dict(options)
    method: EMFits = Centralized(**(WITH_PRIOR if options.pop("prior", False) else {}), **options)
    parts, ks, seeds, owners = [], [], [], []
    for number, one in enumerate(found):
        rows, group = one.rows(), _groups(grouping, one)
        for own in np.unique(group):
            members = np.flatnonzero(group == own)
            honest = members[one.honest[members]]
            parts.append(rows.at(honest if len(honest) else members))
            seeds.append(node_seed(one.seed, int(own)) if grouping == "local" else one.seed)
            ks.append(one.n_components[members[0]] if grouping == "local" else _truth(one))
            owners.append((number, members))
    points, counts = (
        np.concatenate([getattr(p, a) for p in parts]) for a in ("rows", "row_weights")
    )
    fit_of_row = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    fits = method.fit_all(NodeData.from_rows(points, fit_of_row, counts), ks, seeds)
    mixtures: list[dict[int, Mixture]] = [{} for _ in found]
    for (number, members), mixture in zip(owners, fits.mixtures, strict=True):
        mixtures[number] |= dict.fromkeys(members.tolist(), mixture)
    return [Mixture.stack([own[i] for i in sorted(own)]) for own in mixtures]


def _groups(grouping: str, one: Situation) -> np.ndarray:
    n = one.scenario.n_nodes
    return {"local": np.arange(n), "block": one.blocks, "centralized": np.zeros(n, int)}[grouping]


def _truth(one: Situation) -> int:
    """The true number of components, which fits of pooled rows are given."""
    means = one.scenario.means
    return max(one.n_components) if means is None else means.shape[1]


def union_fits(
    method: Method, settings: dict[str, Any], found: Sequence[Situation]
) -> list[End | None]:
    """All situations in one solve; if one of them runs away, each on its own."""
    width = max(max(one.n_components) for one in found)
    union = Union.of([one.part(settings["start"], width) for one in found])
    how = {"n_rounds": settings["n_rounds"], "keep_nodes": True}
    solution = fit.quiet_solve(method, union.rows, union.network, union.theta, **how)
    program = method.program()
    away = [fit.ran_away(solution.history, program.pull_share, span) for span in union.spans]
    if program.descends and (solution.status is not Status.COMPLETED or any(away)):
        if len(found) == 1:
            return [None]
        return [end for one in found for end in union_fits(method, settings, [one])]
    parts = [Mixture(*(part[span] for part in solution.theta.parts)) for span in union.spans]
    return [End(theta, theta) for theta in parts]


def _alone(method: Method, settings: dict[str, Any], one: Situation) -> End | None:
    """A method that is no node program, on one situation."""
    part = one.part(settings["start"], max(one.n_components))
    theta = part.theta if method.needs_start else None
    how = {"n_components": one.n_components, "n_rounds": settings["n_rounds"], "seed": one.seed}
    solution = fit.quiet_solve(method, part.rows, part.network, theta, **how)
    if solution.status is not Status.COMPLETED:
        return None
    levels = solution.levels
    return End(solution.theta, levels.density if levels else solution.theta, levels)


def _numbers(ends: Sequence[End | None], found: Sequence[Situation]) -> list[Numbers]:
    """Means over honest nodes, and the likelihood of each of them."""
    whole = [(end, one) for end, one in zip(ends, found, strict=True) if end is not None]
    measured = iter(_measured(whole) if whole else [])
    names = ("ll", "err", "nmi", "nodes")
    lost = {**dict.fromkeys(names), "status": "diverged"}
    return [lost if end is None else next(measured) for end in ends]


def _measured(whole: Sequence[tuple[End, Situation]]) -> list[Numbers]:
    scenarios = [one.scenario for _, one in whole]
    rows = measure.Rows.of(scenarios, "_validation")
    ll = rows.log_likelihood(_together_of([end.density for end, _ in whole]))
    _, nmi = rows.per_node(_together_of([end.theta for end, _ in whole]))
    levels = [end.levels.theta for end, _ in whole if end.levels]
    by_level = [
        rows.log_likelihood(_together_of(own)) for own in zip(*map(_each, levels), strict=True)
    ]
    shortfall = np.max(by_level, axis=0) - ll if levels else np.zeros_like(ll)
    numbers = []
    for (end, one), span in zip(whole, measure.spans(scenarios), strict=True):
        own, honest = ll[span][one.honest], one.honest
        truth, err = one.scenario.means, None
        if truth is not None:
            errors = [
                centroid_error(end.theta.at(i).trimmed().means, truth[i])
                for i in np.flatnonzero(honest)
            ]
            err = float(np.mean(errors))
        numbers.append(
            {
                "ll": float(own.mean()),
                "err": err,
                "nmi": float(nmi[span][honest].mean()),
                "nodes": [round(float(value), 5) for value in own],
                "status": "completed",
                **(_bound(end.levels, honest, shortfall[span]) if end.levels else {}),
            }
        )
    return numbers


def _bound(levels: Levels, honest: np.ndarray, shortfall: np.ndarray) -> Numbers:
    """Mean weights, and two numbers of the worst node.

    ``slack`` is how far the prequential loss stays below its bound, ``shortfall`` by how much the
    best of the levels predicts test rows better than the weighted density does.
    """
    loss, each = levels.prequential[honest, 0], levels.prequential[honest, 1:]
    slack = each.min(1) + np.log(each.shape[1]) - loss
    weights = levels.weights[honest].mean(0)
    return {
        "slack": float(slack.min()),
        "shortfall": float(shortfall[honest].max()),
        "weights": {n: round(float(w), 4) for n, w in zip(levels.names, weights, strict=True)},
    }


def _each(stacked: Mixture) -> list[Mixture]:
    """The mixtures of all nodes, level by level."""
    return [Mixture(*parts) for parts in zip(*stacked.parts, strict=True)]


def _together_of(mixtures: Sequence[Mixture]) -> Mixture:
    """The nodes of all situations in one stack."""
    width = max(mixture.n_components for mixture in mixtures)
    padded = [mixture.padded(width).parts for mixture in mixtures]
    return Mixture(*map(np.concatenate, zip(*padded, strict=True)))
