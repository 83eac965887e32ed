"""Site configuration, keys, rosters, frames: what is written, read and refused."""

from __future__ import annotations

import dataclasses
import json
import math
import stat
import subprocess
import sys

import numpy as np
import pytest

from federated import Sites, a_job, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin, NetworkGaussianMixture
from fedmixtures.estimators.resolve import resolve_method
from fedmixtures.federation import mailbox
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.job import Job, JobError
from fedmixtures.federation.node.job_program import make_job, name_in
from fedmixtures.federation.node.node import Node
from fedmixtures.federation.node.site import JobRefused, SiteConfig
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.federation.site_part import AHEAD, SitePart
from fedmixtures.federation.wire.frames import Frame, FrameError, request
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import Address, BoxError, SiteKey, fingerprint

TOML = """
name = "aachen"
[data]
path = "rows.csv"
columns = ["height", "weight"]
[limits]
max_rounds = 50
methods = ["gtv-mmd", "gtv-kl"]
neighbours = ["bergen"]
[release_gate]
min_count = 20
"""


def test_a_site_is_read_from_one_file(tmp_path):
    (tmp_path / "site.toml").write_text(TOML)
    (tmp_path / "rows.csv").write_text("weight,id,height\n60,1,170\n80,2,180\n")
    key = SiteKey.generate()
    key.save(tmp_path / "site.key")
    Roster({"aachen": key.public}).save(tmp_path / "roster.toml")
    node = Node.load(tmp_path / "site.toml")
    np.testing.assert_array_equal(node.support.rows, [[170, 60], [180, 80]])
    assert node.config.limits.methods == ("gtv-mmd", "gtv-kl")
    assert node.config.gate.threshold(2) == 20
    Roster({"aachen": SiteKey.generate().public}).save(tmp_path / "roster.toml")
    with pytest.raises(ValueError, match="is not the one of"):
        Node.load(tmp_path / "site.toml")


def test_the_file_of_a_site_that_has_just_joined(tmp_path):
    """It takes the default method and no other, by the rules of the documents; all is explained."""
    pytest.importorskip("tomli_w")
    from fedmixtures.federation.nvflare.enrol import site_file

    folder, columns = tmp_path / 'a "site" of \\ours', ("age", 'b"m\\i, ä')
    text = site_file(folder, "hospital-1", folder / "rows.csv", columns)
    for line in filter(None, text.splitlines()):
        assert line.startswith(("[", "# ")) or "  # " in line, line
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    config = SiteConfig.load(tmp_path / "site.toml")
    plain = SiteConfig(config.name, folder / "rows.csv", columns, folder / "site.key",
                       folder / "roster.toml", folder / "state")  # fmt: skip
    assert dataclasses.replace(config, limits=plain.limits) == plain
    assert config.gate.rounding == 0.2
    assert config.limits.methods == ("trust",)
    default = resolve_method(NetworkGaussianMixture().method, "full")
    names = ("hospital-1", "hospital-2", "hospital-3")
    edges = ((*names[:2], 1.0), (*names[1:], 1.0))
    job = lambda method: a_job(method, n_components=dict.fromkeys(names, 3), edges=edges)
    config.permit(job(default), name_in(job(default)))
    with pytest.raises(JobRefused, match="'gtv-mmd' is not among those allowed: trust"):
        config.permit(job(None), name_in(job(None)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOML.replace("max_rounds", "max_round"), "unknown entry 'max_round'"),
        (TOML.replace("max_rounds = 50", "max_rounds = 'many'"), "max_rounds"),
        (TOML.replace('name = "aachen"', ""), "lacks the entry 'name'"),
        ("name = ", "no valid TOML"),
    ],
)
def test_wrong_site_files_are_refused(tmp_path, text, message):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        SiteConfig.load(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_rounds": 5}, "10 rounds are asked for, 5 allowed"),
        ({"max_components": 2}, "3 components are asked for, 2 allowed"),
        ({"methods": ("gtv-kl",)}, "the method 'gtv-mmd' is not among those allowed: gtv-kl"),
        ({"neighbours": ("bergen",)}, "no model may go to 'delft'"),
        ({"require_privacy": True}, "only jobs with differential privacy"),
    ],
)
def test_the_site_wins_over_the_job(tmp_path, limits, reason):
    sites = Sites(tmp_path, site_rows(), **limits)
    with pytest.raises(NodeRefused, match=reason):
        ask(sites.nodes["aachen"], sites.hello(a_job()))
    assert not sites.nodes["aachen"].sessions


