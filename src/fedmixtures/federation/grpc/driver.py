"""The researcher's side: a segment is one call to the hub, which lasts as long as it does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import grpc

from fedmixtures.federation.driving import AbstractDriver, FederationError, FitRecord, Listener
from fedmixtures.federation.grpc.kit import LOOK, RESEARCHER, SUBMIT, Kit
from fedmixtures.federation.job import SignedJob
from fedmixtures.federation.wire.frames import Frame

ANSWER = 10.0
"""Seconds the hub may take to answer a look."""


class GrpcDriver(AbstractDriver):
    """Talks to the hub with the researcher's kit."""

    def __init__(self, kit: Path, listener: Listener | None = None):
        super().__init__(listener)
        self.kit = Kit(kit)
        name, role = self.kit.name
        if role != RESEARCHER:
            raise ValueError(f"{str(kit)!r} is the kit of the {role} {name!r}, not a researcher's.")
        self._channel: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.Channel:
        """The connection."""
        if self._channel is None:
            self._channel = self.kit.channel()
        return self._channel

    def open(self, patience: float = 120.0) -> None:
        """Ask the hub until it answers."""
        end = time.monotonic() + patience
        while True:
            try:
                self._look()
                return
            except grpc.RpcError as error:
                code = error.code().name if isinstance(error, grpc.Call) else "broken"
                if time.monotonic() > end:
                    raise FederationError(
                        f"the hub {self.kit.hub} does not answer ({code}). Is it started, and "
                        "does the firewall let this machine through?"
                    ) from None
                self.close()
                self.listener("waiting for the hub", {})
                time.sleep(1.0)

    def close(self) -> None:
        """Leave the hub."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _look(self) -> dict[str, Any]:
        return json.loads(self.channel.unary_unary(LOOK)(b"", timeout=ANSWER))

    def connected(self) -> list[str]:
        """Sites that are connected just now."""
        self.open()
        return self._look()["connected"]

    def jobs(self) -> list[dict[str, Any]]:
        """The last segments of the hub."""
        return self._look()["runs"]

    def progress(self, job_id: str) -> dict[str, Any]:
        """What the sites of a segment have told."""
        return self._of(job_id).get("progress", {})

    def ended(self, job_id: str) -> dict[str, Any]:
        """How a segment has ended."""
        return self._of(job_id).get("ended", {})

    def _of(self, job_id: str) -> dict[str, Any]:
        return next((run for run in self.jobs() if run["job_id"] == job_id), {})

    def segment(
        self, number: int, signed: SignedJob, here: list[str], record: FitRecord, **how: Any
    ) -> dict[str, Any]:
        """One call; what became of it."""
        asked = Frame({"signed": signed.to_plain(), "how": how}).encode()
        try:
            for data in self.channel.unary_stream(SUBMIT)(asked):
                news = Frame.decode(data)
                event, what = news.head["event"], news.head["what"]
                if event == "ended":
                    sites = signed.job.n_components
                    record.results |= {s: box for s, box in news.boxes.items() if s in sites}
                    return what
                if event == "segment":
                    what = {"number": number, **what}
                self.listener(event, what)
        except grpc.RpcError as error:
            refused = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)
            if isinstance(error, grpc.Call) and error.code() in refused:
                raise FederationError(f"the hub refuses the job: {error.details()}") from None
        self.close()
        return {"outcome": "lost", "sites": ["hub"]}
