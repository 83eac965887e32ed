"""The commands of the runbooks (docs/federation.md, hospital.md, researcher.md) to the letter."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

from federated import site_rows
from fedmixtures.estimators.scale import Scale

DOCS = Path(__file__).parents[1] / "docs"
PAGES = "federation.md", "hospital.md", "researcher.md"
HOSPITALS = ("hospital-1", "hospital-2", "hospital-3")
RESEARCHER = "researcher@uni.example"
UNITS = Scale(np.array([50.0, 25.0]), np.array([20.0, 5.0]))
ROWS = {
    name: rows * UNITS.factor / 2 + UNITS.shift
    for name, rows in zip(HOSPITALS, site_rows((60, 60, 60, 60)).values(), strict=False)
}
"""Rows in years and kilograms per square metre: three groups, alike at all hospitals."""


def text() -> str:
    """The steps of all pages, in their order, and what stands between them at the end."""
    pages = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
    parts = re.split(r"^(?=## )", pages, flags=re.M)
    step = lambda part: int((re.match(r"## Step (\d+)", part) or [0, 99])[1])
    return "".join(sorted(parts, key=step))


def blocks() -> list[tuple[str, list[list[str]]]]:
    """Where each block of commands is called, and its commands, in the order of the steps."""
    found = re.findall(r"^```\n# at (?:the )?([\w-]+).*\n((?:.*\n)+?)```$", text(), re.M)
    commands = lambda block: shlex.split(block.replace("\\\n", " ").replace("\n", " ; "))
    return [(place, split(commands(block))) for place, block in found]


def split(words: list[str]) -> list[list[str]]:
    """Commands of a line with semicolons."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word == ";":
            lines.append([])
        else:
            lines[-1].append(word)
    return [line for line in lines if line]


def as_at(hospital: str, words: list[str]) -> list[str]:
    """A command of hospital-1 as another one puts it: its own name, and the others in order."""
    others = [name for name in HOSPITALS if name != hospital]
    name = dict(zip(HOSPITALS, (hospital, *others), strict=True))
    return [re.sub(r"hospital-\d", lambda found: name[found[0]], word) for word in words]


def job() -> str:
    """The job."""
    (found,) = re.findall(r'^```toml\n(name = "bmi-groups"\n(?:.*\n)+?)```$', text(), re.M)
    return found


def unit() -> str:
    """The systemd unit."""
    (found,) = re.findall(r"^```ini\n((?:.*\n)+?)```$", text(), re.M)
    return found
