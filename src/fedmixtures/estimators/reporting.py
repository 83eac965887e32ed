"""A fitted model for people to read: the page, a picture for notebooks, a node in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.options import ROUNDS, used
from fedmixtures.engine.solution import ELSEWHERE, Solution
from fedmixtures.estimators import resolve
from fedmixtures.estimators.scoring import log_densities, mixture_at
from fedmixtures.estimators.solutions import everyone_level, listens, own_level
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Method, Trust
from fedmixtures.metrics import Scores
from fedmixtures.report.content import Findings, build_content
from fedmixtures.report.geometry import positions
from fedmixtures.report.page import render, size
from fedmixtures.report.sentences import heaviest
from fedmixtures.report.svg import figure, label, line, number, shortened

if TYPE_CHECKING:
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

COLOURS = ("#3b6fb6", "#c8553d", "#4f9d69", "#8a62a8", "#c79a2e", "#4aa3b5", "#b05a86", "#7a7a7a")
HOLD_OUT = "Give `held_out=(X_test, nodes_test)`, rows that were not fitted, to find out."
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
    theta = more.pop("theta", solution.theta)
    found: dict[str, Any] = {
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
    model: NetworkGaussianMixture,
    path: str | Path,
    data: NodeData,
    held: NodeData | None,
    *,
    static: bool = False,
    include_rows: bool = False,
) -> Path:
    """The page of a model fitted on `data`; `held` are further rows of its nodes to judge by.

    Both in units of the fit.
    """
    scores = _scores(model, data, held)
    settings = {
        "method": model.method if isinstance(model.method, str) else type(model.method).__name__,
        "n_components": model.n_components,
        "covariance_type": model.resolved_method().covariance_type,
        **used(model.resolved_method(), n_rounds=_rounds(model)),
        "random_state": model.random_state,
        "status": model.status_,
    }
    known = model.solution_, model.network_, model.resolved_method(), data, scores
    taken, names = model.transform_, model._features()
    notes, names = tuple(taken.told(names)), taken.names(names)
    found = findings_of(*known, names, settings=settings, notes=notes, how_to_hold_out=HOLD_OUT)
    path = Path(path)
    path.write_text(render(build_content(found, include_rows), static), encoding="utf-8")
    return path


def _scores(model: NetworkGaussianMixture, data: NodeData, held: NodeData | None) -> Scores:
    """Held-out log-likelihood beside that of fits with own data only."""
    if held is None:
        return Scores.of(model.solution_.labels, None)

    def fitted(method: Method) -> np.ndarray:
        problem = resolve.Problem.of(data, model.network_, method, model.n_components)
        seed = resolve.resolve_seed(model.random_state)
        how = used(problem.method, n_rounds=_rounds(model))
        return log_densities(problem.solve(seed=seed, **how), held)

    known = model.solution_, model.network_, model.resolved_method(), data.rows, held
    may_pool = not isinstance(model.n_components, Mapping)
    own, pooled = (
        own_densities(*known, fitted),
        pooled_densities(*known, fitted if may_pool else None),
    )
    slopes = np.empty(len(held.rows))
    slopes[held.source_index] = model.transform_.log_slopes(model.transform_.invert(held.rows))
    found = log_densities(model.solution_, held), own, pooled
    in_users = (None if of_rows is None else of_rows + slopes for of_rows in found)
    return Scores.of(model.solution_.labels, held, *in_users)


def _rounds(model: NetworkGaussianMixture) -> int:
    return ROUNDS if model.n_rounds is None else model.n_rounds


def own_densities(
    solution: Solution,
    network: Network,
    method: Method,
    rows: np.ndarray,
    held: NodeData,
    fitted: Callable[[Method], np.ndarray],
) -> np.ndarray | None:
    """Log-density of held-out rows where every node learns from its own rows alone.

    The run's own level of that name, or else what `fitted` finds by such a method; None where
    nobody could hear another: the run itself is the one with own data only.
    """
    if not listens(solution, network):
        return None
    own = own_level(solution)
    if own is not None:
        return log_densities(own, held)
    return fitted(resolve.own_data_only(method, rows))


def pooled_densities(
    solution: Solution,
    network: Network,
    method: Method,
    rows: np.ndarray,
    held: NodeData,
    fitted: Callable[[Method], np.ndarray] | None,
) -> np.ndarray | None:
    """Log-density of held-out rows under one mixture of all rows.

    Of the run's own level "everyone" and of what `fitted` finds by EM of all rows the better: this
    is to be the best that pooling can do. Without `fitted` (rows may not be pooled, or nodes have
    different numbers of components) the level alone; None where the run itself pools all rows.
    """
    found = []
    if method.moves_rows or held.n_nodes < 2:
        return None
    level = everyone_level(solution)
    if level is not None and len(network.components()) == 1:
        found.append(log_densities(level, held))
    if fitted is not None:
        found.append(fitted(resolve.all_rows_pooled(method, rows)))
    return max(found, key=lambda values: round(float(values.mean()), 9), default=None)


def picture(model: NetworkGaussianMixture, width: float = 420.0, height: float = 260.0) -> str:
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


def in_short(model: NetworkGaussianMixture) -> str:
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


def explained(model: NetworkGaussianMixture, node: Label) -> str:
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
        lines += [_evidence(trust, int(e), place, name) for name, e in zip(names, at, strict=True)]
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
