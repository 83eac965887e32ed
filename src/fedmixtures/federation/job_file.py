"""The researcher's job as a TOML file: what is to be fitted, by whom, and who listens to whom."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from fedmixtures.federation.job import Job
from fedmixtures.federation.node.job_program import make_job
from fedmixtures.mixture.feasible import FeasibleSet

REQUIRED = ("name", "features", "sites", "edges", "components")
OPTIONAL = ("seed", "max_stale", "collector", "privacy")
OF_METHOD = ("method", "covariance", "settings", "feasible")
ENTRIES = (*REQUIRED, *OPTIONAL, *OF_METHOD, "rounds", "shift", "scale")


def read_job(path: str | Path) -> Job:
    """The job of a file; every entry is checked."""
    from fedmixtures.estimators.resolve import resolve_method

    path = Path(path)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{str(path)!r} is no valid TOML: {error}.") from None
    unknown = sorted(set(plain) - set(ENTRIES))
    if unknown:
        raise ValueError(f"{str(path)!r} has an unknown entry {unknown[0]!r}. Known: {ENTRIES}.")
    missing = [entry for entry in REQUIRED if entry not in plain]
    if missing:
        raise ValueError(f"{str(path)!r} lacks the entry {missing[0]!r}.")
    method = resolve_method(plain.get("method", "gtv-mmd"), plain.get("covariance", "full"))
    settings: dict[str, Any] = dict(plain.get("settings", {}))
    if hasattr(method, "feasible"):
        settings["feasible"] = FeasibleSet(**plain.get("feasible", {}))
    method = dataclasses.replace(method, **settings)
    components = plain["components"]
    if not isinstance(components, dict):
        components = dict.fromkeys(plain["sites"], components)
    optional = {entry: plain[entry] for entry in OPTIONAL if entry in plain}
    return make_job(
        method,
        name=plain["name"],
        n_components=components,
        edges=tuple((a, b, float(w[0]) if w else 1.0) for a, b, *w in plain["edges"]),
        features=tuple(plain["features"]),
        n_rounds=plain.get("rounds", 40),
        shift=tuple(plain.get("shift", ())),
        scale=tuple(plain.get("scale", ())),
        **optional,
    )
