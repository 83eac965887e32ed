"""A real federation: a hub and four sites as processes with mutual TLS, the same models.

Needs the extra ``nvflare``; `make federation` runs it in a network of loopback alone, where nothing
but the tests' temporary folder can be written, and keeps what it measured in results/federation.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from deployed import KINDS, ROWS, Wire, a_fit, federation, fitted, hub_address, site_log
from federated import (
    EDGES,
    SITES,
    Sites,
    a_job,
    engine_solution,
    log_lines,
    record,
    same_bits,
    site_rows,
)
from fedmixtures import TrustThenPool
from fedmixtures.federation.masked_sums import to_fixed
from fedmixtures.federation.node import release
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.wire.message import MaskedShare
from helpers import assert_close

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory, home):
    with federation(tmp_path_factory.mktemp("fed")) as made:
        yield made


def assert_same_as_engine(job, models, rows=ROWS) -> float:
    """Bitwise at block size one; returns the largest difference from the batched engine."""
    alone = engine_solution(job, rows, block_size=1)
    batched = engine_solution(job, rows, block_size=None)
    worst = 0.0
    for name in job.sites:
        assert same_bits(models[name], alone.mixture(name)), name
        assert_close(models[name], batched.mixture(name), 1e-10)
        parts = zip(models[name].parts, batched.mixture(name).parts, strict=True)
        worst = max(worst, *(float(np.abs(a - b).max()) for a, b in parts))
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_those_of_the_engine(machine, kind):
    job = a_fit(kind)
    watched, models = fitted(machine, job)
    assert [segment["outcome"] for segment in watched.segments] == ["completed"]
    sent = [line for name in SITES for line in site_log(machine, name, job) if "merged" in line]
    assert {line["merged"] for line in sent} == {0}  # the gate is on, and lets all through
    worst = assert_same_as_engine(job, models)
    record(f"equality-{kind}", seed=job.seed, sites=4, rounds=10, gate="on",
           rows={name: len(ROWS[name]) for name in SITES}, bitwise_equal_to_block_size_one=True,
           largest_difference_from_batched=worst, segment=watched.segments[0])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nvflare_s_simulator_gives_the_same_models(tmp_path, home, kind):
    from simulated import simulate

    job = a_fit(kind)
    began = time.time()
    models = simulate(tmp_path, job, ROWS)
    worst = assert_same_as_engine(job, models)
    record(f"simulator-{kind}", seed=job.seed, sites=4, rounds=10, gate="on",
           bitwise_equal_to_block_size_one=True, largest_difference_from_batched=worst,
           seconds=time.time() - began)  # fmt: skip


def test_trust_then_pool_by_masked_sums(tmp_path, home):
    """Four sites over mutual TLS, one killed and back, to the bit the models without a network."""
    rows = site_rows((60, 60, 60, 60))
    method = TrustThenPool(n_starts=1, n_folds=2, strengths=(1.0,), pool_steps=(1, 2, 4))
    job = a_job(method, n_components=dict.fromkeys(SITES, 2), n_rounds=400, collector="researcher")
    with federation(tmp_path / "fed", rows) as machine:
        machine.driver.listener.when(20, machine.parties["cork"].crash)
        record_, models = fitted(machine, job)
    sites = Sites(tmp_path / "alone", rows)
    sites.run(job)
    # Released in the same way (gated, unrounded), as the researcher gets them.
    expected = {
        name: node.point.passed(node.sessions[job.key].message(), node.sessions[job.key]).message
        for name, node in sites.nodes.items()
    }
    for name in SITES:
        assert same_bits(models[name], expected[name].mixture), name
    outcomes = [segment["outcome"] for segment in record_.segments]
    assert outcomes[-1] == "completed"
    assert "lost" in outcomes
    record("masked-sums", seed=job.seed, sites=4, outcomes=outcomes,
           first_rounds=[segment.get("first_round") for segment in record_.segments],
           bitwise_equal_to_the_same_without_a_network=True,
           seconds_of_the_exchanges=record_.segments[-1]["rounds_s"])  # fmt: skip


def test_a_member_that_leaves_for_good_does_not_end_the_job(tmp_path, home):
    """Stopped inside the sums over everybody; the three others come to an end without it."""
    method = TrustThenPool(n_starts=1, n_folds=2, strengths=(1.0,), pool_steps=(1, 2, 4))
    job = a_job(method, n_components=dict.fromkeys(SITES, 2), n_rounds=400, collector="researcher")
    rows = site_rows((60, 60, 60, 60))
    with federation(tmp_path / "fed", rows) as machine:
        machine.driver.listener.when(12, machine.parties["cork"].stop)
        record_, models = fitted(machine, job, patience=15)
    assert set(models) == set(SITES) - {"cork"}
    assert all(np.isfinite(part).all() for model in models.values() for part in model.parts)
    assert record_.absent == ["cork"]
    record("member-away", seed=job.seed, sites=4, absent=record_.absent,
           outcomes=[segment["outcome"] for segment in record_.segments],
           first_rounds=[segment.get("first_round") for segment in record_.segments])  # fmt: skip


def costs(machine, job) -> dict:
    """Seconds, memory and bytes of a long fit, and the share that is this library's."""
    memory, told = {}, machine.driver.listener

    def look():
        for name, party in machine.parties.items():
            memory[name] = sorted(p.memory_info().rss >> 20 for p in party.working())

    told.when(20, look, len(machine.sites))
    passed = []  # rounds that all sites have done, with the bytes seen on the wire until then

    def noted(event, what):
        if event == "progress" and len(what) == len(machine.sites):
            passed.append((min(how["round"] for how in what.values()), wire.bytes))
        told(event, what)

    with Wire(hub_address(machine)[1]) as wire:
        machine.driver.listener = noted
        watched, _ = fitted(machine, job)
        machine.driver.listener = told
    (segment,) = watched.segments
    n_rounds = max(how["round"] for how in segment["progress"].values())
    running = [entry for entry in passed if 0 < entry[0] < n_rounds]
    (first, before), (last, after) = running[0], running[-1]
    logs = {name: site_log(machine, name, job) for name in machine.sites}
    boxes = [line["bytes"] for log in logs.values() for line in log if line["event"] == "sent"]
    runs = [line for log in logs.values() for line in log if line["event"] == "ran"]
    k, d = job.most_components, len(job.features)
    on_the_wire = (after - before) / (last - first)
    return {
        "sites": len(machine.sites),
        "edges": len(job.edges),
        "rounds": n_rounds,
        "components": k,
        "features": d,
        "seconds_to_get_ready": segment["ready_s"],
        "seconds_per_round": segment["rounds_s"] / n_rounds,
        "share_of_a_round_inside_our_node": float(
            np.mean([run["in_node"] / run["seconds"] for run in runs])
        ),
        "bytes_of_a_box": sorted(set(boxes)),
        "bytes_of_a_mixture": 8 * (k + k * d + k * d * d),
        "bytes_of_all_boxes_per_site": sum(boxes) / len(machine.sites),
        "bytes_on_the_wire_per_site_and_round": on_the_wire / len(machine.sites),
        "bytes_on_the_wire_per_edge_direction_and_round": on_the_wire / (2 * len(job.edges)),
        "times_a_box_crosses_the_wire": 2,
        "megabytes_resident": memory,
    }


