"""How results were made: command, versions, machine, date."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from typing import Any

from fedmixtures import __version__
from fedmixtures.experiments.cells import DISTRIBUTIONS, code_version


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


def in_words(values: dict[str, Any], n_seeds: int) -> str:
    """One paragraph for a page."""
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    return (
        f"Made by `{values['command']}` on {values['date']}, seeds 0 to {n_seeds - 1}, "
        f"on {values['machine']}, with {versions} (code {values['code']})."
    )
