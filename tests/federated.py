"""What the tests of the federation share: sites in a temporary folder, and jobs for them."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from fedmixtures import MMD, FeasibleSet, GTVMin
from fedmixtures.federation.in_process import InProcessRounds
from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.node.budgets import ReleaseBudget
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.job_program import make_job, program_of, starting_mixture
from fedmixtures.federation.node.node import Node
from fedmixtures.federation.node.site import Limits, SiteConfig
from fedmixtures.federation.rounds import hello, with_parcels
from fedmixtures.federation.wire.frames import request
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import SiteKey
from fedmixtures.methods.protocol import Protocol
from fedmixtures.mixture.mixture import Mixture

SITES = ("aachen", "bergen", "cork", "delft")
EDGES = (
    ("aachen", "bergen", 1.0),
    ("bergen", "cork", 0.5),
    ("cork", "delft", 2.0),
    ("aachen", "delft", 1.0),
)
WIDE_OPEN = Gate(0, 0, rounding=0.0)
"""A gate that lets everything through, for tests of other things."""
UNROUNDED = Gate(rounding=0.0)
"""The gate without rounding: silos and engine agree to the last bit."""
PLENTY = ReleaseBudget(max_jobs=10_000, max_models=10**6)
RESEARCHER = "researcher"


def site_rows(sizes=(160, 160, 90, 160), d: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of every site: three groups of equal size, at nearly the same places everywhere."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((3, d))
    centres[1, 0] = centres[2, -1] = 5.0
    rows = {}
    for name, m in zip(SITES, sizes, strict=True):
        own = centres + 0.4 * rng.standard_normal(centres.shape)
        rows[name] = own[np.arange(m) % 3] + rng.standard_normal((m, d))
    return rows


def a_job(method=None, **entries) -> Job:
    """A job for the four sites."""
    given = {
        "name": "test",
        "n_components": dict.fromkeys(SITES, 3),
        "edges": EDGES,
        "features": ("x", "y"),
        "n_rounds": 10,
        "seed": 3,
    }
    method = method or GTVMin(MMD(), feasible=FeasibleSet())
    return make_job(method, **(given | entries))


class Sites:
    """Nodes of a federation, which can be killed and started again."""

    def __init__(self, folder: Path, rows: dict, gate: Gate | None = None, people=None,
                 releases: ReleaseBudget = PLENTY, **limits):  # fmt: skip
        self.folder, self.rows, self.people = folder, rows, people or {}
        self.gate, self.releases = gate or UNROUNDED, releases
        self.limits = Limits(**limits)
        self.keys = {name: SiteKey.generate() for name in (*rows, RESEARCHER)}
        sites = {name: self.keys[name].public for name in rows}
        self.roster = Roster(sites, {RESEARCHER: self.keys[RESEARCHER].identity})
        self.nodes = {name: self.started(name) for name in rows}

    def signed(self, job: Job) -> SignedJob:
        """The job as the researcher signs it."""
        return SignedJob.by(RESEARCHER, self.keys[RESEARCHER], job)

    def hello(self, job: Job):
        """The request that shows the job to a site."""
        return hello(self.signed(job))

    def started(self, name: str) -> Node:
        """A new process's view of a site: nothing but what is on disk."""
        columns = tuple(f"x{i}" for i in range(self.rows[name].shape[1]))
        config = SiteConfig(
            name=name,
            data=self.folder / f"{name}.csv",
            columns=columns,
            key=self.folder / "key",
            roster=self.folder / "roster",
            state=self.folder / name,
            limits=self.limits,
            gate=self.gate,
            releases=self.releases,
        )
        support = Support(self.rows[name], self.people.get(name))
        return Node(config, self.keys[name], self.roster, support)

    def rounds(self, job: Job) -> InProcessRounds:
        """A job between the nodes that are there."""
        return InProcessRounds(self.nodes, self.signed(job))

    def run(self, job: Job) -> InProcessRounds:
        """Run a job from wherever the nodes stand to its end."""
        exchange = self.rounds(job)
        exchange.run()
        return exchange

    def results(self, job: Job) -> dict[str, Mixture]:
        """Final mixtures, as the sites hold them."""
        return {name: node.sessions[job.key].result() for name, node in self.nodes.items()}


def step_frame(exchange: InProcessRounds, name: str, t: int):
    """The request of round `t` for one node, with all that waits for it."""
    frame = request("step", job=exchange.job.key, round=t)
    return with_parcels(frame, exchange.parcels_for(name))


def engine_solution(job: Job, rows: dict, block_size: int | None):
    """The same job by the in-process engine."""
    from fedmixtures.data.node_data import NodeData
    from fedmixtures.engine.solve import solve
    from fedmixtures.graph import from_edges

    labels = tuple(sorted(rows))
    X = np.concatenate([rows[name] for name in labels])
    data = NodeData.from_rows(X, np.repeat(labels, [len(rows[name]) for name in labels]))
    program = program_of(job)
    network = from_edges(list(job.edges), labels)
    if isinstance(program, Protocol):
        return solve(program, data, network, n_components=job.most_components, seed=job.seed)
    how = {"n_rounds": job.n_rounds, "seed": job.seed, "block_size": block_size}
    theta = Mixture.stack([starting_mixture(job, program, n, rows[n]) for n in labels])
    return solve(program, data, network, theta, **how)


def same_bits(a: Mixture, b: Mixture) -> bool:
    """Whether two mixtures are equal to the last bit."""
    return all(np.array_equal(x, y) for x, y in zip(a.parts, b.parts, strict=True))


def log_lines(folder: Path, name: str) -> list[dict]:
    """The local log of a site."""
    text = (folder / name / "log.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def record(name: str, *, seed: int | None = None, **figures) -> None:
    """Keep what a run measured, where `make federation` asks for it (``FEDERATION_RESULTS``)."""
    folder = os.environ.get("FEDERATION_RESULTS")
    if not folder:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    about = {
        "command": f"make federation ONLY={test.split('::')[-1].split('[')[0]}",
        "test": test,
        "seed": seed,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": versions(),
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
    }
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, **figures}, indent=2, sort_keys=True) + "\n")


def versions() -> dict[str, str]:
    """Versions of what takes part."""
    found = {"python": platform.python_version()}
    for name in ("fedmixtures", "jax", "numpy", "nvflare", "cryptography", "dp-accounting"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
