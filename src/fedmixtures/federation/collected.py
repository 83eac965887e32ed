"""What a researcher makes of what sites have released: plain numbers, and a run of these sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmixtures.engine.solution import Solution, Traffic
from fedmixtures.estimators.names import aligned
from fedmixtures.estimators.persist import save
from fedmixtures.federation.job import Job
from fedmixtures.federation.node.job_program import method_of
from fedmixtures.federation.node.kept import units_of
from fedmixtures.graph import from_edges
from fedmixtures.io.runs import RunFolder
from fedmixtures.methods.registry import name_of
from fedmixtures.mixture.mixture import Mixture


def in_columns(job: Job, models: Mapping[str, Mixture | None]) -> dict[Any, Mixture]:
    """The mixtures of sites that released one, in the units of the columns."""
    units = units_of(job)
    given = {site: models.get(site) for site in job.sites}
    return {site: units.original(m.to_numpy()) for site, m in given.items() if m is not None}


def as_plain(job: Job, models: Mapping[str, Mixture | None]) -> dict[str, Any]:
    """Mixtures of the sites as lists of numbers, without empty components, to write as JSON."""
    names = "weights", "means", "covariances"
    return {
        site: {n: part.tolist() for n, part in zip(names, model.trimmed().parts, strict=True)}
        for site, model in in_columns(job, models).items()
    }


def write_run(folder: Path, job: Job, models: Mapping[str, Mixture | None]) -> Path:
    """Write the folder `run` with the model of these sites; returns it."""
    mixtures = in_columns(job, models)
    labels = tuple(mixtures)
    ends = [(a, b, w) for a, b, w in job.edges if a in mixtures and b in mixtures]
    network = from_edges(ends, labels)
    traffic = Traffic(0, dict.fromkeys(labels, 0), simulated=False)
    solution = aligned(Solution.collected(mixtures, 0, traffic), network)
    run = RunFolder(folder / "run")
    run.path.mkdir(exist_ok=True)
    method = method_of(job)
    params = {"n_components": dict(job.n_components), "random_state": job.seed, "method": method}
    save(run.path, solution, network, params, feature_names=list(job.features))
    run.write_config(
        {
            "data": [],
            "features": list(job.features),
            "method": name_of(method) or type(method).__name__,
            "k": str(job.most_components),
            "seed": job.seed,
            "holdout": 0.0,
            "collected": {"job": job.name, "key": job.key},
        }
    )
    return run.path
