"""Hub and sites as processes of this machine: start, kill, stop, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil


class Party:
    """A hub or site, run by the ``sub_start.sh`` of its kit, which also restarts it."""

    def __init__(self, kit: Path, environment: dict[str, str] | None = None):
        self.kit = kit
        self.environment = environment or {}
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
                ["bash", str(self.kit / "startup" / "sub_start.sh")],
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

    def memory(self) -> int:
        """Resident bytes of the Python processes together."""
        total = 0
        for process in self.working():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total


def free_port() -> int:
    """A port nobody listens on just now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