def test_what_four_sites_cost(machine):
    job = a_fit("mmd", 200, name="cost")
    figures = costs(machine, job)
    assert max(figures["bytes_of_a_box"]) < 2000
    assert figures["share_of_a_round_inside_our_node"] <= 1
    record("cost-4-sites", seed=job.seed, **figures)


def ten_sites() -> dict:
    """Rows of ten sites, and a graph of fifteen edges."""
    names = [f"site-{i}" for i in range(10)]
    ring = [(names[i], names[(i + 1) % 10], 1.0) for i in range(10)]
    across = [(names[i], names[i + 5], 1.0) for i in range(5)]
    return {
        "rows": {name: ROWS[SITES[i % 4]] for i, name in enumerate(names)},
        "edges": (*ring, *across),
    }


def test_what_ten_sites_cost(tmp_path, home):
    rows, edges = ten_sites().values()
    job = a_fit("mmd", 100, n_components=dict.fromkeys(rows, 3), edges=edges)
    with federation(tmp_path / "fed", rows) as machine:
        figures = costs(machine, job)
    record("cost-10-sites", seed=job.seed, **figures)


@pytest.mark.parametrize("n_sites", [4, 10])
def test_what_masked_sums_cost(tmp_path, home, monkeypatch, n_sites):
    """The default job between sites; and in one process, with masks and without."""
    rows, edges = (ROWS, EDGES) if n_sites == 4 else ten_sites().values()
    entries = {"n_components": dict.fromkeys(rows, 3), "edges": edges, "collector": "researcher"}
    job = a_job(TrustThenPool(), **entries)
    with federation(tmp_path / "fed", rows) as machine:
        figures = costs(machine, job)
    in_one_process = {}
    for masks in ("compiling", "with masks", "without masks"):
        if masks == "without masks":
            bare = lambda point, share, values, session: MaskedShare(to_fixed(values), share.seen)
            monkeypatch.setattr(release, "_masked", bare)
        sites = Sites(tmp_path / masks, rows, gate=Gate())
        began = time.process_time()
        exchange = sites.run(job)
        seconds = time.process_time() - began
        logs = [log_lines(tmp_path / masks, name) for name in rows]
        sent = [line["bytes"] for log in logs for line in log if line["event"] == "sent"]
        in_one_process[masks] = {
            "cpu_seconds_of_a_site_per_round": seconds
            / n_sites
            / exchange.sites[job.sites[0]].round,
            "bytes_of_all_boxes_per_site": sum(sent) / n_sites,
        }
    del in_one_process["compiling"]
    record(f"cost-{n_sites}-sites-masked", seed=job.seed, between_sites=figures,
           in_one_process=in_one_process)  # fmt: skip
    with_, without = in_one_process.values()
    assert with_["bytes_of_all_boxes_per_site"] == without["bytes_of_all_boxes_per_site"]


