"""Is a row or a parameter of a site to be found anywhere at the hub, or on the way to it?"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import deployed
from deployed import CANARY, Wire, a_fit, federation, fitted, hub_address, memory_of, run_with
from federated import SITES, a_job, record
from fedmixtures import TrustThenPool
from fedmixtures.federation.wire.frames import Frame
from fedmixtures.io.storage import read_arrays

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
TAP = Path(deployed.__file__).with_name("tap_sitecustomize.py")


def marks_of(numbers) -> list[bytes]:
    """A number as it could lie about: raw, and in decimals."""
    found = []
    for number in np.ravel(numbers):
        if abs(number) > 1e-6 and len(repr(float(number))) > 12:  # 0, 1 and the like are everywhere
            found += [np.float64(number).tobytes(), repr(float(number))[:12].encode()]
    return found


def marks_on_disk(machine, job) -> list[bytes]:
    """What all sites hold just now: parameters of GTV; what Trust-then-Pool's sites have opened."""
    found = []
    for site in SITES:
        folder = machine.folder / "sites" / site / "state" / f"{job.name}-{job.key[:12]}"
        for path in sorted(folder.glob("round-*")):
            with contextlib.suppress(FileNotFoundError):  # the site has just forgotten that round
                arrays, _ = read_arrays(path, "node state")
                own = [array for name, array in arrays.items() if name.startswith("state.")]
                found += marks_of(np.concatenate([np.ravel(array) for array in own]))
        for path in sorted(folder.glob("heard-*")):
            for content in Frame.decode(path.read_bytes()).boxes.values():
                found += pieces(content)
    return found


def pieces(content: bytes) -> list[bytes]:
    """Sixteen bytes of every sixty-four, where they are no zeros and no text."""
    found = [content[i : i + 16] for i in range(0, len(content) - 16, 64)]
    return [piece for piece in found if sum(32 <= byte < 127 or not byte for byte in piece) < 10]


def hub_memory(machine) -> list[bytes]:
    """Memory of the hub's processes: the hub itself and, during a fit, its job's."""
    found = []
    for process in machine.parties["hub"].working():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found.append(memory_of(process.pid))
    return found


def hits(content: bytes, marks: list[bytes]) -> int:
    """How many of the marks occur; all are looked up at once by their first eight bytes."""
    keys = np.array([int.from_bytes(mark[:8], "little") for mark in marks], np.uint64)
    known, suspects, content = np.sort(keys), set(), content + bytes(16)
    for offset in range(8):
        words = np.frombuffer(content, "<u8", count=(len(content) - offset) // 8, offset=offset)
        place = np.minimum(np.searchsorted(known, words), len(known) - 1)
        suspects |= set(words[known[place] == words].tolist())
    found = [mark for mark, key in zip(marks, keys.tolist(), strict=True) if key in suspects]
    return sum(mark in content for mark in found)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, home):
    folder = tmp_path_factory.mktemp("tap")
    (folder / "frames").mkdir()

    def prepare(made):
        tap = {"FEDERATION_TAP": str(folder / "frames")}
        run_with(made.parties["hub"], folder / "code", TAP, **tap)

    with federation(tmp_path_factory.mktemp("fed"), prepare=prepare) as made:
        made.tap = folder / "frames"
        yield made


@pytest.mark.skipif(not Wire.allowed(), reason="capturing packets is not allowed here")
@pytest.mark.parametrize("kind", ["mmd", "trust"])
def test_no_row_and_no_parameter_at_the_hub(machine, kind):
    job = a_fit("mmd", 250, name="canary")
    if kind == "trust":
        job = a_job(TrustThenPool(), name="canary", collector="researcher")
    row = marks_of([CANARY])
    caught: dict[str, list] = {"memory": [], "marks": []}

    def look():
        caught["memory"] = hub_memory(machine)
        caught["marks"] = marks_on_disk(machine, job)

    machine.driver.listener.when(20, look)
    with Wire(hub_address(machine)[1]) as wire:
        fitted(machine, job)
    assert len(caught["memory"]) >= 2  # the hub and its job's process
    late = hub_memory(machine)
    final = marks_on_disk(machine, job)
    marks = [*row, *caught["marks"], *final]
    received = [path.read_bytes() for path in machine.tap.iterdir()]
    stored = [
        path.read_bytes()
        for place in (machine.kits / "hub", machine.kits / "researcher@fedmixtures.org")
        for path in place.rglob("*")
        if path.is_file()
    ]
    looked = {
        "received, after TLS": (received, marks),
        "stored and logged": (stored, marks),
        "memory during the fit": (caught["memory"], [*row, *caught["marks"]]),
        "memory after the fit": (late, [*row, *final]),
        "captured traffic": ([bytes(wire.content)], marks),
    }
    found = {
        name: {
            "bytes": sum(map(len, contents)),
            "marks": len(wanted),
            "hits": sum(hits(content, wanted) for content in contents),
        }
        for name, (contents, wanted) in looked.items()
    }
    assert all(place["hits"] == 0 for place in found.values()), found
    _assert_the_search_can_find(machine, job, received, caught, wire, marks)
    record(
        "canary" if kind == "mmd" else "canary-masked",
        seed=job.seed,
        marked_row=repr(CANARY),
        searched=found,
    )


def _assert_the_search_can_find(machine, job, received, caught, wire, marks) -> None:
    """The same search, where there is something to find."""
    own = machine.folder / "sites" / "aachen"
    at_home = [path.read_bytes() for path in own.rglob("*") if path.is_file()]
    assert any(hits(content, marks_of([CANARY])) for content in at_home)
    kept = marks_on_disk(machine, job)
    assert len(kept) > 100
    assert any(hits(content, kept) for content in at_home)
    # What the hub may know is found: the job, and boxes of ours.
    assert any(job.key.encode() in content for content in received)
    assert sum(content.count(b"FMX1") for content in received) > 4 * 2 * 50
    assert any(job.key.encode() in memory for memory in caught["memory"])
    assert wire.bytes > 10**5
    with Wire(1) as plain:  # a packet in the clear is found
        plain._keep(_packet(1, np.float64(CANARY).tobytes()))
    assert hits(bytes(plain.content), marks[:2]) == 1


def _packet(port: int, payload: bytes) -> bytes:
    header = bytearray(40)
    header[0], header[9], header[32] = 0x45, 6, 0x50
    header[20:22] = port.to_bytes(2, "big")
    return bytes(header) + payload
