"""A fitted model for people to read: the page, a picture for notebooks, a node in words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.options import ROUNDS, used
from fedmixtures.engine.solution import ELSEWHERE, FitWarning, Solution
from fedmixtures.estimators import resolve
from fedmixtures.estimators.atlas import Atlas
from fedmixtures.estimators.baselines import baselines
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.scoring import mixture_at
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Method, Trust
from fedmixtures.metrics import Scores
from fedmixtures.report.content import Findings, build_content
from fedmixtures.report.geometry import positions
from fedmixtures.report.page import render, size
from fedmixtures.report.sentences import heaviest
from fedmixtures.report.svg import figure, label, line, number, shortened

if TYPE_CHECKING:
    from fedmixtures.estimators.fitted import FittedNetwork

COLOURS = ("#3b6fb6", "#c8553d", "#4f9d69", "#8a62a8", "#c79a2e", "#4aa3b5", "#b05a86", "#7a7a7a")
HOLD_OUT = "Give `held_out=(X_test, nodes_test)`, rows that were not fitted, to find out."
MOST_TOLD = 25  # neighbours of which it is told what a node would gain
NAMED = 25  # up to so many nodes have their names in the picture


def findings_of(
    solution: Solution,
    network: Network,
    method: Method,
    data: NodeData,
    scores: Scores,
    features: Sequence[str] | None,
    **more: Any,
) -> Findings:
    """What there is to report of a run; `more` replaces or adds fields of `Findings`."""
    import fedmixtures

    names = [f"x{i}" for i in range(data.n_features)] if features is None else features
    if data.categories:  # pictures are of the continuous columns
        g = data.n_continuous
        solution = solution.changed(lambda theta: theta.continuous)
        if "theta_scaled" in more:
            more["theta_scaled"] = more["theta_scaled"].continuous
        data = data.continuous
        names = names[:g]
    theta, described = more.pop("theta", solution.clusters), more.pop("described", None)
    if "theta_scaled" in more:
        more["theta_scaled"] = solution.merged(more["theta_scaled"])
    found: dict[str, Any] = {
        "atlas": Atlas.of(solution, tuple(map(str, names)), described=described),
        "theta": theta,
        "theta_scaled": theta,
        "network": network,
        "data": data,
        "features": tuple(str(name) for name in names),
        "history": solution.history,
        "method": method,
        "scores": scores,
        "certificate": solution.certificate,
        "converged": solution.converged,
        "traffic": solution.traffic,
        "levels": solution.levels,
        "trust": Trust.of(solution.diagnostics, network),
        "version": fedmixtures.__version__,
    }
    return Findings(**(found | more))


def write_report(
    model: FittedNetwork,
    problem: Problem,
    path: str | Path,
    held: NodeData | None,
    *,
    static: bool = False,
    include_rows: bool = False,
) -> Path:
    """The page of a model that solves this problem; `held` are further rows to judge by.

    Both in units of the fit.
    """
    solution, method = model.solution_, problem.method
    rounds = used(method, n_rounds=ROUNDS if model.n_rounds is None else model.n_rounds)
    rows = None if held is None else Evaluator(held)
    seed = resolve.resolve_seed(model.random_state)
    beside = baselines(problem, solution, rows, pooled=True, seed=seed, **rounds)
    for note in beside.notes:
        warnings.warn(note, FitWarning, stacklevel=3)
    taken, names = model.transform_, model._features()
    slopes = np.zeros(0 if held is None else len(held.rows))
    if held is not None:
        slopes[held.source_index] = taken.log_slopes(taken.invert(held.rows))
    scores = beside.scores(problem, solution, rows, slopes)
    settings = {
        "method": model.method if isinstance(model.method, str) else type(model.method).__name__,
        "n_components": model.n_components_,
        "n_clusters": model.n_clusters_,
        "covariance_type": method.covariance_type,
        **rounds,
        "random_state": model.random_state,
        "status": model.status_,
    }
    known = solution, problem.network, method, problem.data, scores
    more = {"theta_scaled": problem.scaled(solution.theta), "how_to_hold_out": HOLD_OUT}
    more |= {"atlas": model.atlas_}
    notes = tuple(taken.told(names))
    if problem.data.categories:
        notes = (*notes, categories_note(model))
    found = findings_of(*known, taken.names(names), settings=settings, notes=notes, **more)
    path = Path(path)
    path.write_text(render(build_content(found, include_rows), static), encoding="utf-8")
    return path


def categories_note(model: FittedNetwork) -> str:
    """What clusters say of categories, for a page that draws continuous columns."""
    kinds = model.categories_
    assert kinds is not None
    features = model._given_features()
    named = _checks.listed([features[i] for i in kinds.positions], 12)
    lines = [f"{name}: {model.atlas_.words(c)}" for c, name in enumerate(model.atlas_.names)]
    said = "are in the clusters, pictures show the others"
    return f"categories ({named}) {said}. {'; '.join(lines)}."


def picture(model: FittedNetwork, width: float = 420.0, height: float = 260.0) -> str:
    """The network as an SVG, coloured by group where the method found groups."""
    network, trust = model.network_, model.trust_
    close = np.ones(network.n_edges) if trust is None else np.where(trust.trusted, 1.0, 0.05)
    group = np.zeros(network.n_nodes, int) if trust is None else trust.group
    place = positions(network, np.sqrt(close)) * [width - 60, height - 50] + [30, 20]
    body = [
        f'<path d="{line([tuple(place[a]), tuple(place[b])])}" stroke="#888" fill="none" '
        f'stroke-width="{1.6 if c > 0.5 else 0.4}"/>'
        for a, b, c in zip(network.source, network.target, close, strict=True)
    ]
    radius = float(np.clip(60 / np.sqrt(network.n_nodes), 2, 8))
    for i, (x, y) in enumerate(place):
        name = str(network.labels[i])
        body.append(
            f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" '
            f'fill="{COLOURS[group[i] % len(COLOURS)]}"><title>{escape(name)}</title></circle>'
        )
        if network.n_nodes <= NAMED:
            body.append(label(x, y + radius + 11, shortened(name, 12), "", "middle"))
    style = "<style>text{font:10px sans-serif;fill:currentColor}</style>"
    return figure(width, height, f"Network of {network.n_nodes} nodes", style + "".join(body))


def in_short(model: FittedNetwork) -> str:
    """A fitted model in a line or two."""
    network, trust = model.network_, model.trust_
    parts = [f"{network.n_nodes:,} nodes", f"{network.n_edges:,} edges"]
    if trust is not None:
        count = len(trust.groups)
        parts.append(f"{count:,} group{'s' * (count != 1)}")
        parts.append(f"{int(trust.trusted.sum()):,} edges trusted")
    ended = "converged" if model.converged_ else model.status_
    parts.append(f"{ended} after {model.n_iter_} rounds")
    parts.append(f"{size(model.traffic_.total / network.n_nodes)} sent per node")
    if model.levels_ is not None:
        mean = zip(model.levels_.names, model.levels_.weights.mean(0), strict=True)
        parts.append("density " + ", ".join(f"{name} {w:.0%}" for name, w in mean))
    return " · ".join(parts)


def explained(model: FittedNetwork, node: Label) -> str:
    """One node in words: whom it listens to, why, and how much each level counts."""
    own = mixture_at(model.solution_, node)
    place, network = model.solution_.labels.index(_checks.plain(node)), model.network_
    lines = [f"Node {_checks.plain(node)!r} has {own.n_components} components."]
    at = np.flatnonzero((network.source == place) | (network.target == place))
    other = np.where(network.source[at] == place, network.target[at], network.source[at])
    names = [network.labels[i] for i in other]
    trust = model.trust_
    if model.traffic_.recipients == "hub":
        lines.append("It hears from all other nodes, through a hub.")
    elif model.traffic_.recipients == ELSEWHERE:
        lines.append("It was fitted with other sites, whose models are not in here.")
    elif not len(at):
        lines.append("It has no neighbours and learned from its own rows alone.")
    elif trust is None:
        lines.append(f"It listens to {_checks.listed(names, 12)}.")
    else:
        trusted = [name for name, e in zip(names, at, strict=True) if trust.trusted[e]]
        refused = [name for name, e in zip(names, at, strict=True) if not trust.trusted[e]]
        lines.append(f"It trusts {_checks.listed(trusted, 12) or 'no neighbour'}.")
        if refused:
            lines.append(f"It does not trust {_checks.listed(refused, 12)}.")
        told = [_evidence(trust, int(e), place, name) for name, e in zip(names, at, strict=True)]
        lines += [
            *told[:MOST_TOLD],
            *([f"  ... and {len(told) - MOST_TOLD} more"] * (len(told) > MOST_TOLD)),
        ]
        group = [name for name in trust.groups[trust.group[place]] if name != _checks.plain(node)]
        lines.append(f"Its group: {_checks.listed(group, 12) or 'itself alone'}.")
    if model.levels_ is not None:
        weights = zip(model.levels_.names, model.levels_.weights[place], strict=True)
        lines.append("Its density: " + ", ".join(f"{w:.0%} {name}" for name, w in weights) + ".")
        lines.append(_learned(model.levels_.names, model.levels_.weights[place]))
    return "\n".join(line for line in lines if line)


def _learned(names: Sequence[str], weights: np.ndarray) -> str:
    """Whom a node learned most from, by the weights of its levels."""
    own = float(weights[list(names).index("own")]) if "own" in names else 0.0
    if own >= 0.5:
        return "It learned most from its own rows."
    return f"It learned most from {heaviest(names, weights)}."


def _evidence(trust: Any, edge: int, place: int, name: Label) -> str:
    """What the diagnostics tell of an edge, as this end sees it."""
    end = 0 if trust.source[edge] == place else 1
    arrays = {
        n: v for n, v in trust.diagnostics.edges.items() if v.ndim == 2 and v.dtype.kind == "f"
    }
    told = ", ".join(f"{n} {values[edge, end]:.3g}" for n, values in arrays.items())
    return f"  {name!r}: {told}" if told else ""
