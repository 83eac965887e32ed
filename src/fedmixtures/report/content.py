"""What a run found, and what the page shows of it: aggregates, and rows only if asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest, in_order
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import MMD
from fedmixtures.engine.solution import Certificate, History
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Levels
from fedmixtures.metrics import Scores
from fedmixtures.mixture.density import conditional_means
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.report import clusters, geometry
from fedmixtures.report.clusters import numbers
from fedmixtures.report.svg import told_apart

MOST_EDGES = 6000  # lines in the picture of the network
PACKED_NUMBERS = 1_200_000  # numbers for moving ellipses in one page, about 3 MB
DENSITY_CELLS = 1_200_000


@dataclass(frozen=True)
class Findings:
    """What a run found, in memory."""

    theta: Mixture  # final mixtures, stacked in the order of `data.labels`, components aligned
    theta_scaled: Mixture  # the same in the units of the fit, where discrepancies are taken
    network: Network
    data: NodeData
    features: tuple[str, ...]
    history: History
    method: Any
    scores: Scores
    snapshots: Mapping[int, Mixture] = field(default_factory=dict)
    held_out: Mapping[int, float] = field(default_factory=dict)
    """Mean held-out log-likelihood by round."""
    curve: Mapping[int, float] = field(default_factory=dict)
    """What each number of components was worth, where it was chosen; higher is better."""
    curve_errors: Mapping[int, float] = field(default_factory=dict)
    """Standard errors of differences to the number that was taken."""
    certificate: Certificate | None = None
    converged: bool = False
    traffic: Any = None
    atlas: Any = None
    """The clusters of the whole network (`model.atlas_`), in the units of `theta`."""
    levels: Levels | None = None  # where a node's density is a weighted sum of several
    trust: Any = None
    """What a method that decides whom to trust has to say (`trust_` of the estimator)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    how_to_hold_out: str = "Fit with --holdout 0.2 to find out."
    """What to do where no row was held out, for whoever made the run."""
    left: tuple[str, ...] = ()
    """What left each site, by its own log, where nodes were processes of their own."""
    version: str = ""  # of fedmixtures


def build_content(found: Findings, include_rows: bool = False) -> dict[str, Any]:
    """The page's content; `include_rows` adds every row's place, for who may see them."""
    program = found.method.program() if hasattr(found.method, "program") else found.method
    discrepancy = getattr(program, "discrepancy", None) or MMD()
    distance = geometry.edge_discrepancies(discrepancy, found.theta_scaled, found.network)
    if found.trust is None:
        groups, bound = geometry.groups_by_gap(distance, found.network)
        closeness = _closeness(distance)
    else:
        groups, bound = geometry.numbered(found.trust.group), None
        closeness = np.where(found.trust.trusted, 1.0, 0.05)
    rounds, thetas = _slider(found)
    chosen, views = _views(found, thetas, include_rows)
    atlas = found.atlas
    return {
        "version": found.version,
        "settings": dict(found.settings),
        "notes": list(found.notes),
        "how_to_hold_out": found.how_to_hold_out,
        "shape": {
            "rows": len(found.data.rows),
            "nodes": found.data.n_nodes,
            "edges": found.network.n_edges,
            "components": found.theta.n_components,
            "features": list(found.features),
            "brief": told_apart(found.features),
            "telling": geometry.separation(found.theta).argsort(kind="stable")[::-1].tolist()
            if len(found.features) > 12
            else list(range(len(found.features))),
        },
        "nodes": _nodes(found, groups, geometry.positions(found.network, np.sqrt(closeness))),
        "edges": _edges(found, distance, closeness, bound, type(discrepancy).__name__),
        "scores": _summary(found.scores),
        "history": _history(found),
        "certificate": _certificate(found.certificate),
        "missing": _missing(found),
        "levels": _levels(found.levels),
        "traffic": _traffic(found),
        "rounds": rounds,
        "views": views,
        "atlas": None if atlas is None else clusters.of_atlas(atlas, chosen, _together(found)),
    }


