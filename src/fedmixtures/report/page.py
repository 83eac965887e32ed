"""The page, one HTML file with style, script and content inside, and what it says in sentences."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

from fedmixtures.engine.solution import ELSEWHERE
from fedmixtures.report import figures
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
        "percent": figures.percent,
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
        headline=headline(content),
        story=story(content),
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


def headline(content: dict[str, Any]) -> str:
    """The answer to the one question of the page."""
    scores, n = content["scores"], content["shape"]["nodes"]
    if n == 1 and content["traffic"]["recipients"] == ELSEWHERE:
        heard = "found with other sites" if listened(content) else "of its own rows alone"
        return f"The mixture of {content['nodes']['label'][0]}, {heard}."
    if n == 1:
        return "A mixture of one node's rows."
    if not listened(content):
        return f"One mixture for each of {n:,} nodes. Nobody listened to anybody."
    if not scores["known"]:
        return f"One mixture for each of {n:,} nodes."
    gained, compared = scores["gained"], scores["compared"]
    whom = "the others" if content["traffic"]["recipients"] == "hub" else "neighbours"
    of = f"{compared:,} node{'s' * (compared != 1)}"
    _, low, high = scores["gain"]
    if low is not None and low > 0:
        share = f"all {of}" if gained == compared else f"{gained:,} of {of}"
        clear = scores["helped"]
        noise = "" if clear == gained else f", {clear or 'none'} of them beyond noise"
        return f"Listening to {whom} helped: {share} gained{noise}."
    if high is not None and high < 0:
        lost = compared - gained
        share = f"all {of}" if lost == compared else f"{lost:,} of {of}"
        return f"Listening to {whom} hurt: {share} lost."
    return f"Listening to {whom} made no clear difference: {gained:,} of {of} gained."


def listened(content: dict[str, Any]) -> bool:
    """Whether any node used anything of another."""
    traffic, levels = content["traffic"], content.get("levels")
    far = traffic["recipients"] in ("hub", ELSEWHERE)
    if traffic["total"] == 0 or not (far or content["shape"]["edges"]):
        return False
    if levels is not None:  # what counts beside what a node knows by itself
        means = zip(levels["names"], levels["mean"], strict=True)
        return any(weight > 0 for name, weight in means if name != "own")
    return content["edges"]["n_trusted"] != 0


def story(content: dict[str, Any]) -> str:
    """The headline in numbers."""
    scores = content["scores"]
    if content["traffic"]["recipients"] == ELSEWHERE:
        return (
            "What the other sites hold is not on this page; rows never left them. Below is what "
            "this site knows of its part."
        )
    if not listened(content):
        why = (
            "No node found a neighbour it could trust"
            if content["edges"]["n_trusted"] == 0 and content["shape"]["edges"]
            else "There was no graph"
            if not content["shape"]["edges"]
            else "The method sends nothing"
        )
        return f"{why}, so every node learned from its own rows alone."
    if not scores["known"]:
        return (
            "No rows were held out, or there was nothing to compare with, so this page cannot say "
            "whether neighbours helped. Fit with --holdout 0.2 to find out."
        )
    gain, low, high = scores["gain"]
    minus = lambda value: f"{value:+.2f}".replace("-", "−")
    between = "" if low is None else f" (95% interval {minus(low)} to {minus(high)})"
    helped, lost = scores["helped"], scores["lost"]
    one_by_one = (
        f" Taken one by one, {helped or 'no'} node{'s' * (helped != 1)} gained beyond noise and "
        f"{lost or 'none'} lost."
    )
    return (
        f"A held-out row of the median node became {_likelier(gain)} under its node's mixture than "
        f"with the node's own data alone: {minus(gain)} nats{between}.{one_by_one}"
    )


def _likelier(gain: float) -> str:
    if abs(gain) < 0.005:
        return "neither more nor less likely"
    if abs(gain) > math.log(1000):
        return "far more likely" if gain > 0 else "far less likely"
    factor = math.exp(abs(gain))
    if factor < 1.1:
        return f"{factor - 1:.1%} {'more' if gain > 0 else 'less'} likely"
    words = f"{factor:.2g}" if factor < 10 else f"{factor:.0f}"
    return f"{words} times {'as' if gain > 0 else 'less'} likely"


def size(count: float | int) -> str:
    """Bytes in words."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
