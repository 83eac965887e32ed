"""Members and strangers that misbehave: refused, reported, the run unharmed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from federated import Sites, a_job, log_lines, same_bits, site_rows
from fedmixtures import MMD, FeasibleSet, GTVMin, Mixture
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.rounds import Parcel, parcels_of, with_parcels
from fedmixtures.federation.wire.frames import Frame, request
from fedmixtures.federation.wire.message import SCHEMA, ModelMessage, encode_message
from fedmixtures.federation.wire.sealing import Address, SiteKey

METHOD = GTVMin(MMD(), n_local_steps=1, feasible=FeasibleSet())
ROWS = site_rows((96, 96, 96, 96))


def small_job(**entries):
    return a_job(METHOD, n_rounds=4, **entries)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Final models of a run in which everyone behaves."""
    sites = Sites(tmp_path_factory.mktemp("honest"), ROWS)
    job = small_job()
    sites.run(job)
    return sites.results(job)


class Attack:
    """A run in which aachen, a neighbour of bergen and delft, receives something bad in round 2."""

    def __init__(self, folder):
        self.folder, self.job = folder, small_job()
        self.sites = Sites(folder, ROWS)
        self.exchange = self.sites.rounds(self.job)
        assert self.exchange.begin() == 0
        self.first_box = self.exchange.waiting["aachen"][0]
        self.exchange.round(0)
        self.exchange.round(1)

    def sealed(self, content, *, source="bergen", to="aachen", round=2, key=None):
        address = Address(self.job.key, round, source, to)
        key = key or self.sites.keys[source]
        return key.seal(content, self.sites.roster.sites[to], address)

    def inject(self, source, box, round=2):
        self.exchange.waiting["aachen"].insert(0, Parcel(source, "aachen", round, box))

    def finish(self) -> list[dict]:
        """The rest of the run; what aachen rejected in round 2."""
        self.exchange.round(2)
        rejected = self.exchange.replies["aachen"].head["rejected"]
        self.exchange.round(3)
        return rejected


def a_model(**changes) -> bytes:
    parts = {
        "weights": np.full(3, 1 / 3),
        "means": np.zeros((3, 2)),
        "covariances": np.broadcast_to(np.eye(2), (3, 2, 2)).copy(),
    } | changes
    return Frame({"schema": SCHEMA, "silent": 0}, parts | {"rows": np.array(0.0)}).encode()


