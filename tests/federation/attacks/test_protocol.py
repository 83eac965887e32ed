"""Attacks on who may ask for what: roles, signatures, budgets, nonsense in messages."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import fedmixtures.federation.node as node_room
from federated import Sites, a_job, same_bits, site_rows
from fedmixtures import MMD, FeasibleSet, GTVMin
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.job import SignedJob
from fedmixtures.federation.node.budgets import BudgetSpent, LockedRecord
from fedmixtures.federation.node.gate import GateRefusal
from fedmixtures.federation.node.ledger import Ledger, PrivacyBudget, noise_for
from fedmixtures.federation.rounds import NodeRefused, Parcel, hello
from fedmixtures.federation.wire.message import ModelMessage, encode_message
from fedmixtures.federation.wire.sealing import Address, SiteKey

ROWS = site_rows((96, 96, 96, 96))
METHOD = GTVMin(MMD(), n_local_steps=1, feasible=FeasibleSet())


@pytest.fixture
def sites(tmp_path):
    return Sites(tmp_path, ROWS)


def test_a6_a_researcher_is_never_a_site(sites):
    names = ("aachen", "researcher")
    job = a_job(METHOD, n_components=dict.fromkeys(names, 3), edges=((*names, 1.0),))
    with pytest.raises(NodeRefused, match="no site 'researcher', which it knows in another role"):
        ask(sites.nodes["aachen"], sites.hello(job))


def test_a6_a_site_is_never_a_collector(sites, tmp_path):
    generous = Sites(tmp_path / "generous", ROWS, share_result=True)
    with pytest.raises(NodeRefused, match="no researcher 'bergen'"):
        ask(generous.nodes["aachen"], generous.hello(a_job(METHOD, collector="bergen")))


def test_only_a_pinned_researcher_has_a_site_work(sites):
    job, node = a_job(METHOD), sites.nodes["aachen"]
    by = lambda name, key: SignedJob.by(name, key, job)
    researcher = sites.keys["researcher"]
    unsigned = {k: v for k, v in hello(by("researcher", researcher)).head.items()}
    del unsigned["signature"]
    changed = dataclasses.replace(by("researcher", researcher), job=a_job(METHOD, seed=77))
    with pytest.raises(NodeRefused, match="not signed"):
        ask(node, dataclasses.replace(hello(by("researcher", researcher)), head=unsigned))
    for forged in (by("researcher", SiteKey.generate()), by("stranger", researcher),
                   by("bergen", sites.keys["bergen"]), changed):  # fmt: skip
        with pytest.raises(NodeRefused, match="not signed by a researcher on its roster"):
            ask(node, hello(forged))
    assert ask(node, hello(by("researcher", researcher))).head["rounds"] == [0]


def test_a_site_may_approve_jobs_one_by_one(tmp_path):
    job, other = a_job(METHOD), a_job(METHOD, seed=9)
    sites = Sites(tmp_path, ROWS, approved_jobs=(job.key,))
    ask(sites.nodes["aachen"], sites.hello(job))
    with pytest.raises(NodeRefused, match="not among approved_jobs"):
        ask(sites.nodes["aachen"], sites.hello(other))


def test_a7_two_processes_spend_one_budget(tmp_path):
    budget, noise = PrivacyBudget(3.0, 1e-5), noise_for(3.0, 1e-5, 20)
    both = [Ledger(LockedRecord(tmp_path / "ledger.json"), budget) for _ in range(2)]
    for _ in range(2):
        for ledger in both:
            ledger.charge(noise, 5)
    for ledger in both:
        assert 2.9 < ledger.epsilon() <= 3.0
        with pytest.raises(BudgetSpent, match="above its budget of 3"):
            ledger.charge(noise, 1)


def test_a7_a_deleted_account_is_noticed(tmp_path):
    sites = Sites(tmp_path, ROWS)
    sites.run(a_job(METHOD, n_rounds=1))
    (tmp_path / "aachen" / "releases.json").unlink()
    with pytest.raises(NodeRefused, match="was begun and is gone"):
        ask(sites.started("aachen"), sites.hello(a_job(METHOD, seed=5)))


def test_a7_a_privacy_section_means_required(tmp_path):
    from fedmixtures.federation.node.site import SiteConfig

    text = 'name = "a"\n[data]\npath = "x.csv"\ncolumns = ["x"]\n'
    (tmp_path / "without.toml").write_text(text)
    (tmp_path / "with.toml").write_text(text + "[privacy]\nepsilon = 2.0\n")
    assert not SiteConfig.load(tmp_path / "without.toml").limits.require_privacy
    assert SiteConfig.load(tmp_path / "with.toml").limits.require_privacy


@pytest.mark.parametrize("number", [1.7e308, -1e155])
def test_a9_nonsense_is_dropped_and_the_others_go_on(tmp_path, number):
    sites, job = Sites(tmp_path, ROWS), a_job(METHOD, n_rounds=3)
    rounds = sites.rounds(job)
    rounds.begin()
    for t in range(3):
        model = sites.nodes["bergen"].sessions[job.key].model()
        bad = type(model)(model.weights, np.full_like(model.means, number), model.covariances)
        rounds.waiting["aachen"] = [
            Parcel("bergen", "aachen", t, sealed(sites, job, t, bad)) if p.source == "bergen" else p
            for p in rounds.waiting["aachen"]
        ]
        rounds.round(t)
        assert [r["source"] for r in rounds.replies["aachen"].head["rejected"]] == ["bergen"]
    for model in sites.results(job).values():
        assert all(np.isfinite(part).all() for part in model.parts)


def sealed(sites, job, t, mixture) -> bytes:
    address = Address(job.key, t, "bergen", "aachen")
    content = encode_message(ModelMessage(mixture))
    return sites.keys["bergen"].seal(content, sites.roster.sites["aachen"], address)


def test_only_messages_that_the_gate_knows_are_sealed(sites):
    """One choke point: seal is called at one place of a site, with what passed the gate."""
    calls = []
    for path in Path(node_room.__file__).parent.glob("*.py"):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.Attribute) and part.attr == "seal":
                calls.append(path.name)
    assert calls == ["release.py"]
    job = a_job(METHOD)
    ask(sites.nodes["aachen"], sites.hello(job))
    session, point = sites.nodes["aachen"].sessions[job.key], sites.nodes["aachen"].point

    @dataclasses.dataclass(frozen=True)
    class Statistics:
        mass: np.ndarray

    with pytest.raises(GateRefusal, match="knows no Statistics"):
        point.passed(Statistics(np.ones(3)), session)


def test_what_is_on_disk_before_a_box_leaves(sites, tmp_path, monkeypatch):
    """If the process dies while it writes, nothing has left; afterwards all is as if it had not."""
    job = a_job(METHOD, n_rounds=2)
    rounds = sites.rounds(job)
    rounds.begin()
    store = sites.nodes["aachen"].sessions[job.key].store
    monkeypatch.setattr(store, "note", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rounds.round(0)
    honest = Sites(tmp_path / "honest", ROWS)
    honest.run(job)
    sites.nodes = {name: sites.started(name) for name in sites.nodes}
    sites.run(job)
    found, expected = sites.results(job), honest.results(job)
    assert all(same_bits(found[name], expected[name]) for name in found)
