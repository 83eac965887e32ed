"""The researcher's side with NVFlare: a segment is a job, which is watched and downloaded."""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    InternalError,
    JobNotFound,
    JobNotRunning,
    NoClientsAvailable,
    NoReply,
    SessionClosed,
)
from nvflare.fuel.hci.proto import MetaStatusValue

from fedmixtures.federation.driving import AbstractDriver, FederationError, FitRecord, Listener
from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.nvflare.controller import OUTCOME, RESULTS
from fedmixtures.federation.nvflare.kits import ADMIN, write_job

ENDED = ("FINISHED", "FAILED", "ABORTED", "ABANDONED", "DELETED")
NO_REPLY = MetaStatusValue.NO_REPLY
POLL = 0.5
GONE = 20
"""Polls without a running controller after which a job is ended from here."""
LOST_HUB = (
    ConnectionError, TimeoutError, SessionClosed, AuthenticationError, InternalError, NoReply,
    JobNotFound,
)  # fmt: skip
"""What NVFlare raises while a hub is going, away, or just back."""


class NVFlareDriver(AbstractDriver):
    """Talks to the hub with the researcher's kit."""

    def __init__(self, kit: Path, username: str = ADMIN, listener: Listener | None = None):
        if not (kit / "startup" / "fed_admin.json").is_file():
            raise ValueError(
                f"{str(kit)!r} is no researcher's kit. `federate join` prints where it is."
            )
        super().__init__(listener)
        self.kit, self.username = kit, username
        self._session: Any = None
        self._last = ""

    def session(self, patience: float = 120.0) -> Any:
        """A connection to the hub; waits for one that is away."""
        end = time.monotonic() + patience
        while self._session is None:
            from nvflare.fuel.flare_api.flare_api import new_secure_session

            try:
                with contextlib.redirect_stdout(None):
                    self._session = new_secure_session(
                        self.username, str(self.kit), timeout=10.0, auto_login_max_tries=2
                    )
            except Exception as error:
                if time.monotonic() > end:
                    raise FederationError(
                        f"the hub does not answer ({type(error).__name__}). Is it started, and "
                        "does the firewall let this machine through?"
                    ) from None
                self.listener("waiting for the hub", {})
                time.sleep(1.0)
        return self._session

    def open(self, patience: float = 120.0) -> None:
        """Connect to the hub."""
        self.session(patience)

    def close(self) -> None:
        """Leave the hub."""
        if self._session is not None:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
                self._session.close()
            self._session = None

    def connected(self) -> list[str]:
        """Sites that answer the hub just now; its own list holds the dead for ten minutes."""
        try:
            answers = self.session().get_client_job_status() or []
        except NoClientsAvailable:
            return []
        return sorted({a["client_name"] for a in answers if a.get("status") != NO_REPLY})

    def segment(
        self, number: int, signed: SignedJob, here: list[str], record: FitRecord, **how: Any
    ) -> dict[str, Any]:
        """One NVFlare job; what became of it."""
        try:
            job_id = self._submit(signed, len(here), how, self._last)
            self.listener("segment", {"number": number, "job_id": job_id, "sites": here})
            outcome = self._watch(job_id, signed.job, record)
            self._last = job_id
        except LOST_HUB:
            self.close()
            outcome = {"outcome": "lost", "sites": ["hub"]}
        return outcome

    def _submit(
        self, signed: SignedJob, n_sites: int, controller: dict[str, Any], last: str
    ) -> str:
        if last:  # it may hang about as "running"
            with contextlib.suppress(Exception):
                self.session().abort_job(last)
        with tempfile.TemporaryDirectory() as folder:
            path = write_job(Path(folder) / signed.job.name, signed, n_sites, **controller)
            return self.session().submit_job(str(path))

    def _watch(self, job_id: str, job: Job, record: FitRecord) -> dict[str, Any]:
        """Until the segment ends; progress is reported as it comes."""
        hub, ran, gone = None, False, 0
        while True:
            progress: dict[str, Any] = {}
            try:
                session = self.session(600)
                started = self._hub_started()
                # A hub that was restarted lists the job as running, but does not run it.
                if started != (hub := hub or started):
                    return {"outcome": "lost", "sites": ["hub"]}
                status = str(session.get_job_meta(job_id).get("status", ""))
                if any(word in status for word in ENDED):
                    return self._outcome(job_id, job, status, record)
                progress = self.progress(job_id)
                ran, gone = ran or bool(progress), 0 if progress else gone + 1
                if ran and gone == GONE:  # over, but the hub waits for a lost site to say so too
                    session.abort_job(job_id)
            except (FederationError, JobNotFound):
                raise
            except Exception as error:  # the connection broke
                self.close()
                self.listener("hub lost", {"error": type(error).__name__})
            if progress:
                self.listener("progress", progress)
            time.sleep(POLL)

    def _hub_started(self) -> Any:
        return self.session().get_system_info().server_info.start_time

    def progress(self, job_id: str) -> dict[str, Any]:
        """Round of each site and whom it waits for, as the hub knows them; empty before the run."""
        try:
            stats = self.session().show_stats(job_id, "server")
        except (JobNotFound, JobNotRunning):
            return {}
        found = stats.get("server", stats) if isinstance(stats, dict) else {}
        return found.get("fedmixtures", {}) if isinstance(found, dict) else {}

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs of the hub, as it lists them."""
        return self.session().list_jobs() or []

    def ended(self, job_id: str) -> dict[str, Any]:
        """How a job has ended, of one that this researcher has submitted."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(self.session().download_job_result(job_id, folder))
            found = next(iter(place.rglob(OUTCOME)), None)
            return {} if found is None else json.loads(found.read_text())

    def _outcome(self, job_id: str, job: Job, status: str, record: FitRecord) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                place = Path(self.session().download_job_result(job_id, folder))
            except Exception as error:
                return {"outcome": "lost", "sites": [], "status": f"{status} {error}"[:300]}
            found = next(iter(place.rglob(OUTCOME)), None)
            if found is None:
                return {"outcome": "lost", "sites": [], "status": status}
            for path in place.rglob(f"{RESULTS}/*.fmx"):
                if path.stem in job.n_components:
                    record.results[path.stem] = path.read_bytes()
            return json.loads(found.read_text())
