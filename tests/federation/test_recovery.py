"""Sites that die, stay away or fall behind."""

from __future__ import annotations

import pytest

from federated import EDGES, Sites, a_job, same_bits, site_rows, step_frame
from fedmixtures import KL, FeasibleSet, GTVMin
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.rounds import NodeRefused, parcels_of
from fedmixtures.federation.wire.frames import request

ROWS = site_rows((96, 96, 96, 96))


def a_fit(**entries):
    # KL draws new points every round: the hardest to resume.
    return a_job(GTVMin(KL(n_samples=5), n_local_steps=1, feasible=FeasibleSet()), **entries)


@pytest.fixture(scope="module")
def no_fault(tmp_path_factory):
    sites, job = Sites(tmp_path_factory.mktemp("well"), ROWS), a_fit(n_rounds=6)
    sites.run(job)
    return sites.results(job)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_killed_site_comes_back_and_the_models_are_the_same(tmp_path, no_fault, damaged):
    sites, job = Sites(tmp_path, ROWS), a_fit(n_rounds=6)
    exchange = sites.rounds(job)
    for t in range(exchange.begin(), 4):
        exchange.round(t)
    # aachen and bergen get one round ahead before cork is found dead.
    for name in ("aachen", "bergen"):
        ask(sites.nodes[name], step_frame(exchange, name, 4))
    if damaged:  # the last write of cork was torn
        path = next((tmp_path / "cork").glob("test-*/round-000004.safetensors"))
        path.write_bytes(path.read_bytes()[:-9])
    sites.nodes["cork"] = sites.started("cork")
    again = sites.rounds(job)
    assert again.begin() == (3 if damaged else 4)
    assert sites.nodes["cork"].sessions[job.key].state_from == "disk"
    sites.run(job)
    found = sites.results(job)
    assert all(same_bits(found[name], no_fault[name]) for name in found)


def test_a_request_that_comes_twice_is_carried_out_once(tmp_path, no_fault):
    sites, job = Sites(tmp_path, ROWS), a_fit(n_rounds=6)
    exchange = sites.rounds(job)
    for t in range(exchange.begin(), 6):
        frame = step_frame(exchange, "aachen", t)
        first, again = ask(sites.nodes["aachen"], frame), ask(sites.nodes["aachen"], frame)
        assert first.head["round"] == again.head["round"] == t + 1
        others = {name: step_frame(exchange, name, t) for name in sites.nodes if name != "aachen"}
        exchange.deliver(parcels_of(first))
        for name, request_frame in others.items():
            exchange.deliver(parcels_of(ask(sites.nodes[name], request_frame)))
    found = sites.results(job)
    assert all(same_bits(found[name], no_fault[name]) for name in found)


def test_a_silent_neighbour_is_stale_then_dropped_and_nobody_steps_alone(tmp_path):
    sites, job = Sites(tmp_path, ROWS), a_fit(n_rounds=6, max_stale=2)
    exchange = sites.rounds(job)
    exchange.begin()
    away = sites.nodes.pop("cork")
    seen = []
    for t in range(6):
        exchange.round(t)
        seen.append(exchange.replies["bergen"].head)
    assert ["cork" in head["fresh"] for head in seen] == [True] + [False] * 5
    assert all("aachen" in head["fresh"] for head in seen)
    assert ["cork" in head["stale"] for head in seen] == [False, True, True, False, False, False]
    assert ["cork" in head["dropped"] for head in seen] == [False] * 3 + [True] * 3
    assert away.sessions[job.key].round == 0
    # cork itself hears nobody and stands still.
    head = request("step", job=job.key, round=0, messages=[])
    assert ask(away, head).head["held"] is True
    assert away.sessions[job.key].round == 0


def test_last_messages_survive_a_restart(tmp_path):
    sites, job = Sites(tmp_path, ROWS), a_fit(n_rounds=6, max_stale=2)
    exchange = sites.rounds(job)
    exchange.begin()
    exchange.round(0)
    sites.nodes = {n: sites.started(n) for n in sites.nodes if n != "cork"}
    again = sites.rounds(job)
    assert again.begin() == 1
    again.round(1)
    assert again.replies["bergen"].head["stale"] == ["cork"]


def test_rounds_out_of_order_and_unknown_jobs_are_refused(tmp_path):
    sites, job = Sites(tmp_path, ROWS), a_fit(n_rounds=6)
    node = sites.nodes["aachen"]
    with pytest.raises(NodeRefused, match="say hello first"):
        ask(node, request("share", job=job.key, round=0))
    ask(node, sites.hello(job))
    with pytest.raises(NodeRefused, match="not on disk"):
        ask(node, request("share", job=job.key, round=3))
    ask(node, request("share", job=job.key, round=0))
    with pytest.raises(NodeRefused, match="stands after 0"):
        ask(node, request("step", job=job.key, round=2, messages=[]))


def test_other_rows_do_not_resume(tmp_path):
    sites, job = Sites(tmp_path, ROWS), a_fit(n_rounds=2)
    sites.run(job)
    sites.rows = ROWS | {"aachen": ROWS["aachen"] + 0.5}
    changed = sites.started("aachen")
    reply = ask(changed, sites.hello(job))
    assert reply.head["rounds"] == [0]


def test_reach_is_the_longest_shortest_path():
    assert a_fit().reach == 2
    assert a_fit(edges=EDGES[:3]).reach == 3
