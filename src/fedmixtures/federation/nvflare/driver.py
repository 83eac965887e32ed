"""The researcher's side: submit a job, watch it, submit it again after a loss, collect the result.

A segment that ends because a site or the hub was lost is followed by another one, which goes on
from the largest round common to all that are there.
"""

# NVFlare is an extra, which need not be there to check the types of the rest.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.nvflare.controller import OUTCOME, RESULTS
from fedmixtures.federation.nvflare.kits import ADMIN, write_job
from fedmixtures.federation.wire.frames import Frame
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import Address, SiteKey

if TYPE_CHECKING:
    from fedmixtures.mixture.mixture import Mixture

Listener = Callable[[str, dict[str, Any]], None]
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


class FederationError(RuntimeError):
    """A fit that cannot go on: what happened and what to do."""


@dataclass
class FitRecord:
    """What became of a fit."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, bytes] = field(default_factory=dict)
    """Reply frames with sealed final models, by site."""

    @property
    def absent(self) -> list[str]:
        """Sites that were not there in the last segment."""
        return self.segments[-1].get("absent", [])


class Driver:
    """Talks to the hub with the researcher's kit."""

    def __init__(self, kit: Path, username: str = ADMIN, listener: Listener | None = None):
        if not (kit / "startup" / "fed_admin.json").is_file():
            raise ValueError(
                f"{str(kit)!r} is no researcher's kit. `federate join` prints where it is."
            )
        self.kit, self.username = kit, username
        self.listener = listener or (lambda event, what: None)
        self._session: Any = None

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

    def wait_for(self, sites: tuple[str, ...], patience: float) -> list[str]:
        """Sites of these that are there; all, or those that came before patience ran out."""
        end = time.monotonic() + patience
        while True:
            try:
                here = [site for site in self.connected() if site in sites]
            except FederationError:
                raise
            except Exception:
                self.close()
                here = []
            if set(here) == set(sites) or (here and time.monotonic() > end):
                return sorted(here)
            self.listener("waiting for sites", {"missing": sorted(set(sites) - set(here))})
            time.sleep(1.0)

    def fit(
        self, signed: SignedJob, patience: float = 120.0, max_segments: int = 20, **controller: Any
    ) -> FitRecord:
        """Run a job to its end, through losses; `FederationError` if a site refuses it."""
        job, record, last = signed.job, FitRecord(), ""
        for number in range(max_segments):
            here = self.wait_for(job.sites, patience)
            begun = time.time()
            try:
                job_id = self._submit(signed, len(here), controller, last)
                self.listener("segment", {"number": number, "job_id": job_id, "sites": here})
                outcome = self._watch(job_id, job, record)
                last = job_id
            except LOST_HUB:
                self.close()
                outcome = {"outcome": "lost", "sites": ["hub"]}
            outcome["seconds"] = time.time() - begun
            outcome["absent"] = sorted(set(job.sites) - set(here))
            record.segments.append(outcome)
            self.listener("segment ended", outcome)
            if outcome["outcome"] == "completed":
                return record
            if outcome["outcome"] == "refused":
                raise FederationError("; ".join(outcome["reasons"].values()))
        raise FederationError(f"the fit was interrupted {max_segments} times and is given up.")

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


def open_results(
    job: Job, results: dict[str, bytes], key: SiteKey, roster: Roster
) -> dict[str, Mixture | None]:
    """Final models sealed for the collector, by site; None for a site that released nothing."""
    from fedmixtures.federation.node.job_program import feasible_of, program_of
    from fedmixtures.federation.wire.message import decode_message

    if job.collector is None:
        return {}
    feasible, found = feasible_of(program_of(job)), {}
    for site, content in results.items():
        frame = Frame.decode(content)
        for entry in frame.head.get("boxes", ()):
            address = Address(job.key, entry["round"], site, job.collector)
            sender = roster.sealing_key(site, "site")
            opened = key.open(frame.boxes[entry["box"]], sender, address)
            k, d = job.most_components, len(job.features)
            found[site] = decode_message(opened, k, d, feasible)
    return found