def _nodes(found: Findings, groups: np.ndarray, places: np.ndarray) -> dict[str, list]:
    scores, traffic = found.scores, found.traffic
    sent = [0] * found.data.n_nodes
    if traffic is not None:
        sent = [int(traffic.sent.get(label, 0)) for label in found.data.labels]
    return {
        "label": [str(label) for label in found.data.labels],
        "rows": found.data.counts.tolist(),
        "held": scores.n_held_out.tolist(),
        "local": numbers(scores.local),
        "network": numbers(scores.network),
        "pooled": numbers(scores.pooled),
        "gain": numbers(scores.gain),
        "error": numbers(scores.error),
        "verdict": scores.verdict.tolist(),
        "group": groups.tolist(),
        "degree": found.network.degree.tolist(),
        "sent": sent,
        "x": np.round(places[:, 0], 4).tolist(),
        "y": np.round(places[:, 1], 4).tolist(),
    }


def _edges(found: Findings, distance, closeness, bound, name: str) -> dict[str, Any]:
    """All edges, or the most alike of them where there are too many to draw."""
    network = found.network
    shown = np.sort(in_order(distance)[:MOST_EDGES])
    return {
        "source": network.source[shown].tolist(),
        "target": network.target[shown].tolist(),
        "weight": numbers(network.weight[shown]),
        "discrepancy": numbers(distance[shown]),
        "closeness": np.round(closeness[shown], 3).tolist(),
        "trusted": None if found.trust is None else found.trust.trusted[shown].tolist(),
        "evidence": _evidence(found.trust, shown),
        "n_trusted": None if found.trust is None else int(found.trust.trusted.sum()),
        "total": network.n_edges,
        "name": name,
        "bound": bound,
    }


def _evidence(trust: Any, shown: np.ndarray) -> dict[str, list]:
    """What else the diagnostics tell of edges: a number seen from each end."""
    arrays = {} if trust is None else trust.diagnostics.edges
    plain = {n: v for n, v in arrays.items() if v.ndim == 2 and v.dtype.kind == "f"}
    return {name: [numbers(pair) for pair in values[shown]] for name, values in plain.items()}


def _levels(levels: Any) -> dict[str, Any] | None:
    """How much each level counts at each node, and on average."""
    if levels is None:
        return None
    return {
        "names": list(levels.names),
        "weights": [numbers(of_node) for of_node in levels.weights],
        "mean": numbers(levels.weights.mean(0)),
        "heaviest": np.bincount(
            first_greatest(levels.weights), minlength=len(levels.names)
        ).tolist(),
    }


def _closeness(distance: np.ndarray) -> np.ndarray:
    """From 1 for the most alike edge to 0.05 for the least, by the logarithm of D."""
    if not len(distance):
        return distance
    logs = np.log(np.maximum(distance, max(distance.max(), 1e-300) * 1e-6))
    span = logs.max() - logs.min()
    return 1 - 0.95 * (logs - logs.min()) / span if span > 0 else np.ones(len(distance))


def _summary(scores: Scores) -> dict[str, Any]:
    medians = {name: numbers(interval) for name, interval in scores.medians().items()}
    return {
        "known": scores.known,
        "baseline": scores.baseline,
        "gain": medians.pop("gain"),
        "medians": medians,
        "compared": int(np.isfinite(scores.gain).sum()),
        "gained": int((scores.gain > 0).sum()),
        "helped": int((scores.verdict > 0).sum()),
        "lost": int((scores.verdict < 0).sum()),
    }


def _history(found: Findings) -> dict[str, Any]:
    history = found.history
    held = found.held_out
    return {
        "converged": bool(found.converged),
        "descends": bool(getattr(found.method, "descends", True)),
        "round": list(range(len(history))),
        "objective": numbers(history.objective),
        "fit": numbers(history.fit),
        "pull": numbers(history.pull),
        "held_round": list(held),
        "held": numbers(list(held.values())),
        "k": list(found.curve),
        "worth": numbers(list(found.curve.values())),
        "worth_errors": numbers([found.curve_errors.get(k, 0.0) for k in found.curve]),
    }


def _certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    plain = ("left", "right", "smallest", "holds", "every_step_decreased", "learning_rate")
    shown = {name: _checks.plain(getattr(certificate, name)) for name in plain}
    return shown | {"norms": numbers(certificate.squared_norms)}


