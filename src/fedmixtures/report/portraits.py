"""Single nodes as SVG, for the page without a script."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures.report.figures import node_words
from fedmixtures.report.planes import MEAN_UNIT, UNIT, bytes_of
from fedmixtures.report.svg import figure, number

N_COLOURS = 8


def portrait(content: dict[str, Any], i: int, side: float = 200.0) -> str:
    """One node at the end of the run: density of its rows in steps, components as ellipses."""
    view = content["views"][0]
    grid, n, k = view["grid"], content["shape"]["nodes"], content["shape"]["components"]
    image = bytes_of(view["density"], "u1").reshape(n, grid, grid)[i]
    body = [f'<rect class="paper" width="{side}" height="{side}"/>']
    cell = side / grid
    for level in (32, 80, 136, 200):
        runs = _runs(image >= level, cell, grid)
        if runs:
            body.append(f'<path class="density" d="{runs}"/>')
    numbers = bytes_of(view["components"], "<i2").reshape(-1, n, k, 6)[-1, i]
    for c, (weight, mx, my, sx, sy, rho) in enumerate(numbers.tolist()):
        if weight > 0:
            body.append(_ellipse(c, weight, mx, my, sx, sy, rho, side))
    return figure(side, side, f"Components of {node_words(content, i)}", "".join(body), "portrait")


def _ellipse(c: int, weight, mx, my, sx, sy, rho, side: float) -> str:
    """The two-sigma ellipse of a packed component."""
    sx, sy, rho = 2 * side * sx / UNIT, 2 * side * sy / UNIT, rho / UNIT
    shape = np.array([[sx * sx, -rho * sx * sy], [-rho * sx * sy, sy * sy]])  # y points down
    values, vectors = np.linalg.eigh(shape)
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    place = (side * mx / MEAN_UNIT, side * (1 - my / MEAN_UNIT))
    radii = np.sqrt(np.maximum(values, 1e-6))
    spot = f"translate({number(place[0])} {number(place[1])}) rotate({number(angle)})"
    return (
        f'<ellipse class="component c{c % N_COLOURS}" rx="{number(radii[1])}" '
        f'ry="{number(radii[0])}" transform="{spot}" '
        f'style="fill-opacity:{0.06 + 0.3 * weight / UNIT:.2f}"/>'
    )


def _runs(mask: np.ndarray, cell: float, grid: int) -> str:
    """Rows of true cells as one path; the picture's y points down, the plane's up."""
    parts = []
    for row in np.flatnonzero(mask.any(1)):
        steps = np.flatnonzero(np.diff(np.concatenate([[0], mask[row].astype(np.int8), [0]])))
        y = (grid - 1 - row) * cell
        for start, end in steps.reshape(-1, 2):
            span = number((end - start) * cell)
            parts.append(f"M{number(start * cell)} {number(y)}h{span}v{number(cell)}h-{span}z")
    return "".join(parts)
