"""Trust-then-Pool as sites run it, with gate, rounding and masks, in one process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solve import solve
from fedmixtures.federation.in_process import InProcessRounds
from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.job_program import make_job
from fedmixtures.federation.node.node import AnySession, Node
from fedmixtures.federation.node.site import Limits, SiteConfig
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import SiteKey
from fedmixtures.graph.network import Network, as_network
from fedmixtures.methods.base import Levels
from fedmixtures.methods.trust_then_pool import TrustThenPool
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks.csv_tables import split
from reproduction.tasks.situation import situation

MEMORY = Path("/dev/shm")
"""Where sites keep their state, if there is such a place: they sync after every message."""
RESEARCHER = "researcher"


class Problem(NamedTuple):
    """Rows of every site, rows to judge by, and who listens to whom."""

    rows: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    network: Network
    n_components: int


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[dict[str, Any]]:
    """The numbers of each run, in their order."""
    return (one(settings, seed) for settings, seed in runs)


def one(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Held-out log-density, mean over sites: of the plain method, or behind a gate."""
    problem = problem_of(settings, seed)
    gate = settings["gate"]
    densities = plain(problem, seed) if gate is None else deployed(problem, seed, gate)
    ll = [float(densities[name].log_density(x).mean()) for name, x in problem.test.items()]
    return {"ll": float(np.mean(ll)), "nodes": ll, "status": "completed"}


def problem_of(settings: dict[str, Any], seed: int) -> Problem:
    """A table of the folder on a full graph, or a drawn situation."""
    if "table" in settings["data"]:
        found = split(settings["data"], seed)
        parts = (found.X, found.nodes), (found.X_test, found.nodes_test)
        graph: Any = "full"
    else:
        drawn = situation(settings, seed)
        own = drawn.scenario
        parts = (own.X, own.nodes), (own.X_validation, own.nodes_validation)
        graph = drawn.network
    labels = list(np.unique(parts[0][1]))
    names = [f"site-{i:02d}" for i in range(len(labels))]
    by_name = lambda x, node: {n: x[node == v] for n, v in zip(names, labels, strict=True)}
    if isinstance(graph, Network):
        graph = Network(tuple(names), graph.source, graph.target, graph.weight)
    network = as_network(graph, tuple(names))
    return Problem(by_name(*parts[0]), by_name(*parts[1]), network, settings["n_components"])


def plain(problem: Problem, seed: int) -> dict[Label, Mixture]:
    """Every site's density by the method in one process."""
    names = list(problem.rows)
    labels = np.repeat(names, [len(x) for x in problem.rows.values()])
    data = NodeData.from_rows(np.concatenate(list(problem.rows.values())), labels)
    network = problem.network.aligned(data.labels)
    found = solve(TrustThenPool(), data, network, n_components=problem.n_components, seed=seed)
    assert found.levels is not None
    return dict(zip(data.labels, map(found.levels.density.at, range(len(names))), strict=True))


def deployed(problem: Problem, seed: int, gate: Mapping[str, Any]) -> dict[str, Mixture]:
    """Every site's density by the default job between sites with this gate."""
    levels = deployed_levels(problem, seed, gate)
    return {name: of_site.density.at(0) for name, of_site in levels.items()}


def deployed_levels(problem: Problem, seed: int, gate: Mapping[str, Any]) -> dict[str, Levels]:
    """What each site knows at the end."""
    network, rows = problem.network, problem.rows
    ends = zip(network.source, network.target, network.weight, strict=True)
    first = next(iter(rows.values()))
    job = make_job(
        TrustThenPool(),
        name="price",
        n_components=dict.fromkeys(rows, problem.n_components),
        edges=tuple((network.labels[a], network.labels[b], float(w)) for a, b, w in ends),
        features=tuple(f"x{i}" for i in range(first.shape[1])),
        seed=seed,
    )
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        nodes, signed = _sites(Path(folder), rows, Gate(**gate), job)
        InProcessRounds(nodes, signed).run()
        sessions = {name: node.sessions[job.key] for name, node in nodes.items()}
    return {name: _levels(session) for name, session in sessions.items()}


def _levels(session: AnySession) -> Levels:
    return cast(Any, session).outcome.levels  # of a protocol of levels that is over


def _sites(
    folder: Path, rows: Mapping[str, np.ndarray], gate: Gate, job: Job
) -> tuple[dict[str, Node], SignedJob]:
    keys = {name: SiteKey.generate() for name in (*rows, RESEARCHER)}
    roster = Roster(
        {name: keys[name].public for name in rows}, {RESEARCHER: keys[RESEARCHER].identity}
    )
    nodes = {}
    for name, x in rows.items():
        config = SiteConfig(
            name=name,
            data=folder / name,
            columns=job.features,
            key=folder / "key",
            roster=folder / "roster",
            state=folder / name,
            limits=Limits(methods=("trust",)),
            gate=gate,
        )
        nodes[name] = Node(config, keys[name], roster, Support(x))
    return nodes, SignedJob.by(RESEARCHER, keys[RESEARCHER], job)