def test_a_class_off_the_list_is_refused(machine, tmp_path):
    from fedmixtures.federation.nvflare.kits import write_job

    folder = write_job(tmp_path / "other", machine.signed(a_fit("mmd", 2, seed=98)), 4)
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
    logs = [path.read_text() for site in SITES for path in (machine.kits / site).rglob("*log*.*")]
    assert "COMPLETED" not in status
    assert any("is not in allow_list" in text for text in logs)
    record("class-off-the-list", seed=98, status=status, log="is not in allow_list")


def test_a_site_that_stays_away(machine):
    """The last test of this machine: one site is stopped for good, the others finish."""
    job = a_fit("mmd", 200, seed=5)
    stopped = []

    def stop():
        stopped.append(time.time())
        machine.parties["cork"].stop()

    machine.driver.listener.when(20, stop)
    watched, models = fitted(machine, job, patience=15)
    took = time.time() - stopped[0]
    assert watched.absent == ["cork"]
    assert set(models) == set(SITES) - {"cork"}
    lines = {name: site_log(machine, name, job) for name in ("bergen", "delft")}
    how = {name: {line["event"] for line in found} for name, found in lines.items()}
    assert all({"stale", "dropped"} <= events for events in how.values())
    assert watched.segments[-1]["held"] == {}
    record("site-away", seed=job.seed, seconds_from_loss_to_end=took, absent=watched.absent,
           reported=sorted(how["bergen"] & {"stale", "dropped"}), max_stale=job.max_stale,
           segments=watched.segments)  # fmt: skip


def test_a_site_whose_only_neighbour_stays_away_holds(machine):
    """Cork is still away; aachen, bergen and delft form a path on which delft hears cork alone."""
    edges = (EDGES[0], EDGES[2])
    job = a_fit("mmd", 5, seed=6, edges=edges)
    watched, models = fitted(machine, job, patience=5)
    assert watched.segments[-1]["held"] == {"delft": 0}
    assert set(models) == {"aachen", "bergen", "delft"}
