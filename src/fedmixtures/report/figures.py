"""The pictures of the page as SVG: gains, network, convergence."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from fedmixtures._ties import in_order
from fedmixtures.report.cluster_figures import N_COLOURS, runs
from fedmixtures.report.geometry import MEAN_UNIT, UNIT, bytes_of
from fedmixtures.report.numbers import percent
from fedmixtures.report.svg import (
    Axis,
    Number,
    figure,
    label,
    line,
    number,
    padded,
    shortened,
    tick_text,
    told_apart,
)

WIDTH = 720.0
FEW_NODES = 40  # up to this many, every node has a line of its own in the picture of gains
MOST_COLUMNS = 200  # nodes in the picture of missing cells: those that lack most
N_GROUP_COLOURS = 9


def gain_classes(content: dict[str, Any]) -> list[str]:
    """Colour class of every node: the palest step for what may be noise; `none` where unknown."""
    gains = np.array([np.nan if g is None else g for g in content["nodes"]["gain"]])
    known = np.abs(gains[np.isfinite(gains)])
    unit = np.quantile(known, 0.9) if len(known) else 1.0
    classes = []
    for gain, verdict in zip(gains, content["nodes"]["verdict"], strict=True):
        if not np.isfinite(gain):
            classes.append("gain-none")
            continue
        clear = 3 if abs(gain) > unit / 2 else 2
        classes.append(f"gain-{'p' if gain > 0 else 'n'}{clear if verdict else 1}")
    return classes


def gains(content: dict[str, Any], width: Number = WIDTH) -> str:
    """Held-out log-likelihood three ways: a line per node, or all gains by rank."""
    nodes = content["nodes"]
    order = [i for i in by_gain(content) if nodes["gain"][i] is not None]
    if not order:
        return ""
    if len(order) <= FEW_NODES:
        return _dumbbells(content, order, width)
    return _ranked(content, order, width)


def by_gain(content: dict[str, Any]) -> list[int]:
    """Nodes from the largest gain to the largest loss; unknown ones last."""
    gains = content["nodes"]["gain"]
    known = [i for i, gain in enumerate(gains) if gain is not None]
    ranked = [known[i] for i in in_order(np.array([-gains[i] for i in known]), scale=1.0)]
    return ranked + [i for i, gain in enumerate(gains) if gain is None]


def levels(content: dict[str, Any], width: Number = WIDTH) -> str:
    """How much every node learned from itself and from others: a column per node, levels stacked.

    Nodes stand from the one that relies most on itself to the one that relies least.
    """
    found = content["levels"]
    if found is None:
        return ""
    names, weights = found["names"], np.array(found["weights"])
    order = in_order(-weights[:, 0], scale=1.0)
    step, height = width / len(order), 64.0
    wide = number(max(step - 1.0, 0.85 * step))
    body = []
    for place, i in enumerate(order):
        words = ", ".join(
            f"{name} {share:.0%}" for name, share in zip(names, weights[i], strict=True)
        )
        top = 0.0
        parts = []
        for level, share in enumerate(weights[i]):
            parts.append(
                f'<rect class="c{level % N_COLOURS}" x="{number(place * step)}" y="{number(top)}" '
                f'width="{wide}" height="{number(height * share)}"/>'
            )
            top += height * share
        name = escape(f"{content['nodes']['label'][i]}: {words}")
        body.append(f'<g data-node="{i}"><title>{name}</title>{"".join(parts)}</g>')
    title = "How much every node relies on each level"
    return figure(width, height, title, "".join(body), "levels")


def missing(content: dict[str, Any], width: Number = WIDTH) -> str:
    """Where cells are missing: a line per feature with gaps, a column per node with gaps."""
    found = content["missing"]
    if found is None:
        return ""
    shares = np.array(found["of_node"])
    incomplete = np.flatnonzero(shares.any(1))
    order = incomplete[in_order(-shares[incomplete].sum(1), scale=1.0)][:MOST_COLUMNS]
    names = [content["shape"]["features"][j] for j in found["features"]]
    left, right, step = 150.0, width - 46.0, 16.0
    column = min((right - left) / len(order), 24.0)
    body = []
    for row, (name, short) in enumerate(zip(names, told_apart(names, 22), strict=True)):
        top, of_all = row * step, percent(found["of_feature"][row])
        body.append(f"<g><title>{escape(name)}</title>")
        body.append(label(left - 8, top + 12, short, "name", "end") + "</g>")
        body.append(label(width, top + 12, of_all, "axis", "end"))
        for place, i in enumerate(order):
            if shares[i, row] > 0:
                words = escape(f"{content['nodes']['label'][i]}: {percent(shares[i, row])}")
                body.append(
                    f'<rect x="{number(left + place * column)}" y="{number(top)}" '
                    f'width="{number(0.9 * column)}" height="{number(step - 2)}" '
                    f'fill-opacity="{number(0.2 + 0.8 * shares[i, row])}"><title>{words}, '
                    f"{escape(name)}</title></rect>"
                )
    title = "Share of missing cells by feature and node"
    return figure(width, len(names) * step, title, "".join(body), "missing")


def _dumbbells(content: dict[str, Any], order: list[int], width: Number) -> str:
    nodes, css = content["nodes"], gain_classes(content)
    columns = {name: [nodes[name][i] for i in order] for name in ("local", "network", "pooled")}
    good = [v for v in columns["network"] + columns["pooled"] if v is not None]
    everything = good + [v for v in columns["local"] if v is not None]
    # a node's own fit may be worse by thousands: such values stand at the edge, with an arrow.
    floor = min(good) - 1.5 * (max(everything) - min(good)) - 0.3
    low, high = padded([max(v, floor) for v in everything], 0.03)
    names = [nodes["label"][i] for i in order]
    tags = [shortened(name, 20) for name in names]
    left = min(150.0, 22 + 6.6 * max(len(tag) for tag in tags))
    x = Axis(low, high, left, width - 78)
    top, step = 26.0, 19.0
    bottom = top + step * len(order)
    words = "held-out log-likelihood (nats per row): right is better"
    body = [_grid(x, top - 8, bottom, words)]
    for row, i in enumerate(order):
        y = top + step * (row + 0.5)
        own, new, pooled = (nodes[name][i] for name in ("local", "network", "pooled"))
        off = own < floor
        start, end = x(max(own, low)), x(new)
        words = f"{names[row]}: own data only {own:.3f}, with neighbours {new:.3f}"
        words += f", pooled {pooled:.3f}" if pooled is not None else ""
        mark = (
            f'<path class="own off" d="M{number(start + 7)} {number(y - 4)}l-7 4l7 4"/>'
            if off
            else f'<circle class="own" cx="{number(start)}" cy="{number(y)}" r="4"/>'
        )
        tick = ""
        if pooled is not None:
            tick = f'<path class="pooled" d="M{number(x(max(pooled, low)))} {number(y - 6)}v12"/>'
        body.append(
            f'<g class="{css[i]}" data-node="{i}"><title>{escape(words)}</title>'
            f'<path class="bar" d="M{number(start)} {number(y)}H{number(end)}"/>'
            + tick
            + f'{mark}<circle class="new" cx="{number(end)}" cy="{number(y)}" r="5"/>'
            + label(left - 12, y + 4, tags[row], "name", "end")
            + label(width - 64, y + 4, signed(nodes["gain"][i]), "value")
            + "</g>"
        )
    body.append(label(width - 64, top - 12, "gain", "axis"))
    title = "Held-out log-likelihood of every node: own data only, with neighbours, pooled"
    return figure(width, bottom + 42, title, "".join(body), "gains")


def _ranked(content: dict[str, Any], order: list[int], across: Number) -> str:
    """Bars of gain from best to worst, one path per colour."""
    nodes, css = content["nodes"], gain_classes(content)
    values = np.array([nodes["gain"][i] for i in order])
    reach = max(np.quantile(np.abs(values), 0.95), 1e-9) * 1.25
    height, left = 240.0, 58.0
    x = Axis(0, len(order), left, across - 8)
    y = Axis(-reach if values.min() < 0 else 0.0, reach, height - 26, 12)
    paths: dict[str, list[str]] = {}
    width = max(x(1) - x(0), 0.4)
    for rank, i in enumerate(order):
        to = y(float(np.clip(values[rank], -reach, reach)))
        bar = f"M{number(x(rank))} {number(y(0))}V{number(to)}h{number(width)}V{number(y(0))}"
        paths.setdefault(css[i], []).append(bar)
    body = [
        f'<path class="grid" d="M{left} {number(y(t))}H{across - 8}"/>'
        + label(left - 8, y(t) + 4, tick_text(t), "axis", "end")
        for t in y.ticks(4)
    ]
    body += [f'<path class="column {name}" d="{"".join(parts)}"/>' for name, parts in paths.items()]
    body.append(
        label(left, height - 6, "gain of every node in nats per held-out row, best first", "axis")
    )
    title = f"Gain of {len(order)} nodes by rank, from {values[0]:.3g} to {values[-1]:.3g}"
    return figure(across, height, title, "".join(body), "gains ranked")


def network(content: dict[str, Any], interactive: bool = True) -> str:
    """Nodes and edges; edges in five paths by closeness, so that thousands stay quick."""
    nodes, edges = content["nodes"], content["edges"]
    n, height = len(nodes["label"]), 540.0
    radius = float(np.clip(100 / np.sqrt(n), 3.2, 15))
    px = Axis(0, 1, radius + 14, WIDTH - radius - 14)
    py = Axis(0, 1, radius + 14, height - radius - (24 if n <= FEW_NODES else 14))
    place = [(px(x), py(y)) for x, y in zip(nodes["x"], nodes["y"], strict=True)]
    strata: dict[int, list[str]] = {}
    for a, b, close in zip(edges["source"], edges["target"], edges["closeness"], strict=True):
        strata.setdefault(min(4, int(close * 5)), []).append(line([place[a], place[b]]))
    body = [f'<path class="edge e{s}" d="{"".join(d)}"/>' for s, d in sorted(strata.items())]
    body.append('<path class="edge chosen" d=""/>')
    css = gain_classes(content)
    most = max(nodes["rows"])
    for i, (x, y) in enumerate(place):
        r = radius * (0.62 + 0.38 * np.sqrt(nodes["rows"][i] / most))
        group = f"group-{nodes['group'][i] % N_GROUP_COLOURS}"
        lost = (nodes["gain"][i] or 0.0) < 0
        mark = (
            f'<rect x="{number(x - r)}" y="{number(y - r)}" width="{number(2 * r)}" '
            f'height="{number(2 * r)}" transform="rotate(45 {number(x)} {number(y)})"/>'
            if lost
            else f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(r)}"/>'
        )
        words = escape(node_words(content, i))
        focus = f' role="button" tabindex="{0 if i == 0 else -1}" aria-label="{words}"'
        body.append(
            f'<g class="node {css[i]}" data-i="{i}" data-group="{group}"{focus * interactive}>'
            f"<title>{words}</title>{mark}"
            + (
                label(x, y + r + 13, shortened(nodes["label"][i], 12), "tag", "middle")
                if n <= FEW_NODES
                else ""
            )
            + "</g>"
        )
    drawn = figure(WIDTH, height, f"Network of {n} nodes", "".join(body), "network")
    return drawn.replace('role="img"', 'role="group"') if interactive else drawn


def node_words(content: dict[str, Any], i: int) -> str:
    """One node in words."""
    nodes = content["nodes"]
    gain = nodes["gain"][i]
    words = f"node {nodes['label'][i]}, {nodes['rows'][i]} rows, {nodes['degree'][i]} neighbours"
    return words if gain is None else f"{words}, gain {signed(gain)}"


def convergence(content: dict[str, Any]) -> list[str]:
    """Small pictures over rounds: objective, pull of the neighbours, held-out log-likelihood."""
    history = content["history"]
    pictures = [("objective: fit + pull", history["round"], history["objective"], "down")]
    if not history["descends"]:  # a method without an objective; its nodes' own losses are shown
        pictures = [("loss on the nodes' own rows", history["round"], history["fit"], "")]
    if any(history["pull"]):
        pictures.append(("pull of the neighbours", history["round"], history["pull"], ""))
    if history["held"]:
        held = ("held-out log-likelihood", history["held_round"], history["held"], "up")
        pictures.append(held)
    return [_over_rounds(*picture) for picture in pictures]


def choice(content: dict[str, Any]) -> str:
    """What each number of components was worth; empty where it was given."""
    history = content["history"]
    tried, worth = history.get("k", []), history.get("worth", [])
    errors = history.get("worth_errors", [])
    return _over_rounds("what each k was worth", tried, worth, "up", "components", errors)


def _over_rounds(
    title: str,
    rounds: list[int],
    values: list[Number | None],
    better: str,
    over: str = "rounds",
    errors: list[Number] | None = None,
) -> str:
    """A curve, with its 95 % intervals; over rounds with a rule that moves with the slider."""
    pairs = [(r, v) for r, v in zip(rounds, values, strict=True) if v is not None]
    if len(pairs) < 2:
        return ""
    width, height, left = 320.0, 190.0, 52.0
    x = Axis(pairs[0][0], pairs[-1][0], left, width - 10)
    bars = [
        (r, v - 1.96 * e, v + 1.96 * e)
        for r, v, e in zip(rounds, values, errors or [], strict=False)
        if v is not None and e
    ]
    ends = [end for _, *both in bars for end in both]
    y = Axis(*padded([v for _, v in pairs] + ends), height - 30, 30)
    body = [label(0, 14, title, "head")]
    if better:
        arrow = {"down": "lower is better", "up": "higher is better"}[better]
        body.append(label(width - 10, 14, arrow, "axis", "end"))
    body += [
        f'<path class="grid" d="M{left} {number(y(t))}H{width - 10}"/>'
        + label(left - 8, y(t) + 4, tick_text(t), "axis", "end")
        for t in y.ticks(4)
    ]
    body += [label(x(t), height - 10, tick_text(t), "axis", "middle") for t in x.ticks(4)]
    if over == "rounds":
        body.append(f'<path class="rule" data-from="{left}" data-to="{width - 10}" d=""/>')
    body.append(f'<path class="curve" d="{line([(x(r), y(v)) for r, v in pairs])}"/>')
    body += [f'<path class="curve" d="{line([(x(r), y(a)), (x(r), y(b))])}"/>' for r, a, b in bars]
    words = f"{title} from {pairs[0][1]:.4g} to {pairs[-1][1]:.4g} over {pairs[-1][0]} {over}"
    return figure(width, height, words, "".join(body), "chart")


def _grid(x: Axis, top: Number, bottom: Number, words: str) -> str:
    parts = [
        f'<path class="grid" d="M{number(x(t))} {number(top)}V{number(bottom)}"/>'
        + label(x(t), bottom + 16, tick_text(t), "axis", "middle")
        for t in x.ticks(6 if x.end - x.start > 400 else 3)
    ]
    return "".join(parts) + label((x.start + x.end) / 2, bottom + 36, words, "axis", "middle")


def signed(value: Number | None) -> str:
    """A gain with its sign."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        text = f"{value:+,.0f}"
    else:
        text = f"{value:+.2f}" if abs(value) >= 0.095 else f"{value:+.3f}"
    return text.replace("-", "−")


def portrait(content: dict[str, Any], i: int, side: float = 200.0) -> str:
    """One node at the end of the run: density of its rows in steps, components as ellipses."""
    view = content["views"][0]
    grid, n, k = view["grid"], content["shape"]["nodes"], content["shape"]["components"]
    image = bytes_of(view["density"], "u1").reshape(n, grid, grid)[i]
    body = [f'<rect class="paper" width="{side}" height="{side}"/>']
    cell = side / grid
    for level in (32, 80, 136, 200):
        if shape := runs(image >= level, cell, cell):
            body.append(f'<path class="density" d="{shape}"/>')
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
