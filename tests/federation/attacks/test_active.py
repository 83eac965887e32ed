"""Attacks by who does not follow the protocol: jobs that are dropped, run again, or flooded."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from federated import SITES, Sites, a_job, site_rows
from fedmixtures import FeasibleSet, GTVMin
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.job import JobError
from fedmixtures.federation.mailbox import MOST_WAITING
from fedmixtures.federation.masked_sums import SumRefused
from fedmixtures.federation.node.budgets import ReleaseBudget
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.federation.site_part import SitePart
from fedmixtures.federation.wire.frames import Frame, request
from fedmixtures.federation.wire.sealing import Address
from helpers import QUICK_TRUST

ROWS = site_rows((60, 60, 60, 60))
NEW = np.random.default_rng(5).standard_normal((11, 2))
"""Of as many more patients as the gate asks for."""


def trust_job(**entries):
    return a_job(QUICK_TRUST, **({"n_components": dict.fromkeys(SITES, 2)} | entries))


def test_a_dropped_job_counts(tmp_path):
    """N3: each job has a sum of units and is dropped before a model leaves; the sixth has none."""
    sites = Sites(tmp_path, ROWS, gate=Gate(), releases=ReleaseBudget())
    for number in range(5):
        sites.nodes = {name: sites.started(name) for name in SITES}
        rounds = sites.rounds(trust_job(shift=(0.1 * number, 0.0)))
        rounds.begin()
        for t in range(3):  # drawn numbers, places, commitments, and the first shares
            rounds.round(t)
    sites.nodes = {name: sites.started(name) for name in SITES}
    with pytest.raises(NodeRefused, match="max_jobs"):
        sites.rounds(trust_job(shift=(0.5, 0.0))).begin()
    assert sites.nodes["aachen"].releases.left() == (0, ReleaseBudget().max_models)
    sites.run(trust_job(shift=(0.4, 0.0)))  # one that is counted is gone on with


def test_jobs_that_were_let_in_together_are_counted_one_by_one(tmp_path):
    """N3: all are shown before any begins, so that each finds an account with nothing in it."""
    sites = Sites(tmp_path, ROWS, gate=Gate(), releases=ReleaseBudget(max_jobs=1))
    both = [sites.rounds(trust_job(seed=seed)) for seed in range(2)]
    for rounds in both:
        rounds.begin()
    both[0].round(0)
    with pytest.raises(NodeRefused, match="max_jobs"):
        both[1].round(0)


def first_share(sites: Sites, job) -> np.ndarray:
    """Aachen's masked part of the first sum, as bergen reads it."""
    sites.nodes = {name: sites.started(name) for name in SITES}
    rounds = sites.rounds(job)
    for t in range(rounds.begin(), 3):
        rounds.round(t)
    box = ask(sites.nodes["aachen"], request("share", job=job.key, round=3)).boxes["bergen"]
    address = Address(job.key, 3, "aachen", "bergen")
    content = sites.keys["bergen"].open(box, sites.roster.sites["aachen"], address)
    return np.frombuffer(Frame.decode(content).boxes["share"], "<u8")


def apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Two shares subtracted: small numbers if their masks are the same, else anything."""
    return (a - b).view(np.int64) / 2.0**24


def test_a_job_is_not_run_again_on_other_rows(tmp_path):
    """N2: a patient is added and the same job comes again: two shares less each other are hers."""
    sites, job = Sites(tmp_path, ROWS, gate=Gate(rounding=0.0)), trust_job()
    before = first_share(sites, job)
    np.testing.assert_array_equal(first_share(sites, job), before)  # the same rows: the same box
    patient = np.array([[3.0, -2.0]])
    sites.rows = ROWS | {"aachen": np.concatenate([ROWS["aachen"], patient])}
    with pytest.raises(NodeRefused, match="on other rows.*another name or seed"):
        # What it would give: one row more, and where it lies.
        pytest.fail(f"the patient is {apart(first_share(sites, job), before)}")
    for other in (trust_job(seed=4), trust_job(name="again")):
        with pytest.raises(NodeRefused, match="nearly those that an earlier job"):
            first_share(sites, other)
    sites.rows = ROWS | {"aachen": np.concatenate([ROWS["aachen"], patient + NEW])}
    for other in (trust_job(seed=4), trust_job(name="again")):
        assert np.abs(apart(first_share(sites, other), before)).min() > 2.0**20
    sites.rows = ROWS
    np.testing.assert_array_equal(first_share(sites, job), before)


def test_rows_may_change_until_something_has_left(tmp_path):
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    ask(sites.nodes["aachen"], sites.hello(job))
    sites.rows = ROWS | {"aachen": ROWS["aachen"][11:]}
    first_share(sites, job)
    gtv = a_job(GTVMin(feasible=FeasibleSet()))  # no masks: a model of other rows is another model
    for rows in (ROWS, sites.rows):
        sites.rows = rows
        node = sites.started("aachen")
        ask(node, sites.hello(gtv))
        assert ask(node, request("share", job=gtv.key, round=0)).boxes


def test_rows_that_change_between_hello_and_the_first_share_are_noticed(tmp_path):
    """N2: a second process has let the job in before the first one's share left."""
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    sites.rows = ROWS | {"aachen": ROWS["aachen"][1:]}
    second = sites.started("aachen")
    ask(second, sites.hello(job))
    sites.rows = ROWS
    first_share(sites, job)
    with pytest.raises(SumRefused, match="on other rows"):
        second.runs.enter(job.key, second.sessions[job.key].fingerprint)


