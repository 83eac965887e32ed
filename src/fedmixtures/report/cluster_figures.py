"""The pictures of the clusters as SVG: where they lie, how many are where, what each is like."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from fedmixtures._ties import first_greatest, first_least, in_order
from fedmixtures.report.geometry import bytes_of
from fedmixtures.report.numbers import between, percent, plain
from fedmixtures.report.svg import (
    Axis,
    Number,
    figure,
    label,
    line,
    number,
    padded,
    shortened,
    told_apart,
)

WIDTH = 720.0
N_COLOURS = 8
FEW_NODES = 40  # up to this many, every node has a line of its own in the heat map
LINKED = 400  # up to this many, a column of the heat map leads to its node
STEPS = 12  # of shading, where nodes are many


def colour(cluster: int) -> str:
    """Class of a cluster's colour."""
    return f"c{cluster % N_COLOURS}"


def clusters_map(content: dict[str, Any], width: Number = WIDTH) -> str:
    """All rows as shading, each cluster as an ellipse with its name, a dot for it at each node."""
    atlas = content.get("atlas")
    if atlas is None or atlas["map"] is None:
        return ""
    shown, height = atlas["map"], 0.62 * width
    grid, nodes = shown["grid"], content["nodes"]["label"]
    image = bytes_of(shown["density"], "u1").reshape(grid, grid)
    size = np.array([width, height])
    body = [f'<rect class="paper" width="{number(width)}" height="{number(height)}" rx="6"/>']
    cell = width / grid, height / grid
    for level in (16, 48, 96, 160, 220):
        if shape := runs(image >= level, *cell):
            body.append(f'<path class="density" d="{shape}"/>')
    circle = np.linspace(0, 2 * np.pi, 61)
    circle = np.stack([np.cos(circle), np.sin(circle)], 1)
    on_screen = lambda places: np.clip(places * [1, -1] + [0, 1], -0.5, 1.5) * size
    tops = []
    for c, (mean, covariance) in enumerate(zip(shown["mean"], shown["covariance"], strict=True)):
        factor = np.linalg.cholesky(np.reshape(covariance, (2, 2)) + 1e-12 * np.eye(2))
        outline = on_screen(np.array(mean) + 2 * circle @ factor.T)
        path = line([(x, y) for x, y in outline.tolist()])
        tops.append(outline[first_least(outline[:, 1], scale=height)] + [0, 10])
        body.append(
            f'<a href="#cluster-{c}" data-cluster="{c}" class="{colour(c)}">'
            f"<title>{escape(_words(atlas, c))}</title>"
            f'<path class="component" fill-opacity=".07" d="{path}Z"/></a>'
        )
    for i, c, *place in zip(*shown["dots"], strict=True):
        x, y = on_screen(np.array(place))
        share = atlas["shares"][i][c]
        words = f"{atlas['names'][c]} at {nodes[i]}: {percent(share)} of its rows"
        body.append(
            f'<a href="#node-{i}" data-cluster="{c}" class="{colour(c)}">'
            f"<title>{escape(words)}</title>"
            f'<circle class="spot" cx="{number(x)}" cy="{number(y)}" '
            f'r="{number(2 + 4 * np.sqrt(share))}"/></a>'
        )
    names = told_apart(atlas["names"], 22 if width > 500 else 10)
    for c, (x, y) in enumerate(_apart(tops, names, width)):
        name = label(x, y + 5, names[c], "cluster-name", "middle")
        body.append(f'<g data-cluster="{c}">{name}</g>')
    return figure(width, height, "The clusters on a plane", "".join(body), "map")


def _apart(places: list[np.ndarray], names: list[str], width: Number) -> list[tuple[float, float]]:
    """Middles of labels, inside the picture and moved down where they would stand on others."""
    found: list[tuple[float, float, float]] = []
    for (x, y), name in zip(places, names, strict=True):
        half = 4.5 * len(name) + 4
        x, y = min(max(x, half), width - half), max(y, 16.0)
        while any(abs(x - a) < half + other and abs(y - b) < 15 for a, b, other in found):
            y = y + 4
        found.append((float(x), float(y), half))
    return [(x, y) for x, y, _ in found]


def runs(mask: np.ndarray, wide: float, high: float) -> str:
    """Rows of true cells as one path; the picture's y points down, the plane's up."""
    parts = []
    for row in np.flatnonzero(mask.any(1)):
        steps = np.flatnonzero(np.diff(np.concatenate([[0], mask[row].astype(np.int8), [0]])))
        y = (len(mask) - 1 - row) * high
        for start, end in steps.reshape(-1, 2):
            parts.append(_box(start * wide, y, (end - start) * wide, high))
    return "".join(parts)


