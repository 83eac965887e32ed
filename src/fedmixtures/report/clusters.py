"""What the page tells of the clusters of the whole network, as plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures._ties import in_order
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.report import geometry
from fedmixtures.report.numbers import decimals

MOST_DOTS = 1500
"""Centres of clusters at nodes in the map: those of the largest shares."""
GRID = 96
BLUR = 0.5
"""Scott's rule is made for one bump; clusters are several."""
ALIKE = 0.3
"""Bhattacharyya coefficient from which on two clusters are said to overlap."""


def of_atlas(atlas: Any, plane: geometry.Plane, rows: Any) -> dict[str, Any]:
    """The clusters in the order of their numbers; those that are nowhere are left out.

    Parameters
    ----------
    atlas
        `model.atlas_`.
    plane
        The plane of the map, of the directions that separate clusters best.
    rows
        Rows of all nodes together, for the shading of the map.
    """
    shown = np.flatnonzero(np.asarray(atlas.profiles.weights) > 0)
    profiles, shares, taken = atlas.profiles.at(shown), atlas.shares[:, shown], atlas.transform
    share, users = np.asarray(profiles.weights), taken.users(profiles)
    means, inside = np.asarray(users.means), np.asarray(profiles.means)
    spreads, deviation = _spreads(users), _spreads(profiles)
    overall = np.sqrt(share @ (spreads**2 + (means - share @ means) ** 2))
    present = atlas.present[:, shown]
    there = np.where(present[..., None], taken.invert(atlas.centres[:, shown]), np.nan)
    least, most = (f(there, 0) for f in (np.fmin.reduce, np.fmax.reduce))
    anywhere = present.any(0)[:, None]
    order = [in_order(-of, scale=1.0) for of in shares.T]
    return {
        "number": shown.tolist(),
        "features": list(atlas.features),
        "names": [atlas.names[c] for c in shown],
        "share": numbers(share),
        "unsure": atlas.unsure is not None,
        "interval": [numbers(ends) for ends in atlas.share_intervals[shown]],
        "words": [atlas.words(int(c)) for c in shown],
        "nodes": [[int(i) for i in of if present[i, c]] for c, of in enumerate(order)],
        "shares": [numbers(of) for of in shares],
        "intervals": [[numbers(of) for of in node] for node in atlas.intervals[:, shown]],
        "mean": [numbers(of) for of in means],
        "spread": [numbers(of) for of in spreads],
        "below": [numbers(of) for of in taken.invert(inside - deviation)],
        "above": [numbers(of) for of in taken.invert(inside + deviation)],
        "from": [numbers(of) for of in np.where(anywhere, least, means)],
        "to": [numbers(of) for of in np.where(anywhere, most, means)],
        "digits": [decimals(float(s)) for s in overall],
        "standing": [numbers(of) for of in atlas.standing[shown]],
        "overlaps": _overlaps(np.asarray(atlas.overlap)[np.ix_(shown, shown)]),
        "map": _map(atlas, plane, rows, shown, present),
        "described": _described(atlas.described, shown),
    }


def _described(described: Any, shown: np.ndarray) -> list[dict[str, Any]]:
    """Columns that were not fitted: for each of their cells the whole, then every cluster."""
    if described is None:
        return []
    order = [described.means.shape[1] - 1, *shown.tolist()]
    place, found = 0, []
    for column in described.columns:
        width = len(column.cells)
        means, spreads = (
            part[0, order, place : place + width].T for part in (described.means, described.spreads)
        )
        spread = 0.0 if column.levels else float(spreads[0, 0])
        found.append(
            {
                "name": column.name,
                "levels": list(column.levels),
                "means": [numbers(of) for of in means],
                "spreads": [numbers(of) for of in spreads],
                "digits": decimals(spread),
            }
        )
        place += width
    return found


def _spreads(theta: Mixture) -> np.ndarray:
    """(k, d) standard deviations of every feature; of a category those of its share."""
    variances = np.diagonal(theta.covariances, axis1=1, axis2=2)
    shares = np.clip(theta.tables, 0.0, 1.0)
    return np.sqrt(np.concatenate([variances, shares * (1 - shares)], axis=1))


def _overlaps(overlap: np.ndarray) -> list[list[int]]:
    """For each cluster those that it overlaps with, the most first."""
    off = overlap - np.diag(np.diag(overlap))
    return [[int(b) for b in in_order(-of, scale=1.0) if of[b] >= ALIKE] for of in off]


def _map(atlas: Any, plane: geometry.Plane, rows: Any, shown: Any, present: Any) -> Any:
    """The clusters on a plane: profiles, and where each lies at nodes; None for one feature."""
    if not plane.axes[1].any():
        return None
    profiles = atlas.profiles.at(shown).continuous
    means, covariances = plane.project(profiles)
    centres = atlas.centres[:, shown, : profiles.n_features]
    places = (centres @ plane.axes.T - plane.low) / plane.span
    node, cluster = np.nonzero(present)
    most = np.sort(in_order(-atlas.shares[node, shown[cluster]], scale=1.0)[:MOST_DOTS])
    node, cluster = node[most], cluster[most]
    return {
        "x": plane.x_label,
        "y": plane.y_label,
        "grid": GRID,
        "density": geometry.text(geometry.densities(rows, plane, GRID, BLUR)),
        "mean": [numbers(of) for of in (means - plane.low) / plane.span],
        "covariance": [
            numbers(of.ravel()) for of in covariances / np.outer(plane.span, plane.span)
        ],
        "dots": [node.tolist(), cluster.tolist(), *(numbers(x) for x in places[node, cluster].T)],
    }


def numbers(values: Any) -> list[float | None]:
    """Numbers with seven digits; NaN and infinity, which JSON lacks, as null."""
    return [float(f"{v:.7g}") if np.isfinite(v) else None for v in np.asarray(values, float)]
