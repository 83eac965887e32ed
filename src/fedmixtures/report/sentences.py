"""What the page says first: did listening help, whose part was it, against which alternative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.engine.solution import ELSEWHERE

WHOSE = {
    "near": "trusted neighbours",
    "personal": "everyone's mixture moved to own rows",
    "group": "groups of alike nodes",
    "everyone": "everyone's mixture",
}
"""Levels of trust beside a node's own, in words."""
BASELINES = {"local": "own rows alone", "pooled": "all rows pooled"}


def title(content: dict[str, Any]) -> str:
    """What the page is of: how many clusters, rows and nodes."""
    shape, atlas = content["shape"], content.get("atlas")
    if atlas is None:
        return headline(content)
    of = lambda count, word: f"{count:,} {word}{'s' * (count != 1)}"
    rows = f"{of(len(atlas['names']), 'cluster')} in {of(shape['rows'], 'row')}"
    if is_of_a_site(content):
        return f"{rows} of {content['nodes']['label'][0]}"
    return rows if shape["nodes"] == 1 else f"{rows} of {of(shape['nodes'], 'node')}"


def where(content: dict[str, Any]) -> str:
    """Whether clusters are found everywhere, in a sentence."""
    atlas, n = content.get("atlas"), content["shape"]["nodes"]
    if atlas is None or n == 1:
        return ""
    counts = [len(nodes) for nodes in atlas["nodes"]]
    if len(counts) == 1:
        return "There is one kind of rows."
    everywhere, alone = sum(c == n for c in counts), sum(c == 1 for c in counts)
    if everywhere == len(counts):
        return "Every cluster is found at every node."
    parts = [
        f"{everywhere or 'None'} of them {'is' if everywhere == 1 else 'are'} found at every node"
    ]
    if alone:
        parts.append(f"{alone} at one node alone")
    return ", ".join(parts) + "."


def headline(content: dict[str, Any]) -> str:
    """Whether listening helped, in one sentence."""
    scores, n = content["scores"], content["shape"]["nodes"]
    if is_of_a_site(content):
        heard = "found with other sites" if listened(content) else "of its own rows alone"
        return f"The mixture of {content['nodes']['label'][0]}, {heard}."
    if n == 1:
        return "A mixture of one node's rows."
    if not listened(content):
        return f"One mixture for each of {n:,} nodes. Nobody listened to anybody."
    if not scores["known"]:
        return f"One mixture for each of {n:,} nodes."
    gained, compared = scores["gained"], scores["compared"]
    who, other = whose(content), BASELINES[baseline(content)]
    of = f"{compared:,} node{'s' * (compared != 1)}"
    _, low, high = scores["gain"]
    if low is not None and low > 0:
        share = f"all {of}" if gained == compared else f"{gained:,} of {of}"
        clear = scores["helped"]
        noise = "" if clear == gained else f", {clear or 'none'} of them beyond noise"
        return f"{who} helped: {share} gained over {other}{noise}."
    if high is not None and high < 0:
        lost = compared - gained
        share = f"all {of}" if lost == compared else f"{lost:,} of {of}"
        return f"{other[0].upper()}{other[1:]} would have been better: {share} lost by listening."
    return f"{who} made no clear difference: {gained:,} of {of} gained over {other}."


def baseline(content: dict[str, Any]) -> str:
    """What gains are taken against; pages of earlier versions know own rows alone."""
    return content["scores"].get("baseline", "local")


def whose(content: dict[str, Any]) -> str:
    """Who was listened to: the level that counts most beside a node's own, at the head."""
    levels = content.get("levels")
    if levels is not None:
        return capital(heaviest(levels["names"], levels["mean"]))
    hub = content["traffic"]["recipients"] == "hub"
    return f"Listening to {'the others' if hub else 'neighbours'}"


def heaviest(names: Any, weights: Any) -> str:
    """The level that counts most beside a node's own, in words."""
    others = [i for i, name in enumerate(names) if name != "own"]
    most = others[int(first_greatest(np.array([weights[i] for i in others]), scale=1.0))]
    return WHOSE.get(names[most]) or str(names[most])


def capital(words: str) -> str:
    """With a capital letter."""
    return words[0].upper() + words[1:]


def is_of_a_site(content: dict[str, Any]) -> bool:
    """Whether the page is of one site, that was fitted with others which are not on it."""
    return content["traffic"]["recipients"] == ELSEWHERE


def listened(content: dict[str, Any]) -> bool:
    """Whether any node used anything of another."""
    traffic, levels = content["traffic"], content.get("levels")
    far = is_of_a_site(content) or traffic["recipients"] == "hub"
    if traffic["total"] == 0 or not (far or content["shape"]["edges"]):
        return False
    if levels is not None:  # what counts beside what a node knows by itself
        means = zip(levels["names"], levels["mean"], strict=True)
        return any(weight > 0 for name, weight in means if name != "own")
    return content["edges"]["n_trusted"] != 0


def story(content: dict[str, Any]) -> str:
    """The headline in numbers."""
    scores = content["scores"]
    if is_of_a_site(content):
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
        told = zip(content["nodes"]["pooled"], content["nodes"]["network"], strict=True)
        better = sum(None not in (pooled, own) and pooled > own for pooled, own in told)
        pooled = (
            f" One mixture of all rows would be better at {better:,} of them." if better else ""
        )
        return f"{why}, so every node learned from its own rows alone.{pooled}"
    if not scores["known"]:
        how = content.get("how_to_hold_out", "Fit with --holdout 0.2 to find out.")
        return (
            "No rows were held out, or there was nothing to compare with, so this page cannot say "
            f"whether listening helped. {how}"
        )
    gain, low, high = scores["gain"]
    minus = lambda value: f"{value:+.2f}".replace("-", "−")
    between = "" if low is None else f" (95% interval {minus(low)} to {minus(high)})"
    helped, lost = scores["helped"], scores["lost"]
    one_by_one = (
        f" Taken one by one, {helped or 'no'} node{'s' * (helped != 1)} gained beyond noise and "
        f"{lost or 'none'} lost."
    )
    other = {
        "local": "with the node's own rows alone, the best it could do without the others",
        "pooled": "in one mixture of all rows pooled, the better alternative at most nodes",
    }[baseline(content)]
    if content.get("levels") is None and baseline(content) == "local":
        other = "with the node's own rows alone"
    return (
        f"A held-out row of the median node became {_likelier(gain)} under its node's mixture than "
        f"{other}: {minus(gain)} nats{between}.{one_by_one}"
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
