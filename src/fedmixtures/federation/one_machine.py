"""A real federation on one machine: a hub and sites as processes, with mutual TLS between them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tomli_w

from fedmixtures.federation.carriers import NVFLARE, driver_of
from fedmixtures.federation.driving import FitRecord, Listener, open_results
from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.node.site import SiteConfig
from fedmixtures.federation.nvflare.kits import (
    ADMIN,
    EXECUTOR,
    HUB,
    SITE_FILE,
    provision,
    secure,
    secure_hub,
)
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import SiteKey
from fedmixtures.io.storage import write_durably

COLLECTOR = "researcher"


class OneMachine:
    """Provision, start, fit, stop; everything lies in one folder.

    Parameters
    ----------
    folder
        New folder for kits, keys, rows and states.
    rows
        Rows of every site; written to a file of that site, and used from there.
    sections
        Entries of sections of the sites' files, such as ``limits`` or ``release_gate``.
    carrier
        ``nvflare`` or ``grpc``.
    """

    def __init__(
        self,
        folder: Path,
        rows: Mapping[str, np.ndarray],
        features: tuple[str, ...],
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        listener: Listener | None = None,
        carrier: str = NVFLARE,
    ):
        folder = folder.absolute()  # every party runs in a folder of its own
        self.folder, self.sites, self.listener = folder, tuple(rows), listener
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # all private keys are in here
        self.kits = provision(folder, self.sites, free_port())
        secure_hub(self.kits / HUB)
        keys = {name: SiteKey.generate() for name in (*rows, COLLECTOR)}
        self.key = keys[COLLECTOR]
        sites = {name: keys[name].public for name in rows}
        self.roster = Roster(sites, {COLLECTOR: self.key.identity})
        for name in rows:
            path = self.kits / name / "local" / SITE_FILE
            own = folder / "sites" / name
            write_site(own, path, name, keys[name], self.roster, rows[name], features, sections)
            secure(self.kits / name, EXECUTOR)
        # One thread each: they share the machine, and rounds are small. Compiled as here.
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
        thrifty = {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
        # What one has compiled, the next need not, nor the same one after a restart.
        thrifty["FEDMIXTURES_CACHE"] = str(folder / "compiled")
        kits = {name: self.kits / name for name in (HUB, *rows)}
        self.parties = {n: Party(kit, thrifty, command_of(kit, carrier)) for n, kit in kits.items()}
        self.driver = driver_of(carrier, self.kits / ADMIN, ADMIN, listener)

    def __enter__(self) -> OneMachine:
        for party in self.parties.values():
            party.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes."""
        self.driver.close()
        for party in self.parties.values():
            party.stop()

    def fit(self, job: Job, **options: Any) -> FitRecord:
        """Run a job to its end."""
        return self.driver.fit(self.signed(job), **options)

    def signed(self, job: Job) -> SignedJob:
        """The job as the researcher signs it."""
        return SignedJob.by(COLLECTOR, self.key, job)

    def collected(self, job: Job, record: FitRecord) -> dict[str, Any]:
        """Final models that came to the researcher."""
        return open_results(job, record.results, self.key, self.roster)

    def configs(self) -> list[SiteConfig]:
        """The files of all sites."""
        return [SiteConfig.load(self.kits / name / "local" / SITE_FILE) for name in self.sites]


def write_site(
    folder: Path,
    path: Path,
    name: str,
    key: SiteKey,
    roster: Roster,
    rows: np.ndarray,
    features: tuple[str, ...],
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """What one site holds, in its own folder, and its configuration at `path`."""
    folder.mkdir(parents=True, mode=0o700)
    key.save(folder / "site.key")
    roster.save(folder / "roster.toml")
    header = ",".join(f'"{feature}"' for feature in features)
    lines = [",".join(repr(float(x)) for x in row) for row in rows]
    (folder / "rows.csv").write_text("\n".join([header, *lines]) + "\n")
    config = {
        "name": name,
        "key": str(folder / "site.key"),
        "roster": str(folder / "roster.toml"),
        "state": str(folder / "state"),
        "data": {"path": str(folder / "rows.csv"), "columns": list(features)},
    }
    config |= {section: dict(entries) for section, entries in (sections or {}).items()}
    config["limits"] = {"share_result": True, **config.get("limits", {})}
    write_durably(path, tomli_w.dumps(config).encode())


def command_of(kit: Path, carrier: str) -> list[str]:
    """What runs a hub or site and starts it again when it has ended."""
    if carrier == NVFLARE:
        return ["bash", str(kit / "startup" / "sub_start.sh")]
    run = "from fedmixtures.cli.main import main; main()"
    serve = [sys.executable, "-c", run, "federate", "serve", str(kit), "--listen", "127.0.0.1"]
    return ["bash", "-c", 'while :; do "$@"; sleep 1; done', "bash", *serve]


class Party:
    """A hub or site, run by a supervisor that also restarts it: of NVFlare ``sub_start.sh``."""

    def __init__(
        self,
        kit: Path,
        environment: dict[str, str] | None = None,
        command: Sequence[str] | None = None,
    ):
        self.kit = kit
        self.environment = environment or {}
        self.command = command or command_of(kit, NVFLARE)
        self._supervisor: subprocess.Popen | None = None
        self._known: dict[int, float] = {}

    def start(self) -> None:
        """Start the supervisor, which starts the rest."""
        for name in ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl"):
            (self.kit / name).unlink(missing_ok=True)
        folder = str(Path(sys.executable).parent)  # not resolved: the virtual environment's own
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **self.environment}
        with open(self.kit / "console.log", "ab") as log:
            self._supervisor = subprocess.Popen(
                self.command,
                cwd=self.kit,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def given_up(self) -> bool:
        """Whether the supervisor has ended: it does after five restarts within minutes."""
        return self._supervisor is not None and self._supervisor.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """Everything of this party that runs, the supervisor first."""
        if self._supervisor is None:
            return []
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self._supervisor.pid)
            found = [top, *top.children(recursive=True)]
            self._known.update({p.pid: p.create_time() for p in found})
        for pid, born in self._known.items():  # a job process may outlive its parent
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == born and process not in found:
                    found.append(process)
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def working(self) -> list[psutil.Process]:
        """The Python processes: parent and, during a job, the job's."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "python" in process.name():
                    found.append(process)
        return found

    def crash(self) -> None:
        """Kill -9 of parent and job process; the supervisor stays and restarts the parent."""
        for process in self.working():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """End everything: the supervisor first, else it would start the parent again."""
        if self._supervisor is None:
            return
        found = self.processes()
        for process in found[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for process in reversed(found[1:]):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs([p for p in found[1:]], timeout=3)
        for process in {*alive, *self.processes()}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._supervisor.wait()
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)


def free_port() -> int:
    """A port nobody listens on just now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