def test_all_reasons_come_at_once(tmp_path):
    sites = Sites(tmp_path, site_rows(), max_rounds=5, max_components=2)
    with pytest.raises(NodeRefused, match="rounds.*; 3 components"):
        ask(sites.nodes["aachen"], sites.hello(a_job()))


def test_a_neighbour_without_a_key_is_refused(tmp_path):
    sites = Sites(tmp_path, site_rows())
    node = sites.nodes["aachen"]
    keys = {name: key for name, key in sites.roster.sites.items() if name != "delft"}
    node.roster = Roster(keys, sites.roster.researchers)
    with pytest.raises(NodeRefused, match="the roster has no site 'delft'"):
        ask(node, sites.hello(a_job()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"method": {"class": "Popen", "fields": {}}},
            "needs 'Popen', which nothing that is installed here registers",
        ),
        ({"method": {"class": "KMeansStart", "fields": {}}}, "is a KMeansStart"),
        ({"n_rounds": 0}, "n_rounds"),
        ({"n_rounds": 10**9}, "n_rounds"),
        ({"edges": [["aachen", "nowhere", 1.0]]}, "between sites of the job"),
        ({"edges": [["aachen", "bergen", -1.0]]}, "positive"),
        ({"n_components": {"../x": 2}}, "no site name"),
        ({"extra": 1}, "no entry 'extra'"),
        ({"name": "a/b"}, "name of a job"),
        ({"format": 2}, "format"),
        ({"features": []}, "features"),
        ({"scale": [1.0, 0.0]}, "scale"),
        ({"privacy": {"clip": 1.0}}, "privacy"),
    ],
)
def test_malformed_jobs_are_refused(tmp_path, change, message):
    plain = json.loads(a_job().to_json()) | change
    sites = Sites(tmp_path, site_rows())
    try:
        frame = sites.hello(Job.from_plain(plain))
    except JobError:  # nobody can sign it
        frame = request("hello", job=plain, signer="researcher", signature="00")
    with pytest.raises(NodeRefused, match=message):
        ask(sites.nodes["aachen"], frame)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (GTVMin(MMD()), "feasible"),
        (GTVMin(MMD(), learning_rate="auto", feasible=FeasibleSet()), "auto"),
        (GTVMin(KL(n_samples=10**9), feasible=FeasibleSet()), "n_samples"),
        (GTVMin(MMD(), n_local_steps=10**9, feasible=FeasibleSet()), "n_local_steps"),
        (GTVMin(MMD(), feasible=FeasibleSet(min_weight=0.5)), "min_weight"),
    ],
)
def test_methods_that_no_silo_can_run_are_refused_by_the_driver(method, message):
    with pytest.raises(JobError, match=message):
        a_job(method)


def test_euclidean_needs_equal_components():
    with pytest.raises(JobError, match="one to one"):
        a_job(
            GTVMin(Euclidean(), feasible=FeasibleSet()),
            n_components={"aachen": 2, "bergen": 3, "cork": 3, "delft": 3},
        )


def test_one_job_has_one_key_and_another_another():
    job = a_job()
    assert job.key == Job.from_plain(json.loads(job.to_json())).key
    assert dataclasses.replace(job, seed=4).key != job.key
    assert make_job is not None


def test_frames_come_back_bit_for_bit():
    rng = np.random.default_rng(0)
    arrays = {"a": rng.standard_normal((2, 3)), "b": np.array(math.pi), "c": np.zeros((0, 4))}
    frame = Frame({"kind": "x", "n": 1}, arrays, {"box": b"\x00\xff"})
    again = Frame.decode(frame.encode())
    assert again.head == frame.head
    assert again.boxes == frame.boxes
    for name, array in arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FMX1",
        b"FMX2\x02\x00\x00\x00{}",
        b"FMX1\xff\xff\xff\xff{}",
        b"FMX1\x02\x00\x00\x00{}",
        b"FMX1\x02\x00\x00\x00[]",
        b"FMX1\x13\x00\x00\x00" + b'{"segments":[],"a":NaN}'[:19],
    ],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(FrameError):
        Frame.decode(data)