BAD_MODELS = {
    "NaN": (a_model(means=np.full((3, 2), np.nan)), "NaN"),
    "infinity": (a_model(means=np.full((3, 2), np.inf)), "NaN or infinity"),
    "shape": (a_model(means=np.zeros((2, 2))), "shape"),
    "features": (a_model(means=np.zeros((3, 5))), "shape"),
    "not definite": (a_model(covariances=np.ones((3, 2, 2))), "positive definite"),
    "negative": (a_model(covariances=np.stack([-np.eye(2)] * 3)), "positive definite"),
    "not symmetric": (a_model(covariances=np.stack([np.array([[1, 0.5], [0, 1]])] * 3)), "symm"),
    "off the simplex": (a_model(weights=np.array([0.5, 0.5, 0.5])), "simplex"),
    "negative weight": (a_model(weights=np.array([1.5, -0.25, -0.25])), "simplex"),
    "weight too small": (a_model(weights=np.array([0.999, 0.0005, 0.0005])), "weight"),
    "far away": (a_model(means=np.full((3, 2), 1e6)), "outside the feasible set"),
    "too wide": (a_model(covariances=np.stack([1e6 * np.eye(2)] * 3)), "outside the feasible set"),
    "too narrow": (a_model(covariances=np.stack([1e-6 * np.eye(2)] * 3)), "outside the feasible"),
    "near overflow": (a_model(means=np.full((3, 2), 1e308)), "outside the feasible set"),
    "overflowing weights": (a_model(weights=np.full(3, 1e308)), "simplex"),
    "overflowing covariance": (a_model(covariances=np.full((3, 2, 2), 1e308)), "covariance"),
    "wide in an empty place": (
        a_model(
            weights=np.array([0.5, 0.5, 0.0]),
            covariances=np.array([1e290, 1e290, 1e300])[:, None, None] * np.eye(2),
        ),
        "outside the feasible set",
    ),
    "no arrays": (Frame({"schema": SCHEMA, "silent": 0}).encode(), "arrays"),
    "other schema": (Frame({"schema": "other", "silent": True}).encode(), "schema"),
    "no frame": (b"\x80\x04\x95pickle", "mark"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model_is_refused_and_its_sender_named(name, node_at_round_one):
    content, reason = BAD_MODELS[name]
    sites, job = node_at_round_one
    node = sites.nodes["aachen"]
    address = Address(job.key, 1, "bergen", "aachen")
    box = sites.keys["bergen"].seal(content, sites.roster.sites["aachen"], address)
    frame = request("step", job=job.key, round=1)
    reply = ask(node, with_parcels(frame, [Parcel("bergen", "aachen", 1, box)]))
    (rejected,) = reply.head["rejected"]
    assert rejected["source"] == "bergen"
    assert reason in rejected["reason"]
    # Nothing good came in this request, so the node holds.
    assert reply.head["held"] is True
    assert reply.head["round"] == 1


@pytest.fixture(scope="module")
def node_at_round_one(tmp_path_factory):
    sites = Sites(tmp_path_factory.mktemp("bad"), ROWS)
    job = small_job()
    exchange = sites.rounds(job)
    exchange.begin()
    exchange.round(0)
    return sites, job


def test_intruders_change_nothing(tmp_path, honest):
    attack = Attack(tmp_path)
    stranger = SiteKey.generate()
    bad = BAD_MODELS["NaN"][0]
    model = Mixture([0.2, 0.3, 0.5], np.zeros((3, 2)), [np.eye(2)] * 3)
    good = encode_message(ModelMessage(model))
    attack.inject("cork", attack.sealed(good, source="cork"))  # a member, but no neighbour
    attack.inject("bergen", attack.sealed(good, source="delft"))  # delft in bergen's name
    attack.inject("bergen", attack.sealed(good, key=stranger))  # a stranger in bergen's name
    attack.inject("delft", attack.sealed(bad, source="delft"))  # a neighbour gone wrong
    replayed = attack.first_box
    attack.inject(replayed.source, replayed.box, round=0)  # as it was
    attack.inject(replayed.source, replayed.box, round=2)  # with a new number
    attack.inject("bergen", attack.sealed(good, round=3), round=3)  # from the future
    rejected = attack.finish()
    reasons = sorted(entry["reason"] for entry in rejected)
    assert len(reasons) == 7, reasons
    assert sum("does not open" in reason for reason in reasons) == 3
    assert sum("no neighbour" in reason for reason in reasons) == 1
    assert sum("already taken" in reason for reason in reasons) == 1
    assert sum("earlier" in reason for reason in reasons) == 1
    assert sum("NaN" in reason for reason in reasons) == 1
    found = attack.sites.results(attack.job)
    assert all(same_bits(found[name], honest[name]) for name in honest)
    logged = [line for line in log_lines(tmp_path, "aachen") if line["event"] == "rejected"]
    assert len(logged) == 7


def test_a_hundred_megabytes_are_not_even_parsed(tmp_path):
    import tracemalloc

    node = Sites(tmp_path, ROWS).nodes["aachen"]
    frame = Frame(request("hello").head, boxes={"b": bytes(100 * 2**20)}).encode()
    tracemalloc.start()
    reply = Frame.decode(node.handle(frame))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "above the limit" in reply.head["reason"]
    assert peak < 2**20


def test_the_log_says_what_left_and_no_values(tmp_path):
    sites, job = Sites(tmp_path, ROWS), small_job()
    sites.run(job)
    lines = log_lines(tmp_path, "aachen")
    sent = [line for line in lines if line["event"] == "sent"]
    assert [line["round"] for line in sent] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert {line["to"] for line in sent} == {"bergen", "delft"}
    entries = {"time", "event", "job", "round", "to", "bytes", "kind", "numbers", "merged"}
    assert all(set(line) == entries for line in sent)
    model = sites.results(job)["aachen"]
    text = json.dumps(lines)
    assert not any(repr(float(x))[:8] in text for x in model.means.ravel())


def test_two_sites_told_different_things_do_not_hear_each_other(tmp_path):
    sites = Sites(tmp_path, ROWS)
    job, other = small_job(), small_job(seed=4)
    for name, node in sites.nodes.items():
        told = other if name == "bergen" else job
        ask(node, sites.hello(told))
    shared = ask(sites.nodes["bergen"], request("share", job=other.key, round=0))
    ask(sites.nodes["aachen"], request("share", job=job.key, round=0))
    parcels = [parcel for parcel in parcels_of(shared) if parcel.destination == "aachen"]
    frame = request("step", job=job.key, round=0)
    reply = ask(sites.nodes["aachen"], with_parcels(frame, parcels))
    assert "does not open" in reply.head["rejected"][0]["reason"]