def _missing(found: Findings) -> dict[str, Any] | None:
    """Shares of cells that are missing: in all, and of features with gaps, by feature and node."""
    gone = np.isnan(found.data.rows)
    if not gone.any():
        return None
    incomplete = np.flatnonzero(gone.any(0))
    at_node = np.add.reduceat(
        gone[:, incomplete], found.data.offsets[:-1], axis=0, dtype=np.float64
    )
    at_node /= found.data.counts[:, None]
    return {
        "cells": int(gone.sum()),
        "share": float(gone.mean()),
        "features": incomplete.tolist(),
        "of_feature": numbers(gone[:, incomplete].mean(0)),
        "of_node": [numbers(shares) for shares in at_node],
    }


def _traffic(found: Findings) -> dict[str, Any]:
    traffic, program = found.traffic, found.method
    sent = [] if traffic is None else list(traffic.sent.values())
    return {
        "message_bytes": int(getattr(traffic, "message_bytes", 0) or 0),
        "total": int(sum(sent)),
        "median": float(np.median(sent)) if sent else 0.0,
        "most": int(max(sent, default=0)),
        "rounds": max(len(found.history) - 1, int(getattr(traffic, "n_rounds", 0))),
        "moves_rows": bool(getattr(program, "moves_rows", False)),
        "recipients": str(getattr(traffic, "recipients", "neighbours")),
        "simulated": bool(getattr(traffic, "simulated", True)),
        "rows_bytes": int(8 * found.data.rows.size),
        "left": list(found.left),
    }


def _slider(found: Findings) -> tuple[list[int], list[Mixture]]:
    """Rounds the slider stops at, evenly chosen, and the mixtures there, components matched."""
    rounds = sorted(r for r in found.snapshots if r < len(found.history) - 1)
    n, k = found.data.n_nodes, found.theta.n_components
    most = int(np.clip(PACKED_NUMBERS // (6 * n * k), 3, 24))
    keep = (
        sorted({rounds[i] for i in np.linspace(0, len(rounds) - 1, most - 1).round().astype(int)})
        if rounds
        else []
    )
    thetas = geometry.matched_to_last([*(found.snapshots[r] for r in keep), found.theta])
    return [*keep, len(found.history) - 1], thetas


def _filled(found: Findings) -> NodeData:
    """The rows with every missing cell at its expectation at the node."""
    data = found.data
    if not data.has_gaps:
        return data
    nodes = [
        conditional_means(found.theta.at(i).trimmed(), data.of(i)[0]) for i in range(data.n_nodes)
    ]
    return replace(data, rows=np.concatenate(nodes))


def _together(found: Findings) -> NodeData:
    """All rows as those of one node."""
    data = _filled(found)
    return replace(data, labels=("all",), offsets=np.array([0, len(data.rows)]))


def _views(
    found: Findings, thetas: list[Mixture], include_rows: bool
) -> tuple[geometry.Plane, list[dict[str, Any]]]:
    """The plane that separates clusters best, and what is shown of each plane."""
    n, k = found.data.n_nodes, found.theta.n_components
    affordable = int(np.clip(PACKED_NUMBERS // (6 * n * k * len(thetas)), 1, 7))
    chosen = geometry.choose_planes(found.theta, told_apart(found.features), affordable)
    grid = int(np.clip(np.sqrt(DENSITY_CELLS / (n * len(chosen))), 20, 56))
    views = []
    for number, plane in enumerate(chosen):
        data = _filled(found) if number == 0 and found.data.n_features > 2 else found.data
        view = {
            "name": plane.name,
            "x": plane.x_label,
            "y": plane.y_label,
            "axes": plane.axes.tolist(),
            "low": numbers(plane.low),
            "high": numbers(plane.high),
            "grid": grid,
            "density": geometry.text(geometry.densities(data, plane, grid)),
            "components": geometry.text(
                np.stack([geometry.pack_components(theta, plane) for theta in thetas])
            ),
        }
        if include_rows:
            view["rows"] = geometry.text(geometry.pack_rows(found.data, plane))
        views.append(view)
    return chosen[0], views
