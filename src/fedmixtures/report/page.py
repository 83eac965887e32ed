"""The page, one HTML file with style, script and content inside, and what it says in sentences."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fedmixtures.report import cluster_figures, figures, numbers
from fedmixtures.report.sentences import baseline, headline, story, title, where
from fedmixtures.report.svg import shortened

FIRST_NODES = 30
"""Lines of the node table that are in the page itself; its script adds the others on request."""
STATIC_NODES = 300
PORTRAITS = 12
NARROW = 380.0  # width of pictures for a phone: the same size of letters on less room


def render(content: dict[str, Any], static: bool = False) -> str:
    """The page as text; `static` leaves out the script and what needs it."""
    from jinja2 import Environment, StrictUndefined

    part = lambda name: files("fedmixtures.report").joinpath(name).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "signed": figures.signed,
        "size": size,
        "percent": numbers.percent,
        "share": numbers.share,
        "between": numbers.between,
        "plain": numbers.plain,
        "short": short,
        "count": count,
        "brief": shortened,
    }
    order = figures.by_gain(content)
    # A page without a script shows all of a few nodes, else the best and the worst.
    half, few = PORTRAITS // 2, len(order) <= PORTRAITS
    telling = order if few else [*order[:half], *order[-half:]]
    nodes = content["nodes"]
    return environment.from_string(part("page.html.jinja")).render(
        content=content,
        static=static,
        css=part("page.css"),
        script="" if static else part("page.js"),
        data="" if static else embedded(content),
        title=title(content),
        where=where(content),
        headline=headline(content),
        heat=cluster_figures.heat(content),
        heat_narrow=cluster_figures.heat(content, NARROW),
        map=cluster_figures.clusters_map(content),
        map_narrow=cluster_figures.clusters_map(content, NARROW),
        profiles=cluster_figures.profiles(content),
        by_use=cluster_figures.in_order_of_use(content) if content.get("atlas") else [],
        story=story(content),
        baseline=baseline(content),
        gains=figures.gains(content),
        gains_narrow=figures.gains(content, NARROW),
        levels=figures.levels(content),
        missing=figures.missing(content),
        missing_narrow=figures.missing(content, NARROW),
        network=figures.network(content, interactive=not static),
        charts=[chart for chart in figures.convergence(content) if chart],
        choice=figures.choice(content),
        table=order[: STATIC_NODES if static else FIRST_NODES],
        lost=[nodes["label"][i] for i in reversed(order) if nodes["verdict"][i] < 0],
        portraits=[(i, figures.portrait(content, i)) for i in telling] if static else [],
        n_colours=figures.N_COLOURS,
        gain_classes=figures.gain_classes(content),
    )


def embedded(content: dict[str, Any]) -> str:
    """The content as JSON that cannot end the script element it stands in."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def short(value: float | int | None, digits: int = 3) -> str:
    """A number for a table."""
    if value is None:
        return "–"
    if abs(value) >= 10_000:
        return f"{value:.2e}".replace("-", "−").replace("e+0", "e")
    return f"{value:,.{digits}f}".replace("-", "−")


def count(value: float | int) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}"


def size(count: float | int) -> str:
    """Bytes in words."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
