"""What the tests of real silos share: a hub and sites as processes, and eyes on what they do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np

from federated import SITES, a_job, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin
from fedmixtures.federation.node.store import KIND
from fedmixtures.io.storage import read_arrays

CANARY = 3.0517593281746529
"""A value in one row of aachen, to be searched for everywhere else."""
ROWS = site_rows()
ROWS["aachen"] = np.concatenate([ROWS["aachen"], [[CANARY, 1.0]]])
PAGES = 2**16
KINDS = {"euclidean": Euclidean(), "mmd": MMD(), "kl": KL(n_samples=20)}


def a_fit(kind: str, n_rounds: int = 10, **entries):
    """A job for the four sites."""
    method = GTVMin(KINDS[kind], feasible=FeasibleSet())
    entries = {"name": kind, "n_rounds": n_rounds, "collector": "researcher"} | entries
    return a_job(method, **entries)


class Recorder:
    """Listens to the driver; may do something when all sites have reached a round."""

    def __init__(self):
        self.events, self.at, self.action, self.n_sites = [], None, None, len(SITES)

    def when(self, round: int, action, n_sites: int = len(SITES)) -> None:
        """Act once, as soon as every site has done so many rounds."""
        self.at, self.action, self.n_sites = round, action, n_sites

    def __call__(self, event, what):
        self.events.append((time.time(), event, what))
        if event != "progress" or self.action is None or len(what) < self.n_sites:
            return
        if min(how["round"] for how in what.values()) >= self.at:
            action, self.action = self.action, None
            action()


@contextlib.contextmanager
def federation(
    folder: Path, rows=None, prepare=None, listener=None, sections=None, carrier="nvflare"
):
    """A running hub and its sites; afterwards no process of theirs and no open port."""
    from fedmixtures.federation.one_machine import OneMachine

    rows = ROWS if rows is None else rows
    features = tuple("xyzuvw"[: next(iter(rows.values())).shape[1]])
    sections = {"releases": {"max_jobs": 1000, "max_models": 10**6}} | dict(sections or {})
    if "release_gate" not in sections:  # so that models can be compared with the engine's
        sections["release_gate"] = {"rounding": 0.0}
    made = OneMachine(folder, rows, features, sections, listener or Recorder(), carrier)
    if prepare is not None:
        prepare(made)
    with made:
        made.driver.wait_for(tuple(rows), 180)
        yield made
    left = {name: party.processes() for name, party in made.parties.items()}
    assert not any(left.values()), left
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(hub_address(made), 2).close()
        raise AssertionError("the hub's port is still open")


def fitted(machine, job, **options):
    """Run a job; what happened, and the models the researcher received."""
    record = machine.fit(job, **{"patience": 120, **options})
    return record, machine.collected(job, record)


def hub_address(machine) -> tuple[str, int]:
    """Host and port of the hub."""
    kit = machine.kits / machine.sites[0] / "startup" / "fed_client.json"
    host, _, port = json.loads(kit.read_text())["servers"][0]["service"]["target"].partition(":")
    return host, int(port)


def site_log(machine, name: str, job=None) -> list[dict]:
    """Lines of a site's local log, of one job if given."""
    path = machine.folder / "sites" / name / "state" / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines if job is None else [line for line in lines if line.get("job") == job.key]


def saved(machine, name: str, job) -> tuple[int, list[np.ndarray]]:
    """The last round that a site has kept, and the arrays of its state."""
    folder = machine.folder / "sites" / name / "state" / f"{job.name}-{job.key[:12]}"
    arrays, header = read_arrays(max(folder.glob("round-*")), KIND)
    return header["round"], [arrays[key] for key in sorted(arrays) if key.startswith("state.")]


class Wire:
    """Records the TCP packets of one port on loopback, as a tap on the network would."""

    def __init__(self, port: int):
        self.port, self.bytes, self.content = port, 0, bytearray()
        self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(0x0003))
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**26)
        self.raw.bind(("lo", 0))
        self.raw.settimeout(0.5)
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)

    @staticmethod
    def allowed() -> bool:
        """Whether this system lets us."""
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
        except (OSError, AttributeError):
            return False
        return True

    def _listen(self) -> None:
        while not self.closed.is_set():
            try:
                packet, address = self.raw.recvfrom(2**17)
            except TimeoutError:
                continue
            if address[2] != socket.PACKET_OUTGOING:  # loopback shows every packet twice
                self._keep(packet[14:])

    def _keep(self, packet: bytes) -> None:
        if packet[0] >> 4 == 4:
            length, protocol = 4 * (packet[0] & 15), packet[9]
        else:
            length, protocol = 40, packet[6]
        if protocol != 6:
            return
        ports = struct.unpack(">HH", packet[length : length + 4])
        if self.port in ports:
            payload = packet[length + 4 * (packet[length + 12] >> 4) :]
            self.bytes += len(packet)
            self.content += payload

    def __enter__(self) -> Wire:
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.closed.set()
        self.thread.join()
        self.raw.close()


def memory_of(pid: int) -> bytes:
    """All that a process can write to: its heap, stacks and data, without the empty parts."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split(maxsplit=5)
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(start)
                for at in range(start, end, PAGES):
                    part = memory.read(min(PAGES, end - at))
                    found.append(part if part.count(0) < len(part) else b"\x00" * 16)
    return b"".join(found)


def run_with(party, folder: Path, source: Path, **environment: str) -> None:
    """Let a party run a file of ours when its Pythons start."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_bytes(source.read_bytes())
    before = os.environ.get("PYTHONPATH")
    path = str(folder) if not before else f"{folder}{os.pathsep}{before}"
    party.environment = {**party.environment, "PYTHONPATH": path, **environment}
