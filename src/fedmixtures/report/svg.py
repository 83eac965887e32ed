"""Small pieces of SVG: scales, ticks, lines. Colours come from the page's style sheet by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os.path import commonprefix

Number = float | int


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high` along a line from `start` to `end`."""

    low: Number
    high: Number
    start: Number
    end: Number

    def __call__(self, value: Number) -> Number:
        """Where a number stands."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[Number]:
        """Round numbers inside the axis."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = span / wanted
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def padded(values: Sequence[Number], share: float = 0.06) -> tuple[Number, Number]:
    """A range that holds the numbers, with some air around."""
    low, high = min(values), max(values)
    air = (high - low) * share or max(abs(high), 1.0) * 0.05
    return low - air, high + air


def number(value: Number) -> str:
    """A coordinate with two decimals, no more."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def tick_text(value: Number) -> str:
    """A number beside a tick."""
    if value == 0 or abs(value) < 1e-12:
        return "0"
    if abs(value) >= 10_000 or abs(value) < 0.001:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("-", "−")
    return f"{value:,.4g}".replace("-", "−")


def shortened(name: str, most: int = 24) -> str:
    """A name of at most so many letters: a long one loses its middle, since ends tell apart."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def told_apart(names: Sequence[str], most: int = 24) -> list[str]:
    """Names of at most so many letters; those that would look alike lose what they share."""
    short = {name: shortened(name, most) for name in names}
    for look in set(short.values()):
        alike = [name for name in short if short[name] == look]
        if len(alike) > 1:
            head, tail = commonprefix(alike), commonprefix([name[::-1] for name in alike])[::-1]
            first = head.rstrip().rfind(" ") + 1  # the last word they share stays
            last = len(tail) - max(tail.find(" "), 0)
            for name in alike:
                short[name] = shortened(f"…{name[first : len(name) - last]}…", most)
    return [short[name] for name in names]


def line(points: Sequence[tuple[Number, Number]]) -> str:
    """The path through these points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def label(x: Number, y: Number, words: str, css: str = "", anchor: str = "start") -> str:
    """A piece of text."""
    return (
        f'<text x="{number(x)}" y="{number(y)}" class="{css}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def figure(width: Number, height: Number, title: str, body: str, css: str = "") -> str:
    """A picture with a name for those who do not see it."""
    return (
        f'<svg class="{css}" viewBox="0 0 {number(width)} {number(height)}" role="img" '
        f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
