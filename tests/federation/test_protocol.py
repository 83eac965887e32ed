"""Trust-then-Pool between sites: the same protocol, its sums under masks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from federated import SITES, WIDE_OPEN, Sites, a_job, engine_solution, same_bits, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.federation.explain import what_left
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.job import JobError
from fedmixtures.federation.node.budgets import ReleaseBudget
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.federation.wire.frames import Frame, request
from fedmixtures.federation.wire.message import ModelRefused
from helpers import QUICK_TRUST

ROWS = site_rows((60, 60, 60, 60))


def trust_job(kind="full", **entries):
    method = replace(QUICK_TRUST, covariance_type=kind)
    return a_job(method, **({"n_components": dict.fromkeys(SITES, 2)} | entries))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The default job to its end, at the sites' defaults."""
    sites = Sites(tmp_path_factory.mktemp("trust"), ROWS, gate=Gate())
    job = a_job(TrustThenPool())
    exchange = sites.run(job)
    return sites, job, exchange


@pytest.mark.parametrize("kind", ["full", pytest.param("spherical", marks=pytest.mark.slow)])
def test_without_gate_and_rounding_it_is_the_engine_s(kind, tmp_path):
    sites, job = Sites(tmp_path, ROWS, gate=WIDE_OPEN), trust_job(kind)
    sites.run(job)
    alone = engine_solution(job, ROWS, block_size=None)
    for name, found in sites.results(job).items():
        expected = alone.mixture(name)
        for a, b in zip(found.parts, expected.parts, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)


def test_all_members_come_to_the_same_end(finished):
    sites, job, exchange = finished
    rounds = {reply.head["round"] for reply in exchange.replies.values()}
    assert len(rounds) == 1
    sessions = [node.sessions[job.key] for node in sites.nodes.values()]
    assert len({tuple(sorted(session.requests.sums.seen.values())) for session in sessions}) == 1
    assert all(np.isfinite(part).all() for m in sites.results(job).values() for part in m.parts)


OFTEN = (1, 2, 3, *range(4, 200, 13))
"""In every phase."""


@pytest.mark.parametrize("after", [(2, 30), pytest.param(OFTEN, marks=pytest.mark.slow)])
def test_a_killed_site_goes_on_where_it_was(tmp_path, after):
    """After so many exchanges all sites are new processes; the end is the same."""
    job = trust_job()
    reference = Sites(tmp_path / "undisturbed", ROWS, gate=Gate())
    reference.run(job)
    sites = Sites(tmp_path, ROWS, gate=Gate())
    sites.keys, sites.roster = reference.keys, reference.roster  # the same secret offsets
    sites.nodes = {name: sites.started(name) for name in SITES}
    exchange, t = sites.rounds(job), 0
    exchange.begin()
    while not all(site.is_over for site in exchange.sites.values()):
        exchange.round(t)
        t += 1
        if t in after:
            sites.nodes = {name: sites.started(name) for name in SITES}
            exchange = sites.rounds(job)
            assert exchange.begin() == t
    found, expected = sites.results(job), reference.results(job)
    assert all(same_bits(found[name], expected[name]) for name in SITES)
    lines = (tmp_path / "aachen" / "sums.json").read_text()
    assert lines == (reference.folder / "aachen" / "sums.json").read_text()


def test_the_default_job_needs_all_the_sums_that_sites_allow_by_default(finished):
    sites, *_ = finished
    sums = json.loads((sites.folder / "aachen" / "sums.json").read_text())["rows"]
    (of_job,) = sums["|".join(SITES)].values()
    assert sum(of_job.values()) <= ReleaseBudget().max_sums == 40


@pytest.mark.parametrize("t", [1, 2, 3, 60])
def test_who_leaves_for_good_does_not_end_the_job(tmp_path, t):
    """In a sum or in between, in the first exchange or later: the others come to an end."""
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    exchange = sites.rounds(job)
    exchange.begin()
    for reached in range(t):
        exchange.round(reached)
    del sites.nodes["delft"]
    if t % 2:  # and somebody is a new process meanwhile
        sites.nodes["cork"] = sites.started("cork")
    rest = sites.rounds(job)
    if t == 3:
        with pytest.raises(NodeRefused, match="before all knew the units"):
            rest.begin()
        return
    rest.run()
    found = sites.results(job)
    assert set(found) == {"aachen", "bergen", "cork"}
    assert all(np.isfinite(part).all() for mixture in found.values() for part in mixture.parts)
    sums = json.loads((tmp_path / "aachen" / "sums.json").read_text())["rows"]
    # None over the three after one over all, which would show the fourth's share.
    assert list(sums) == ["|".join(SITES[:3] if t < 3 else SITES)]


def test_who_never_comes_is_left_out(tmp_path):
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    del sites.nodes["delft"]
    sites.run(job)
    sums = json.loads((tmp_path / "aachen" / "sums.json").read_text())["rows"]
    assert list(sums) == ["aachen|bergen|cork"]
    assert len(sites.results(job)) == 3


def test_fewer_than_half_do_not_go_on(tmp_path):
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    sites.nodes = {"aachen": sites.nodes["aachen"]}
    with pytest.raises(NodeRefused, match="fewer than half"):
        sites.rounds(job).begin()


def test_an_exchange_has_one_answer(finished):
    sites, job, _ = finished
    node = sites.started("aachen")
    ask(node, sites.hello(job))
    first = ask(node, request("share", job=job.key, round=3))
    again = ask(node, request("share", job=job.key, round=3))
    assert first.boxes == again.boxes
    with pytest.raises(ModelRefused, match="already answered"):
        node.sessions[job.key].accept("bergen", 3, b"other")


def test_what_left_is_told_from_the_site_s_own_record(finished):
    sites, job, _ = finished
    text = what_left(sites.nodes["aachen"].config, job)
    sums = json.loads((sites.folder / "aachen" / "sums.json").read_text())["rows"]
    (of_job,) = sums["|".join(SITES)].values()
    boxes = sites.folder.glob("aachen/test-*/sent-*.fmx")
    last = max(path.stem for path in boxes if Frame.decode(path.read_bytes()).boxes)
    last = int(last.removeprefix("sent-"))
    assert text.startswith(f"aachen, rounds 0 to {last}: models: 1, at most 18 numbers each, to ")
    assert f"; masked parts of sums: {len(of_job)}, at most" in text
    assert "bergen, cork, delft can read totals alone" in text
    assert text.endswith("Used of its budget: 1 of 10000 jobs and 1 of 1000000 models.")
    assert what_left(sites.nodes["aachen"].config, trust_job()) == "aachen: nothing left."


def test_more_sums_than_the_site_allows_end_the_job(tmp_path):
    sites = Sites(tmp_path, ROWS, gate=Gate(), releases=ReleaseBudget(max_sums=5))
    with pytest.raises(NodeRefused, match="max_sums"):
        sites.run(trust_job())


def test_sites_have_as_many_components(tmp_path):
    with pytest.raises(JobError, match="as many components"):
        trust_job(n_components=dict.fromkeys(SITES, 2) | {"cork": 3})


def test_messages_of_an_exchange_have_one_size(finished):
    sites, job, _ = finished
    for name in SITES:
        for path in (sites.folder / name).glob("test-*/sent-*.fmx"):
            sizes = {len(box) for box in Frame.decode(path.read_bytes()).boxes.values()}
            assert len(sizes) <= 1, path