def _box(x: Number, y: Number, wide: Number, high: Number) -> str:
    return f"M{number(x)} {number(y)}h{number(wide)}v{number(high)}h-{number(wide)}z"


def _words(atlas: dict[str, Any], c: int) -> str:
    return f"{atlas['names'][c]}: {percent(atlas['share'][c])} of all rows, {atlas['words'][c]}"


def heat(content: dict[str, Any], width: Number = WIDTH) -> str:
    """Shares of clusters at nodes: a line for each of a few nodes, else a column for each."""
    atlas = content.get("atlas")
    if atlas is None:
        return ""
    shares = np.array(atlas["shares"])
    order = in_order(3.0 * first_greatest(shares) - shares.max(1), scale=1.0).tolist()
    if len(order) <= FEW_NODES:
        return _by_line(content, order, width)
    return _by_column(content, order, width)


def _by_line(content: dict[str, Any], order: list[int], width: Number) -> str:
    """Nodes one below the other, a column for each cluster, shares in the cells."""
    atlas, nodes = content["atlas"], content["nodes"]["label"]
    k, step = len(atlas["names"]), 24.0
    tags = told_apart([nodes[i] for i in order], 22 if width > 500 else 13)
    left = 12 + 6.8 * max(len(tag) for tag in tags)
    wide = min((width - left) / k, 84.0)
    names = told_apart(atlas["names"], max(int(wide / 7.5), 2))
    top, body = 30.0, []
    for c, name in enumerate(names):
        x = left + (c + 0.5) * wide
        body.append(
            f'<a href="#cluster-{c}" data-cluster="{c}" class="{colour(c)}">'
            f"<title>{escape(_words(atlas, c))}</title>"
            f'<circle class="spot" cx="{number(x)}" cy="5" r="4"/>'
            f"{label(x, 23, name, 'name', 'middle')}</a>"
        )
    for row, (i, tag) in enumerate(zip(order, tags, strict=True)):
        y = top + row * step
        body.append(
            f'<a href="#node-{i}"><title>{escape(nodes[i])}</title>'
            f"{label(left - 10, y + 15.5, tag, 'name', 'end')}</a>"
        )
        for c in range(k):
            share, (low, high) = atlas["shares"][i][c], atlas["intervals"][i][c]
            reach = f" ({between(low, high)})" if low is not None else ""
            words = f"{atlas['names'][c]} at {nodes[i]}: {percent(share)}{reach}"
            x = left + c * wide
            text = _cell(share, wide) if i in atlas["nodes"][c] else "·"
            body.append(
                f'<g data-cluster="{c}" class="{colour(c)}"><title>{escape(words)}</title>'
                f'<rect x="{number(x + 1)}" y="{number(y)}" width="{number(wide - 2)}" '
                f'height="{number(step - 2)}" style="--s:{share:.3f}"/>'
                f"{label(x + wide / 2, y + 15.5, text, 'value', 'middle')}</g>"
            )
    title = "Share of every cluster at every node, in per cent"
    return figure(max(width, 1.0), top + len(order) * step, title, "".join(body), "heat")


def _cell(share: float, wide: Number) -> str:
    """A share in per cent, as far as there is room."""
    text = "<1" if share < 0.01 else f"{100 * share:.0f}"
    return "" if wide < 7.5 * len(text) else f"{text}%" if wide > 46 else text


