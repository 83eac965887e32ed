"""Results as files and pages: how they were made, one folder per experiment, one page for several.

``python -m reproduction.page docs/results/reproduction.md results`` replaces everything between
``<!-- results: NAME -->`` and ``<!-- end -->`` by what the run wrote, and leaves the rest alone.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmixtures import __version__
from reproduction import rendering
from reproduction.cells import DISTRIBUTIONS, code_version
from reproduction.config import BEYOND, NAMES, load
from reproduction.published import place
from reproduction.results import Result

QUICK_SEEDS = 3
MARKED = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(result: Result, module: ModuleType, output: Path) -> Path:
    """Tables, numbers and figure of one experiment into a folder of its name."""
    from reproduction import figures

    folder = output / result.experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    how = made(command(result))
    (folder / "result.json").write_text(rendering.to_json(result, how), "utf-8")
    (folder / "cells.csv").write_text(rendering.to_csv(result), "utf-8")
    fig = module.figure(result) if hasattr(module, "figure") else None
    if fig is not None:
        figures.save(fig, folder)
    picture = "\n\n![](figure.png)" if fig is not None else ""
    (folder / "table.md").write_text(page(result, module, how) + picture + "\n", "utf-8")
    return folder


def command(result: Result) -> str:
    """The command that gives this result."""
    own, n = result.experiment, len(result.seeds)
    how = "" if n == own.n_seeds else f" --seeds {n}"
    known = own.name in (*NAMES, *BEYOND)
    shortened = known and own == load(own.name).quickened()
    if shortened and (n == QUICK_SEEDS or (n == own.n_seeds and own != load(own.name))):
        how = " --quick"
    elif known and len(own.rows) < len(load(own.name).rows):
        how += f" --rows {' '.join(row.name for row in own.rows)}"
    return f"python -m reproduction {own.name}{how}"


def page(result: Result, module: ModuleType, how: dict) -> str:
    """The Markdown page of one experiment."""
    parts = [f"## {result.experiment.title}"]
    if place(result.experiment.name):
        parts.append(f"Published numbers: {place(result.experiment.name)}.")
    if count := rendering.counts(result):
        named = ", ".join(f"{number} {name}" for name, number in count.items())
        parts.append(f"Of {sum(count.values())} published cells: {named}.")
    parts += [module.markdown(result), made_in_words(how, result.seeds)]
    return "\n\n".join(parts)


def made(command: str) -> dict[str, Any]:
    """What to write beside every result."""
    versions = {name: metadata.version(name) for name in DISTRIBUTIONS}
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "code": code_version(),
        "versions": {
            "python": platform.python_version(),
            "fedmixtures": __version__,  # it need not be installed
            **versions,
        },
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def made_in_words(values: dict[str, Any], seeds: Sequence[int]) -> str:
    """One paragraph for a page."""
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    return (
        f"Made by `{values['command']}` on {values['date']}, seeds {seeds[0]} to {seeds[-1]}, "
        f"on {values['machine']}, with {versions} (code {values['code']})."
    )


def refresh(page: Path, results: Path) -> list[str]:
    """Bring the page up to date; returns the names of the experiments in it."""
    found = []
    prefix = os.path.relpath(results, page.parent)

    def section(match: re.Match) -> str:
        name = match["name"]
        table = results / name / "table.md"
        if not table.exists():
            return f"{match[1]}Not run yet: `python -m reproduction {name}`.\n{match[3]}"
        found.append(name)
        text = table.read_text("utf-8").strip()
        # The page has a heading of its own for every experiment.
        text = re.sub(r"^## .*\n+", "", text)
        text = text.replace("](figure.png)", f"]({prefix}/{name}/figure.png)")
        return f"{match[1]}{text}\n{match[3]}"

    page.write_text(MARKED.sub(section, page.read_text("utf-8")), "utf-8")
    return found


if __name__ == "__main__":
    print(*refresh(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
