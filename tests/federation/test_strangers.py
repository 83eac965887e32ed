"""Intruders on a real federation: strangers at the door, and a member that has gone wrong."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest

import deployed
from deployed import ROWS, a_fit, federation, fitted, hub_address, run_with, site_log
from federated import SITES, engine_solution, record, same_bits

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
ROGUE = Path(deployed.__file__).with_name("rogue_sitecustomize.py")


@pytest.fixture(scope="module")
def machine(tmp_path_factory, home):
    folder = tmp_path_factory.mktemp("rogue")

    def prepare(made):
        run_with(
            made.parties["cork"], folder, ROGUE, FEDERATION_ROGUE=str(folder / "done.json"),
            FEDERATION_ROGUE_HOME=str(made.folder / "sites" / "cork"),
        )  # fmt: skip

    with federation(tmp_path_factory.mktemp("fed"), prepare=prepare) as made:
        made.rogue = folder / "done.json"
        yield made


def test_a_member_gone_wrong_changes_nothing(machine):
    job = a_fit("mmd", 20, seed=21)
    watched, models = fitted(machine, job, lost_after=60.0, deadline=120.0)
    done = json.loads(machine.rogue.read_text())
    names = [name for name, *_ in done]
    assert len(names) == 11, names
    rejected = {name: how["rejected"] for name, how in watched.segments[-1]["progress"].items()}
    # Told to the hub: how many were refused, in whose name.
    assert rejected["aachen"] == {"cork": 1}
    assert rejected["bergen"] == {"aachen": 1, "cork": 6, "?": 2}
    assert rejected["delft"] == {"?": 1}
    # In the local log: why.
    lines = [line for site in ("aachen", "bergen", "delft") for line in site_log(machine, site)]
    reasons = [line["reason"] for line in lines if line["event"] in ("rejected", "turned away")]
    for part in ("no neighbour", "does not open as one from 'aachen'", "from 'cork'",
                 "already taken", "NaN", "shape",
                 "positive definite", "outside the feasible set", "above the limit",
                 "no site of the job", "mark of format"):  # fmt: skip
        assert any(part in reason for reason in reasons), (part, reasons)
    expected = engine_solution(job, ROWS, block_size=1)
    assert all(same_bits(models[name], expected.mixture(name)) for name in SITES)
    assert [segment["outcome"] for segment in watched.segments] == ["completed"]
    record("rogue-member", seed=job.seed, attacks=names, refused=sorted(reasons),
           told_to_the_hub=rejected, models_bitwise_those_of_an_honest_run=True)  # fmt: skip


def _answer(host, port, context=None) -> bytes:
    with socket.create_connection((host, port), 5) as raw:
        end = raw if context is None else context.wrap_socket(raw)
        with end:
            end.settimeout(10)
            end.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            answer = end.recv(10)
            if not answer:
                raise ConnectionError("closed without an answer")
            return answer


def test_strangers_are_not_let_in(machine, tmp_path):
    from fedmixtures.federation.nvflare.kits import provision
    from fedmixtures.federation.one_machine import Party

    host, port = hub_address(machine)
    with pytest.raises((ConnectionError, TimeoutError)):
        _answer(host, port)  # plaintext
    context = ssl.create_default_context(cafile=machine.kits / "aachen" / "startup" / "rootCA.pem")
    context.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _answer(host, port, context)  # no certificate
    other = provision(tmp_path / "other", ("aachen", "mallory"), port)
    own = other / "aachen" / "startup"
    context.load_cert_chain(own / "client.crt", own / "client.key")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _answer(host, port, context)  # a site's name, certified by another authority
    own = machine.kits / "aachen" / "startup"
    context.load_cert_chain(own / "client.crt", own / "client.key")
    assert _answer(host, port, context)  # with the right one there is an answer
    parties = {
        "kit of another authority, a site's name": Party(other / "aachen"),
        "kit of another authority, a new name": Party(other / "mallory"),
        "a member's certificate, an unprovisioned name": _renamed(machine, tmp_path, "zagreb"),
        "a member's certificate, another member's name": _renamed(machine, tmp_path, "delft"),
    }
    signs = dict(zip(parties, ("CERTIFICATE_VERIFY_FAILED",) * 2 + (
        "authenticated as 'bergen' but claimed endpoint 'zagreb'",
        "authenticated as 'bergen' but claimed endpoint 'delft'"), strict=True))  # fmt: skip
    joined = _joined(machine)
    try:
        for party in parties.values():
            party.start()
        told = _told(machine, parties, signs)
        here, after = set(machine.driver.connected()), _joined(machine)
    finally:
        for party in parties.values():
            party.stop()
    assert here == set(SITES)
    assert after == joined
    assert joined["zagreb"] == joined["mallory"] == 0
    # A fit of those that belong here goes on as if nothing had been.
    job = a_fit("mmd", 5, seed=22)
    _, models = fitted(machine, job)
    expected = engine_solution(job, ROWS, block_size=1)
    assert all(same_bits(models[name], expected.mixture(name)) for name in SITES)
    record("strangers", seed=job.seed, told=told, connected_afterwards=sorted(here),
           refused=["plaintext", "no certificate", "a certificate of another authority", *parties]
           )  # fmt: skip


def _told(machine, parties, signs) -> dict[str, str]:
    """What the hub or the intruder says about each refusal; all have tried when this returns."""
    found: dict[str, str] = {}
    end = time.monotonic() + 150
    while set(found) != set(parties) and time.monotonic() < end:
        for name, party in parties.items():
            for path in (party.kit / "console.log", machine.kits / "hub" / "log.txt"):
                lines = path.read_text(errors="replace").splitlines()
                said = [line for line in lines if signs[name] in line]
                if said:
                    found[name] = said[0][-220:]
        time.sleep(1)
    assert set(found) == set(parties), found
    return found


def _joined(machine) -> dict[str, int]:
    """How often the hub has let each name in."""
    text = (machine.kits / "hub" / "log.txt").read_text()
    lines = [line for line in text.splitlines() if "Sent token" in line or "Re-login" in line]
    return {name: sum(name in line for line in lines) for name in (*SITES, "zagreb", "mallory")}


def _renamed(machine, folder: Path, name: str):
    from fedmixtures.federation.one_machine import Party

    kit = folder / name
    for part in ("startup", "local"):
        shutil.copytree(machine.kits / "bergen" / part, kit / part)
    start = kit / "startup" / "sub_start.sh"
    start.write_text(start.read_text().replace("uid=bergen", f"uid={name}"))
    return Party(kit)