def framed(head: str, body: bytes = b"") -> bytes:
    return b"FMX1" + len(head).to_bytes(4, "little") + head.encode() + body


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ('{"segments":[{"name":"a","shape":[1]}]}', b""),
        ('{"segments":[{"name":"a","shape":[1]}]}', bytes(9)),
        ('{"segments":[{"name":"a","shape":[-1]}]}', b""),
        ('{"segments":[{"name":"a","shape":[4294967295,4294967295]}]}', b""),
        ('{"segments":[{"name":"a","shape":[true]}]}', bytes(8)),
        ('{"segments":[{"name":"a","bytes":1},{"name":"a","bytes":1}]}', bytes(2)),
        ('{"segments":[{"name":"a","shape":[1],"bytes":8}]}', bytes(8)),
        ('{"segments":[],"x":NaN}', b""),
        ('{"segments":[],"x":1e999}', b""),
        ('{"segments":[],"x":1,"x":2}', b""),
        ('{"segments":[],"x":' + "[" * 5000 + "]" * 5000 + "}", b""),
        ('{"segments":[],"x":' + "9" * 5000 + "}", b""),
    ],
)
def test_heads_that_lie_are_refused(head, body):
    with pytest.raises(FrameError):
        Frame.decode(framed(head, body))


def test_a_box_opens_for_one_address_only():
    alice, bob, eve = (SiteKey.generate() for _ in range(3))
    address = Address("job", 3, "alice", "bob")
    box = alice.seal(b"theta", bob.public, address)
    assert bob.open(box, alice.public, address) == b"theta"
    others = [
        dataclasses.replace(address, round=4),
        dataclasses.replace(address, job="other"),
        dataclasses.replace(address, source="eve"),
        dataclasses.replace(address, destination="eve"),
    ]
    for other in others:
        with pytest.raises(BoxError):
            bob.open(box, alice.public, other)
    with pytest.raises(BoxError):
        bob.open(box, eve.public, address)
    with pytest.raises(BoxError):
        eve.open(box, alice.public, address)
    with pytest.raises(BoxError):
        bob.open(box[:-1], alice.public, address)
    assert alice.seal(b"theta", bob.public, address) != box  # a new nonce every time


def test_keys_are_kept_private(tmp_path):
    key = SiteKey.generate()
    key.save(tmp_path / "k")
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert SiteKey.load(tmp_path / "k").public == key.public
    with pytest.raises(FileExistsError):
        key.save(tmp_path / "k")
    assert len(fingerprint(key.public)) == 39


def test_the_hub_side_needs_no_jax():
    code = "import sys, fedmixtures.federation.job; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_boxes_that_wait_are_bounded():
    inbox = mailbox.Mailbox()
    assert [inbox.put("a", 1, bytes([i])) for i in range(6)] == [True] * 4 + [False] * 2
    assert inbox.put("a", 1, b"\x00")  # the same one again is acknowledged again
    assert inbox.up_to(0) == []
    assert len(inbox.up_to(1)) == 4
    assert inbox.put("a", 1, b"\x00")  # its receipt was lost: nobody is accused
    assert inbox.up_to(1) == []
    assert inbox.up_to(1 + mailbox.LATE_ROUNDS + 1) == []
    assert inbox.put("a", 1, b"\x00")  # much later it is a replay, which the node is to see
    assert len(inbox.up_to(4)) == 1
    large = bytes(mailbox.MOST_BYTES // 2)
    assert inbox.put("a", 5, large)
    assert inbox.put("b", 5, large)
    assert not inbox.put("c", 5, b"x")
    assert len(inbox.up_to(5)) == 2
    assert inbox.put("c", 6, b"x")
    for t in range(mailbox.MOST_WAITING):
        inbox.put("d", t, b"x")
    assert not inbox.put("e", 0, b"x")


def test_a_site_that_has_not_begun_takes_boxes_of_any_round_of_the_job():
    """After a loss all go on from a common round, and some sites begin before others."""
    part = SitePart("aachen", lambda: None)
    part.job = a_job(n_rounds=50)

    def kept(t):
        return part.came(Frame({"source": "bergen", "round": t}, boxes={"box": b"b"}).encode())

    assert kept(35)
    assert not kept(51)
    part.round = 10
    assert kept(10 + AHEAD)
    assert not kept(35)
    assert part.signs.rejected == {"bergen": 2}
