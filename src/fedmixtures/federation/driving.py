"""The researcher's side, without a carrier: a job to its end through losses, and what came of it.

A segment that ends because a site or the hub was lost is followed by another one, which goes on
from the largest round common to all that are there.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.wire.frames import Frame
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import Address, SiteKey

if TYPE_CHECKING:
    from fedmixtures.mixture.mixture import Mixture

Listener = Callable[[str, dict[str, Any]], None]


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


class AbstractDriver(abc.ABC):
    """Talks to the hub for a researcher; `listener` hears what happens."""

    def __init__(self, listener: Listener | None = None):
        self.listener = listener or (lambda event, what: None)

    # What a carrier does.

    @abc.abstractmethod
    def open(self, patience: float = 120.0) -> None:
        """Connect to the hub, waiting for one that is away; `FederationError` if it stays so."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the hub."""

    @abc.abstractmethod
    def connected(self) -> list[str]:
        """Sites that answer the hub just now."""

    @abc.abstractmethod
    def segment(
        self, number: int, signed: SignedJob, here: list[str], record: FitRecord, **how: Any
    ) -> dict[str, Any]:
        """Run one segment, as `Segment` is told; what became of it. Results go into the record."""

    # What `watching` shows.

    @abc.abstractmethod
    def jobs(self) -> list[dict[str, Any]]:
        """The hub's jobs: ``job_name``, ``status``, ``job_id``, ``submit_time``."""

    @abc.abstractmethod
    def progress(self, job_id: str) -> dict[str, Any]:
        """Round of each site and whom it waits for, as the hub knows them; empty before the run."""

    @abc.abstractmethod
    def ended(self, job_id: str) -> dict[str, Any]:
        """How a job has ended."""

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
        self, signed: SignedJob, patience: float = 120.0, max_segments: int = 20, **times: float
    ) -> FitRecord:
        """Run a job to its end, through losses; `FederationError` if a site refuses it.

        `times` are those of `Segment`.
        """
        job, record = signed.job, FitRecord()
        silent: set[str] = set()  # there, and of no use to the others
        for number in range(max_segments):
            here = self.wait_for(tuple(s for s in job.sites if s not in silent), patience)
            begun, without = time.time(), {"without": sorted(silent)} if silent else {}
            outcome = self.segment(number, signed, here, record, **times, **without)
            outcome["seconds"] = time.time() - begun
            outcome["absent"] = sorted(set(job.sites) - set(here))
            record.segments.append(outcome)
            self.listener("segment ended", outcome)
            silent |= set(outcome.get("silent", ()))
            if outcome["outcome"] == "completed":
                return record
            if outcome["outcome"] == "refused":
                raise FederationError("; ".join(outcome["reasons"].values()))
        raise FederationError(f"the fit was interrupted {max_segments} times and is given up.")


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
