"""Numbers as a person writes them."""

from __future__ import annotations

import math

FINEST = 6
"""Decimals from which on a number is written with a power of ten."""


def decimals(spread: float) -> int:
    """Decimals that tell rows apart: the last digit is at most a tenth of the feature's spread."""
    if not spread > 0 or not math.isfinite(spread):
        return 2
    return max(0, 1 - math.floor(math.log10(spread) + 1e-9))


def plain(value: float | None, places: int) -> str:
    """A value with so many decimals: "4,207", "−0.35"."""
    if value is None:
        return "–"
    if places > FINEST:
        return f"{value:.2g}".replace("-", "−")
    text = f"{value:,.{places}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def percent(share: float | None) -> str:
    """A share in words; one that is not zero never reads as zero, one that is not all as all."""
    if share is None:
        return "–"
    if 0 < share < 0.01:
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 - 1e-9 else f"{share:.0%}"


def share(part: float) -> str:
    """A share for a table: "41%", "<1%", ">99%"."""
    return percent(part).replace("under ", "<").replace("over ", ">")


def between(low: float | None, high: float | None) -> str:
    """An interval of shares: "38 to 48%"."""
    if low is None or high is None:
        return ""
    return f"{100 * low:.0f} to {100 * high:.0f}%"
