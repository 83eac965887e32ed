"""The published numbers, and how ours compare with them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np

from fedmixtures.metrics import Interval

Verdict = Literal["inside", "overlapping", "outside", "diverged", ""]

FORM = re.compile(
    r"^(?P<median>-?\d+(\.\d+)?)?\s*(\[(?P<low>-?\d+(\.\d+)?),\s*(?P<high>-?\d+(\.\d+)?)\])?$"
)


@dataclass(frozen=True)
class Published:
    """A number as the paper prints it."""

    text: str
    median: float | None
    low: float
    high: float
    decimals: int

    @classmethod
    def parse(cls, text: str) -> Published:
        """From ``median [low, high]``, a median alone or an interval alone."""
        match = FORM.match(text)
        if match is None or not text:
            raise ValueError(f"`text` is {text!r}. Write '1.5', '[1.2, 1.7]' or '1.5 [1.2, 1.7]'.")
        printed = [part for part in match.group("median", "low", "high") if part is not None]
        decimals = max(len(part.partition(".")[2]) for part in printed)
        median = None if match["median"] is None else float(match["median"])
        low, high = (float(match[name] or match["median"]) for name in ("low", "high"))
        return cls(text, median, low, high, decimals)

    def verdict(self, ours: Interval) -> Verdict:
        """Where our median and interval lie, rounded to the digits the paper prints.

        Inside: our median lies in the paper's interval (equals its value where it prints none).
        Overlapping: it does not, but the two intervals meet. Outside: they do not.
        """
        if not np.isfinite(ours.median):
            return "diverged"
        median, low, high = (round(value, self.decimals) for value in ours)
        if self.low <= median <= self.high:
            return "inside"
        meets = np.isfinite([low, high]).all() and low <= self.high and self.low <= high
        return "overlapping" if meets else "outside"


def published(experiment: str, problem: str, row: str, metric: str) -> Published | None:
    """The number the paper prints for this cell, if it prints one."""
    values = _all().get(experiment, {}).get("values", {})
    text = values.get(problem, {}).get(row, {}).get(metric)
    return None if text is None else Published.parse(text)


def place(experiment: str) -> str:
    """Where in the paper the numbers of an experiment stand."""
    return _all().get(experiment, {}).get("place", "")


def order(discrepancy: str) -> str:
    """The leading order of the per-edge cost that Table 1 states."""
    return _all()["table1"]["orders"][discrepancy]


@cache
def _all() -> dict:
    path = files("reproduction").joinpath("published.toml")
    return tomllib.loads(path.read_text("utf-8"))