def _by_column(content: dict[str, Any], order: list[int], width: Number) -> str:
    """Clusters one below the other, a narrow column for each node; shading in steps."""
    atlas, nodes = content["atlas"], content["nodes"]["label"]
    k, step, n = len(atlas["names"]), 22.0, len(order)
    tags = told_apart(atlas["names"], 18)
    left = 12 + 7.2 * max(2, *(len(tag) for tag in tags))
    wide = (width - left) / n
    shares, body = np.array(atlas["shares"])[order], []
    for c, tag in enumerate(tags):
        y = c * step
        strength = np.ceil(shares[:, c] * STEPS).astype(int)
        paths = []
        for level in np.unique(strength[strength > 0]).tolist():
            d = "".join(
                _box(left + first * wide, y, (last - first) * wide, step - 2)
                for first, last in _spans(strength == level)
            )
            paths.append(f'<path class="cell" d="{d}" style="--s:{level / STEPS:.2f}"/>')
        body.append(
            f'<a href="#cluster-{c}" data-cluster="{c}" class="{colour(c)}">'
            f"<title>{escape(_words(atlas, c))}</title>"
            f"{label(left - 10, y + 14.5, tag, 'name', 'end')}"
            f'<circle class="spot" cx="{number(left - 4)}" cy="{number(y + 10)}" r="3"/>'
            f"{''.join(paths)}</a>"
        )
    for place, i in enumerate(order if n <= LINKED else ()):
        most = in_order(-np.array(atlas["shares"][i]), scale=1.0)[:3]
        told = ", ".join(f"{atlas['names'][c]} {percent(atlas['shares'][i][c])}" for c in most)
        body.append(
            f'<a href="#node-{i}"><title>{escape(nodes[i])}: {escape(told)}</title>'
            f'<rect class="over" x="{number(left + place * wide)}" y="0" '
            f'width="{number(wide)}" height="{number(k * step - 2)}"/></a>'
        )
    title = f"Share of every cluster at {n} nodes"
    return figure(width, k * step, title, "".join(body), "heat")


def _spans(mask: np.ndarray) -> list[list[int]]:
    """First and last of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return edges.reshape(-1, 2).tolist()


def profiles(content: dict[str, Any]) -> list[str]:
    """A small picture for each feature, those that tell clusters apart best first."""
    if content.get("atlas") is None:
        return []
    return [_profile(content, j) for j in in_order_of_use(content)]


def in_order_of_use(content: dict[str, Any]) -> list[int]:
    """Features, those that tell clusters apart best first."""
    atlas = content["atlas"]
    share, standing = np.array(atlas["share"]), np.array(atlas["standing"])
    return in_order(-(share @ standing**2), scale=1.0).tolist()


def _profile(content: dict[str, Any], j: int) -> str:
    """One feature: centre and spread of each cluster, and the range of its nodes' centres."""
    atlas, name = content["atlas"], content["atlas"]["features"][j]
    mean, spread = (np.array(atlas[key])[:, j] for key in ("mean", "spread"))
    first, last = (np.array(atlas[key])[:, j] for key in ("from", "to"))
    below, above = (np.array(atlas[key])[:, j] for key in ("below", "above"))
    low, high = padded([*below, *above, *first, *last], 0.03)
    width, step, top, digits = 250.0, 17.0, 24.0, atlas["digits"][j]
    text = lambda value: plain(float(value), digits)
    texts = [text(m) for m in mean]
    tags = told_apart(atlas["names"], 9)
    left, right = 10 + 6.6 * max(map(len, tags)), width - 10 - 6.6 * max(map(len, texts))
    x = Axis(low, high, left, right)
    bottom = top + step * len(mean)
    body = [
        f"<g><title>{escape(name)}</title>{label(0, 13, shortened(name, 34), 'head')}</g>",
        f'<path class="grid" d="M{number(left)} {number(bottom + 1)}H{number(right)}"/>',
    ]
    ticks = x.ticks(3)
    finest = max(0, digits - 1) if all(abs(t) >= 1 or t == 0 for t in ticks) else digits
    for t in ticks:
        body.append(label(x(t), bottom + 14, plain(t, _least(t, finest)), "axis", "middle"))
    for c, m in enumerate(mean):
        y = top + step * (c + 0.5)
        words = f"{atlas['names'][c]}: {texts[c]} ± {text(spread[c])}"
        if last[c] > first[c]:
            words += f"; at nodes {text(first[c])} to {text(last[c])}"
        body.append(
            f'<a href="#cluster-{c}" data-cluster="{c}" class="{colour(c)}">'
            f"<title>{escape(words)}</title>"
            + label(0, y + 4, tags[c], "axis")
            + _bar("reach", x(below[c]), x(above[c]), y)
            + _bar("nodes", x(first[c]), x(last[c]), y)
            + f'<circle class="spot" cx="{number(x(m))}" cy="{number(y)}" r="4"/>'
            + label(width, y + 4, texts[c], "value", "end")
            + "</a>"
        )
    return figure(width, bottom + 18, f"{name} by cluster", "".join(body), "profile")


def _bar(css: str, start: Number, end: Number, y: Number) -> str:
    return f'<path class="{css}" d="M{number(start)} {number(y)}H{number(end)}"/>'


def _least(value: float, most: int) -> int:
    """Decimals that a tick needs, at most so many."""
    return next((d for d in range(most + 1) if abs(round(value, d) - value) < 1e-9), most)
