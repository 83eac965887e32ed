"""A job by NVFlare's simulator: the same executor, controller and site files, without TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fedmixtures.federation.driving import open_results
from fedmixtures.federation.job import SignedJob
from fedmixtures.federation.nvflare.controller import OUTCOME, RESULTS
from fedmixtures.federation.nvflare.kits import CONTROLLER, EXECUTOR, SITE_FILE, write_job
from fedmixtures.federation.one_machine import COLLECTOR, write_site
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import SiteKey


def simulate(folder: Path, job, rows) -> dict:
    """Final models as the collector opens them."""
    keys = {name: SiteKey.generate() for name in (*rows, COLLECTOR)}
    sites = {name: keys[name].public for name in rows}
    roster = Roster(sites, {COLLECTOR: keys[COLLECTOR].identity})
    workspace = folder / "workspace"
    local = workspace / "local"
    local.mkdir(parents=True)
    allowed = {"format_version": 2, "class_allow_list": [CONTROLLER, EXECUTOR]}
    (local / "resources.json").write_text(json.dumps(allowed))
    for name, own in rows.items():
        path = local / f"{name}.{SITE_FILE}"
        sections = {"release_gate": {"rounding": 0.0}}
        write_site(folder / name, path, name, keys[name], roster, own, job.features, sections)
    write_job(folder / "job", SignedJob.by(COLLECTOR, keys[COLLECTOR], job), len(rows))
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(folder / "job")]
    options = ["-w", str(workspace), "-c", ",".join(rows), "-t", str(len(rows))]
    flags = f"{os.environ['XLA_FLAGS']} --xla_cpu_multi_thread_eigen=false"
    with open(folder / "simulator.log", "wb") as log:
        subprocess.run(
            command + options, stdout=log, stderr=log, cwd=folder, check=True, timeout=300,
            env={**os.environ, "XLA_FLAGS": flags},
        )  # fmt: skip
    (outcome,) = workspace.rglob(OUTCOME)
    assert json.loads(outcome.read_text())["outcome"] == "completed"
    results = {path.stem: path.read_bytes() for path in outcome.parent.glob(f"{RESULTS}/*.fmx")}
    return open_results(job, results, keys[COLLECTOR], roster)
