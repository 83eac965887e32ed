"""What a site keeps of a job: its whole model, in a folder of its own, as a run that it can use.

Nothing of it leaves. It is in the units of the site's columns, with all levels and their weights;
a number of a cluster means the same at every site. `fedmixtures predict`, `score`, `report`,
`explain` and `adapt` take the folder, without any network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import in_order
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import ELSEWHERE, Solution, Traffic
from fedmixtures.estimators.names import aligned
from fedmixtures.estimators.persist import save
from fedmixtures.estimators.scale import Scale
from fedmixtures.estimators.solutions import EVERYONE, OWN
from fedmixtures.federation.job import Job
from fedmixtures.federation.node.gate import Support
from fedmixtures.federation.node.site import SiteConfig
from fedmixtures.federation.node.store import json_lines
from fedmixtures.graph import from_edges
from fedmixtures.io.runs import MODEL, RunFolder
from fedmixtures.methods.base import Diagnostics, Method, Outcome
from fedmixtures.methods.registry import name_of
from fedmixtures.mixture.mixture import Mixture

FOLDER = "models"
"""In the site's state folder; one folder for each job."""


def folder_of(config: SiteConfig, job: Job) -> Path:
    """Where a site keeps its model of a job."""
    return config.state / FOLDER / f"{job.name}-{job.key[:12]}"


def models_of(config: SiteConfig) -> list[Path]:
    """Folders of all jobs that have left a model here, the latest last."""
    found = (config.state / FOLDER).glob(f"*/{MODEL}")
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def units_of(job: Job) -> Scale:
    """What a job's rows are shifted and divided by."""
    d = len(job.features)
    return Scale(np.array(job.shift or [0.0] * d), np.array(job.scale or [1.0] * d))


def keep(config: SiteConfig, session: Any, method: Method, left: str) -> Path:
    """Write what a session has come to; returns the folder. `left` says what left the site."""
    job, support, outcome = session.job, session.at_home, session.outcome
    run = RunFolder(folder_of(config, job))
    run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    solution = _solution(config, job, support, outcome)
    network = from_edges([], [config.name])
    k = job.n_components[config.name]
    params = {"n_components": k, "random_state": job.seed, "method": method}
    save(run.path, solution, network, params, feature_names=list(config.columns))
    about = {"name": config.name, "job": job.name, "key": job.key, "left": left}
    run.write_config(
        {
            "data": [str(config.data.absolute())],
            "features": list(config.columns),
            "method": name_of(method) or type(method).__name__,
            "k": str(k),
            "seed": job.seed,
            "holdout": 0.0,
            "site": about | {"words": words(job, config.name, session, solution)},
        }
    )
    return run.path


def _solution(config: SiteConfig, job: Job, support: Support, outcome: Outcome) -> Solution:
    """The site's part of what was found, in the units of its columns."""
    site, units = config.name, units_of(job)
    data = NodeData.from_rows(support.rows, np.full(len(support.rows), site), support.weights)
    theta, traffic = Mixture(*(np.asarray(p)[0] for p in outcome.theta.parts)), sent_by(config, job)
    solution = replace(
        Solution.collected({site: theta}, traffic.n_rounds, traffic),
        levels=outcome.levels,
        rows=data.total_weights(),
        diagnostics=Diagnostics(dict(outcome.nodes)) if outcome.nodes else None,
    ).changed(units.original, units.log_volume(data))
    levels = solution.levels
    if levels is None or EVERYONE not in levels.names:
        return solution
    # All sites know everyone's mixture, so that it can number the clusters of all of them.
    like = levels.theta.at((levels.names.index(EVERYONE), 0))
    like = like.relabel(in_order(-np.asarray(like.weights), scale=1.0))
    return aligned(solution, from_edges([], [site]), like)


def sent_by(config: SiteConfig, job: Job) -> Traffic:
    """Bytes that left the site for a job, by its own log."""
    lines = json_lines(config.state / "log.jsonl")
    sent = [line for line in lines if line["event"] == "sent" and line["job"] == job.key]
    sizes = [line["bytes"] for line in sent]
    rounds = max([0, *(line["round"] for line in sent)])
    total: dict[Any, int] = {config.name: sum(sizes)}
    return Traffic(max([0, *sizes]), total, ELSEWHERE, rounds, simulated=False)


def words(job: Job, site: str, session: Any, solution: Solution) -> list[str]:
    """The site's part in a job for people to read: with whom, whom it trusts, what it relies on."""
    others = [name for name in job.sites if name != site]
    lines = [f"{site} took part in the job {job.name!r} with {_checks.listed(others, 12)}."]
    outcome, levels = session.outcome, solution.levels
    if "trusted" in outcome.edges:
        lines += _trust(session.requests.edges, outcome.edges)
    if "group" in outcome.nodes:
        label = int(outcome.nodes["group"][0])
        members = next((m for m, of in session.requests.sets.items() if of == label), frozenset())
        group = _checks.listed(sorted(members - {site}), 12) if len(members) > 1 else "itself alone"
        lines.append(f"Its group: {group}.")
    if levels is not None:
        shares = zip(levels.names, levels.weights[0], strict=True)
        lines.append("Its density: " + ", ".join(f"{w:.0%} {name}" for name, w in shares) + ".")
        if OWN in levels.names and solution.rows is not None:
            alone = levels.prequential[0, 1 + levels.names.index(OWN)]
            gain = (alone - levels.prequential[0, 0]) / solution.rows[0]
            lines.append(
                "Each row predicted from the rows before it: all levels together give it "
                f"{gain:+.3f} nats beside its own rows alone."
            )
    return lines


def _trust(neighbours: Any, edges: Mapping[str, np.ndarray]) -> list[str]:
    """Whom a site trusts among its neighbours, and by what evidence."""
    trusted = np.asarray(edges["trusted"], dtype=bool)
    named = lambda which: _checks.listed([n for n, t in zip(neighbours, which, strict=True) if t])
    lines = [f"It trusts {named(trusted) or 'no neighbour'}."]
    if not trusted.all():
        lines.append(f"It does not trust {named(~trusted)}.")
    evidence = {name: of for name, of in edges.items() if np.asarray(of).dtype.kind == "f"}
    for place, name in enumerate(neighbours):
        told = ", ".join(f"{kind} {of[place]:.3g}" for kind, of in evidence.items())
        lines += [f"  {name!r}: {told}"] if told else []
    return lines
