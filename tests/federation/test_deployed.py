"""A real federation: a hub and four sites as processes, mutual TLS, faults and intruders.

Needs the extra ``nvflare``; `make federation` runs it in a network of loopback alone and keeps what
it measured in results/federation.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import time

import numpy as np
import pytest

from federated import SITES, a_job, engine_solution, record, same_bits, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin
from helpers import assert_close

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

CANARY = 271.82818284590452
"""A value in one row of aachen, to be searched for everywhere else."""
ROWS = site_rows()
ROWS["aachen"] = np.concatenate([ROWS["aachen"], [[CANARY / 100, 1.0]]])
KINDS = {"euclidean": Euclidean(), "mmd": MMD(), "kl": KL(n_samples=20)}


def a_fit(kind: str, n_rounds: int = 10, **entries):
    method = GTVMin(KINDS[kind], feasible=FeasibleSet())
    return a_job(method, name=kind, n_rounds=n_rounds, collector="researcher", **entries)


class Told:
    """Listens to the driver; may do something when a round is reached."""

    def __init__(self):
        self.events, self.at, self.action = [], None, None

    def when(self, round: int, action) -> None:
        self.at, self.action = round, action

    def __call__(self, event, what):
        self.events.append((time.time(), event, what))
        if event != "progress" or self.action is None or len(what) < len(SITES):
            return
        if min(how["round"] for how in what.values()) >= self.at:
            action, self.action = self.action, None
            action()


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    from fedmixtures.federation.one_machine import OneMachine

    home = tmp_path_factory.mktemp("home")
    before, os.environ["HOME"] = os.environ.get("HOME"), str(home)
    made = OneMachine(tmp_path_factory.mktemp("fed"), ROWS, ("x", "y"), listener=Told())
    with made:
        made.driver.wait_for(SITES, 120)
        yield made
    left = {name: party.processes() for name, party in made.parties.items()}
    assert not any(left.values()), left
    port = json.loads((made.kits / "aachen" / "startup" / "fed_client.json").read_text())
    host, _, number = port["servers"][0]["service"]["target"].partition(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(number)), 2):
        pass
    os.environ["HOME"] = before or "/"


def fitted(machine, job, **options):
    watched = machine.fit(job, patience=90, **options)
    return watched, machine.collected(job, watched)


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_those_of_the_engine(machine, kind):
    job = a_fit(kind)
    watched, models = fitted(machine, job)
    assert [segment["outcome"] for segment in watched.segments] == ["completed"]
    alone = engine_solution(job, ROWS, block_size=1)
    batched = engine_solution(job, ROWS, block_size=None)
    for name in SITES:
        assert same_bits(models[name], alone.mixture(name)), name
        assert_close(models[name], batched.mixture(name), 1e-10)
    record(f"equality-{kind}", sites=4, rounds=10, bitwise_equal_to_block_size_one=True,
           within_1e10_of_batched=True, segment=watched.segments[0])  # fmt: skip


def test_seconds_and_bytes(machine):
    job = a_fit("mmd", 100)
    memory = {}
    told = machine.driver.listener
    told.when(50, lambda: memory.update({n: p.memory() for n, p in machine.parties.items()}))
    watched, _ = fitted(machine, job)
    log = machine.folder / "sites" / "aachen" / "state" / "log.jsonl"
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    sizes = {line["bytes"] for line in sent if line.get("job") == job.key and "bytes" in line}
    assert max(sizes) < 2000
    record(
        "cost-4-sites",
        seconds_per_round=watched.segments[0]["rounds_s"] / 100,
        seconds_to_get_ready=watched.segments[0]["ready_s"],
        bytes_per_edge_and_round=sorted(sizes),
        of_these_are_numbers=8 * (3 + 6 + 12),
        megabytes_resident={n: round(b / 2**20) for n, b in memory.items()},
        cpu_count=os.cpu_count(),
        load=os.getloadavg()[0],
    )


@pytest.mark.parametrize("who", ["cork", "hub"])
def test_kill_dash_nine_and_the_same_models(machine, who):
    job = a_fit("kl", 150, seed=11 if who == "hub" else 12)
    killed = []

    def kill():
        killed.append(time.time())
        machine.parties[who].crash()

    machine.driver.listener.when(20, kill)
    watched, models = fitted(machine, job)
    outcomes = [segment["outcome"] for segment in watched.segments]
    assert killed
    assert outcomes[-1] == "completed"
    assert "lost" in outcomes
    expected = engine_solution(job, ROWS, block_size=1)  # which the run without a fault equals
    for name in SITES:
        assert same_bits(models[name], expected.mixture(name)), name
    first = watched.segments[-1]["first_round"]
    assert first >= 20
    record(f"kill-{who}", outcomes=outcomes, resumed_at_round=first,
           seconds_from_kill_to_end=time.time() - killed[0], bitwise_equal=True,
           segments=watched.segments)  # fmt: skip


def test_code_with_a_job_is_refused(machine, tmp_path):
    from fedmixtures.federation.nvflare_kits import write_job

    folder = write_job(tmp_path / "evil", a_fit("mmd", 2, seed=99), 4)
    custom = folder / "app" / "custom"
    custom.mkdir()
    marker = tmp_path / "ran"
    (custom / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    session = machine.driver.session()
    try:
        job_id = session.submit_job(str(folder))
    except Exception as error:
        record("custom-code", refused_at="submission", told=str(error)[:300])
        return
    end = time.time() + 60
    status = ""
    while time.time() < end and "FINISHED" not in status:
        status = str(session.get_job_meta(job_id).get("status"))
        time.sleep(1)
    assert not marker.exists()
    assert "COMPLETED" not in status
    record("custom-code", refused_at="deployment", status=status)


def test_a_class_off_the_list_is_refused(machine, tmp_path):
    from fedmixtures.federation.nvflare_kits import write_job

    folder = write_job(tmp_path / "other", a_fit("mmd", 2, seed=98), 4)
    path = folder / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["executors"][0]["executor"]["path"] = "nvflare.app_common.np.np_trainer.NPTrainer"
    path.write_text(json.dumps(config))
    session = machine.driver.session()
    job_id = session.submit_job(str(folder))
    status, end = "", time.time() + 90
    while time.time() < end and "FINISHED" not in status:
        status = str(session.get_job_meta(job_id).get("status"))
        time.sleep(1)
    logs = [(machine.kits / site / "log.txt").read_text() for site in SITES]
    assert "COMPLETED" not in status
    assert any("is not in allow_list" in text for text in logs)


def hub_address(machine):
    kit = machine.kits / "aachen" / "startup" / "fed_client.json"
    host, _, port = json.loads(kit.read_text())["servers"][0]["service"]["target"].partition(":")
    return host, int(port)


def _answer_to_a_stranger(host, port, context):
    with socket.create_connection((host, port), 5) as raw, context.wrap_socket(raw) as secure:
        secure.sendall(b"hello")
        if not secure.recv(10):
            raise ConnectionError("closed without an answer")


def test_strangers_are_not_let_in(machine, tmp_path):
    from fedmixtures.federation.nvflare_kits import provision
    from fedmixtures.federation.processes import Party

    host, port = hub_address(machine)
    # No client certificate: the handshake ends.
    context = ssl.create_default_context(cafile=machine.kits / "aachen" / "startup" / "rootCA.pem")
    context.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _answer_to_a_stranger(host, port, context)
    # Kits of another authority, in the name of a site and in a new name.
    other = provision(tmp_path / "other", ("aachen", "mallory"), port)
    # A member's certificate under another name.
    shutil.copytree(machine.kits / "bergen" / "startup", tmp_path / "delft2" / "startup")
    shutil.copytree(machine.kits / "bergen" / "local", tmp_path / "delft2" / "local")
    start = tmp_path / "delft2" / "startup" / "sub_start.sh"
    start.write_text(start.read_text().replace("uid=bergen", "uid=zagreb"))
    parties = [Party(other / "aachen"), Party(other / "mallory"), Party(tmp_path / "delft2")]
    before = set(machine.driver.connected())
    try:
        for party in parties:
            party.start()
        time.sleep(25)
        here = set(machine.driver.connected())
    finally:
        for party in parties:
            party.stop()
    assert here == before == set(SITES)
    record("strangers", refused=["no certificate", "another authority, a site's name",
           "another authority, a new name", "a member's certificate, a new name"],
           connected_afterwards=sorted(here))  # fmt: skip


def test_no_row_and_no_parameter_at_the_hub(machine):
    """Everything the hub has on disk: logs, jobs, results, snapshots."""
    job = a_fit("mmd")
    models = machine.states(job)
    wanted = [np.float64(CANARY / 100).tobytes(), repr(CANARY / 100).encode()]
    for state in models.values():
        for number in np.concatenate([np.ravel(part) for part in state[1:]]):
            if abs(number) > 1e-9:
                wanted += [np.float64(number).tobytes(), repr(float(number))[:12].encode()]
    searched = 0
    for place in (machine.kits / "hub", machine.kits / "researcher@fedmixtures.org"):
        for path in place.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                searched += len(content)
                assert not any(mark in content for mark in wanted if len(mark) >= 8), path
    # The same search does find them at the site itself.
    own = machine.folder / "sites" / "aachen"
    assert any(wanted[1] in path.read_bytes() for path in own.rglob("*") if path.is_file())
    record("canary", bytes_searched_at_hub=searched, marks=len(wanted), hits=0)


def test_a_site_that_stays_away(machine):
    """The last test: one site is stopped for good, the others finish."""
    job = a_fit("mmd", 120, seed=5)
    machine.driver.listener.when(20, machine.parties["cork"].stop)
    began = time.time()
    watched = machine.fit(job, patience=15)
    models = machine.collected(job, watched)
    assert watched.absent == ["cork"]
    assert set(models) == set(SITES) - {"cork"}
    log = machine.folder / "sites" / "bergen" / "state" / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    how = {line["event"] for line in lines if line.get("job") == job.key}
    assert {"stale", "dropped"} <= how
    record("site-away", seconds=time.time() - began, absent=watched.absent,
           reported=sorted(how & {"stale", "dropped"}), segments=watched.segments)  # fmt: skip