@pytest.mark.parametrize("shown", [False, True])
def test_who_vanishes_before_a_total_is_known_locks_nobody_out(tmp_path, shown):
    """N6: the three others run a job without it, unless a sum over all four has been opened."""
    sites, three = Sites(tmp_path, ROWS, gate=Gate()), SITES[:3]
    rounds = sites.rounds(trust_job())
    rounds.begin()
    for t in range(4 if shown else 3):  # after the third all shares are on their way
        rounds.round(t)
    sites.nodes = {name: sites.started(name) for name in three}
    edges = tuple((a, b, 1.0) for a in three for b in three if a < b)
    job = trust_job(name="three", n_components=dict.fromkeys(three, 2), edges=edges)
    if shown:
        with pytest.raises(NodeRefused, match="would tell"):
            sites.run(job)
    else:
        sites.run(job)
        assert all(node.sessions[job.key].is_over for node in sites.nodes.values())


def test_a_job_whose_record_is_gone_is_not_begun_again(tmp_path):
    """N2: without the record the same masks would serve for other answers."""
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    first_share(sites, job)
    (folder,) = (tmp_path / "aachen").glob("test-*")
    shutil.rmtree(folder)
    with pytest.raises(NodeRefused, match="the record of what left for it is gone"):
        first_share(sites, job)
    (tmp_path / "aachen" / "runs.json").unlink()
    with pytest.raises(NodeRefused, match="was begun and is gone"):
        first_share(sites, job)


def test_an_expired_job_is_refused_and_a_serial_number_makes_another(tmp_path):
    """N2: an old signed job is nobody's for ever."""
    sites = Sites(tmp_path, ROWS, gate=Gate())
    with pytest.raises(NodeRefused, match="has expired on 2020-02-29"):
        ask(sites.nodes["aachen"], sites.hello(trust_job(expires="2020-02-29")))
    ask(sites.nodes["aachen"], sites.hello(trust_job(expires="2999-12-31")))
    assert trust_job(serial=1).key != trust_job().key
    for wrong in ({"expires": "2020-02-30"}, {"expires": "tomorrow"}, {"serial": -1}):
        with pytest.raises(JobError, match=f"`{next(iter(wrong))}` is"):
            trust_job(**wrong)


def test_masks_are_never_the_same_again(tmp_path):
    """N2: all sites are put back from a backup of before the job, and one has more patients."""
    sites, job = Sites(tmp_path, ROWS, gate=Gate(rounding=0.0)), trust_job()
    first_share(sites, trust_job(seed=9))
    for name in SITES:
        shutil.copytree(tmp_path / name, tmp_path / "backup" / name)
    before = first_share(sites, job)
    for rows in (ROWS, ROWS | {"aachen": np.concatenate([ROWS["aachen"], NEW])}):
        for name in SITES:
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "backup" / name, tmp_path / name)
        sites.rows = rows
        assert np.abs(apart(first_share(sites, job), before)).min() > 2.0**20


@pytest.mark.parametrize(
    ("how", "name"), [("forged", "bergen"), ("forged", "cork"), ("sealed", "bergen")]
)
def test_a_flood_keeps_no_true_box_of_another_out(tmp_path, how, name):
    """N7: bergen sends boxes for later rounds, one byte each in some name, or true ones of its own.

    The true boxes of the first exchange come afterwards, and are heard.
    """
    sites, job = Sites(tmp_path, ROWS, gate=Gate()), trust_job()
    rounds = sites.rounds(job)
    rounds.begin()
    part = SitePart("aachen", lambda: None)
    part.node, part.job, part.round = sites.nodes["aachen"], job, 0

    def taken(source: str, t: int, box: bytes) -> bool:
        return part.came(Frame({"source": source, "round": t}, boxes={"box": box}).encode())

    def crafted(t: int) -> bytes:
        address = Address(job.key, t, name, "aachen")
        key, to = sites.keys[name], sites.roster.sites["aachen"]
        return b"x" if how == "forged" else key.seal(b"", to, address)

    candidates = [taken(name, 0, bytes([i])) for i in range(5)]  # for the true one's own place
    assert candidates == [True] * 4 + [False]
    got = [taken(name, t, crafted(t)) for t in range(1, MOST_WAITING + 1)]
    assert not taken(name, MOST_WAITING + 1, crafted(MOST_WAITING + 1))
    assert sum(got) >= MOST_WAITING - 4
    true = [p for p in rounds.waiting["aachen"] if how == "forged" or p.source != name]
    assert len(true) >= 2
    assert all(taken(p.source, p.round, p.box) for p in true)
    site = rounds.sites["aachen"]
    site.take(part.mailbox.up_to(0, "aachen"))
    assert site.fresh == {p.source for p in true}
