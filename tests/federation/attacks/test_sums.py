"""Attacks on sums over sites: reading, crafted mixtures, differences, forged and poisoned totals.

What is attacked is the code between a protocol and the wire: `ProtocolSession` and the
release point of true nodes. The attacker is a member: it knows its own rows and every total.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from attackers import cutting_cells, hits, rows_in_cells, sums
from federated import Sites, a_job
from fedmixtures import FeasibleSet, GTVMin, Mixture
from fedmixtures.data.node_data import label_hash
from fedmixtures.federation.masked_sums import SumRefused, commitment
from fedmixtures.federation.node.budgets import BudgetSpent, ReleaseBudget
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.own_rows import protected
from fedmixtures.federation.node.protocol_session import ProtocolSession
from fedmixtures.federation.node.release import _masked, _rounded
from fedmixtures.federation.wire.message import (
    Commitment,
    MaskedShare,
    ModelRefused,
    encode_message,
)
from fedmixtures.methods.protocol import Connect, Protocol, Sum
from fedmixtures.mixture.moments import Statistics

NAMES = ("aachen", "bergen", "cork")
ATTACKER = "cork"


def blobs(m: int, rng, groups: int = 3) -> np.ndarray:
    """Rows of some groups, in units in which they have a spread of about one."""
    centres = np.array([[0.0, 0], [4, 0], [0, 4], [-8, 0], [0, -8]])
    rows = centres[np.arange(m) % groups] + rng.standard_normal((m, 2))
    return rows / (3.0 if groups == 3 else 5.0)


def statistics(theta: Mixture, x: np.ndarray, weights=1.0) -> Statistics:
    """Own statistics under one mixture, with the axes of a node and of a stack of one."""
    r = theta.responsibilities(x) * np.broadcast_to(weights, len(x))[:, None]
    off = x[:, None] - theta.means[None]
    parts = [theta.log_density(x).sum(), r.sum(0), np.einsum("mk,mki->ki", r, off),
             np.einsum("mk,mki,mkj->kij", r, off, off)]  # fmt: skip
    made = Statistics.__new__(Statistics)
    names = ("log_likelihood", "mass", "first", "second")
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, np.asarray(part)[None, None])
    return made


class Asks(Protocol):
    """Sums of statistics under mixtures of the asker's choice, with some steps of EM from each."""

    sends: ClassVar = (Sum,)
    thetas: tuple
    more: int = 0

    def run(self, block):
        found = []
        for theta in self.thetas:
            for _ in range(1 + self.more):
                own = statistics(theta, block.data.rows, block.data.row_weights)
                total = yield Sum(own, None, Mixture(*(p[None, None] for p in theta.parts)))
                found.append((theta, total))
                theta = m_step(theta, total) if self.more else theta
        return found


def m_step(theta: Mixture, total: Statistics) -> Mixture:
    mass = np.maximum(total.mass[0, 0], 1e-3)
    shift = total.first[0, 0] / mass[:, None]
    spread = total.second[0, 0] / mass[:, None, None] - shift[:, :, None] * shift[:, None]
    values, vectors = np.linalg.eigh(spread)
    spread = (vectors * np.maximum(values, 1e-2)[:, None]) @ np.swapaxes(vectors, 1, 2)
    return Mixture((mass + 1) / (mass + 1).sum(), theta.means + shift, spread)


class Group:
    """True sessions of some sites, whose messages are carried by hand."""

    def __init__(self, folder, rows: dict, program, gate=None, releases=None, people=None, k=None):
        gate, releases = gate or Gate(), releases or ReleaseBudget()
        self.sites = Sites(folder, rows, gate=gate, releases=releases)
        k = k or program.thetas[0].n_components
        names = tuple(rows)
        edges = tuple((a, b, 1.0) for a, b in zip(names, names[1:], strict=False))
        job = a_job(GTVMin(feasible=FeasibleSet()), n_components=dict.fromkeys(names, k),
                    edges=edges, n_rounds=400)  # fmt: skip
        self.sessions = {}
        for name in names:
            node = self.sites.nodes[name]
            support = Support(rows[name], (people or {}).get(name))
            made = ProtocolSession(job, name, support, folder / name / "x", program,
                                       gate)  # fmt: skip
            made.passed, made.opened = node.point.let_through, node.point.opened
            made._begin()
            self.sessions[name] = made

    def exchange(self, forge=lambda source, to, message: message, poison=None) -> None:
        """One exchange of all; `forge` may change what is sent, `poison` the attacker's share."""
        sent = {}
        for name, session in self.sessions.items():
            session.passed(session)
            if name == ATTACKER and poison is not None:
                session.exchange.released = {
                    to: poison(message) for to, message in session.exchange.released.items()
                }
            sent[name] = dict(session.exchange.released)
        for name, session in self.sessions.items():
            for source in session.slots:
                message = forge(source, name, sent[source][name])
                session.accept(source, session.reached, encode_message(message))
        for session in self.sessions.values():
            session.step(session.freshness())

    def lying(self, change) -> Callable:
        """What the attacker says instead: a changed share, to which it has committed."""

        def said(message):
            session, point = self.sessions[ATTACKER], self.sites.nodes[ATTACKER].point
            if isinstance(message, MaskedShare):
                return MaskedShare(change(message.numbers), message.seen)
            if not isinstance(message, Commitment):
                return message
            share = next(iter(session.exchange.messages.values())).share
            name = session.sum_name(share.members, 1)
            shown = _masked(point, share, _rounded(point, share, session), name)
            return Commitment(commitment(name, ATTACKER, change(shown.numbers)))

        return said

    def run(self) -> list:
        """All exchanges; what a member learns: mixtures and totals."""
        while not all(session.is_over for session in self.sessions.values()):
            self.exchange()
        return self.sessions[ATTACKER].outcome


def seen_by(attacker_rows: np.ndarray, found: list) -> tuple[list, list]:
    """What a member makes of the totals: its own rows taken off, about the origin."""
    thetas, totals = [], []
    for theta, total in found:
        mass, first, second = (np.asarray(p)[0, 0] for p in (total.mass, total.first, total.second))
        mu = theta.means
        raw = first + mass[:, None] * mu
        cross = first[:, :, None] * mu[:, None]
        square = second + cross + np.swapaxes(cross, 1, 2)
        square = square + mass[:, None, None] * mu[:, :, None] * mu[:, None]
        upper = np.triu_indices(mu.shape[1])
        flat = np.concatenate([mass[:, None], raw, square[:, upper[0], upper[1]]], 1).ravel()
        thetas.append(theta.parts)
        totals.append(flat - sums(theta.parts, attacker_rows))
    return thetas, totals


def start(k: int, rng) -> Mixture:
    means = blobs(k, rng, 3) + 0.2 * rng.standard_normal((k, 2))
    return Mixture(np.full(k, 1 / k), means, np.tile(0.15 * np.eye(2), (k, 1, 1)))


class Parts(Protocol):
    """Sums over some of the sites, then one over all."""

    sends: ClassVar = (Connect, Sum)
    together: tuple
    times: int = 1

    def run(self, block):
        mine = block.data.labels[0] in self.together
        hashes = {label_hash(name) for name in self.together}
        live = np.array([mine and int(other) in hashes for other in block.neighbour])
        groups = yield Connect(live)
        share = block.data.rows.sum(0)[None]
        for _ in range(self.times):
            part = yield Sum(share, groups.label)
        return share, part, (yield Sum(share))


def test_who_is_in_no_part_is_in_step_with_the_others(tmp_path):
    """Masks of a later sum fit, though not all members have been in the same sums."""
    rng = np.random.default_rng(9)
    rows = {name: blobs(30, rng) for name in (*NAMES, "delft", "essen", "faro")}
    group = Group(tmp_path, rows, Parts(NAMES), Gate(0, 0, rounding=0.0), k=1)
    group.run()
    of = {name: session.outcome for name, session in group.sessions.items()}
    everybody = sum(share for share, _, _ in of.values())
    for name, (share, part, whole) in of.items():
        expected = sum(of[other][0] for other in NAMES) if name in NAMES else share
        np.testing.assert_allclose(part, expected, atol=1e-5)
        np.testing.assert_allclose(whole, everybody, atol=1e-5)


def test_a_member_lost_inside_a_sum_costs_the_others_one_more(tmp_path):
    """Begun again under other masks, and counted again; a sum over all that are left is theirs."""
    rng = np.random.default_rng(10)
    rows = {name: blobs(30, rng) for name in (*NAMES, "delft", "essen", "faro", "ghent")}
    group = Group(tmp_path, rows, Parts(NAMES), Gate(0, 0, rounding=0.0), k=1)
    while group.sessions["aachen"].exchange.members is None:
        group.exchange()
    t = group.sessions["aachen"].reached
    sent = group.sessions["aachen"]
    sent.passed(sent)
    before = next(iter(sent.exchange.released.values())).numbers
    del group.sessions["ghent"]
    for session in group.sessions.values():
        session.leave(t, {"ghent"})
        session.go_to(t)
        assert session.reached == t + 1
    group.exchange()
    sent.passed(sent)
    assert not (next(iter(sent.exchange.released.values())).numbers == before).any()
    group.run()
    of = {name: session.outcome for name, session in group.sessions.items()}
    for name, (_, part, whole) in of.items():
        if name in NAMES:
            np.testing.assert_allclose(part, sum(of[other][0] for other in NAMES), atol=1e-5)
        np.testing.assert_allclose(whole, sum(share for share, _, _ in of.values()), atol=1e-5)
    sums = json.loads((tmp_path / "aachen" / "sums.json").read_text())["rows"]
    assert {members: sum(n.values()) for members, by_job in sums.items()
            for n in by_job.values()} == {"|".join(NAMES): 2, "|".join(sorted(of)): 1}  # fmt: skip


def test_going_back_because_somebody_left_is_no_way_to_sums_that_cost_nothing(tmp_path):
    """A hub that says so after two sums: both are asked for again, and four are counted."""
    rng = np.random.default_rng(11)
    rows = {name: blobs(30, rng) for name in (*NAMES, "delft", "essen", "faro", "ghent")}
    group = Group(tmp_path, rows, Parts(NAMES, 2), Gate(0, 0, rounding=0.0), k=1)
    while group.sessions["aachen"].exchange.members is None:
        group.exchange()
    t = group.sessions["aachen"].reached
    for _ in range(3):
        group.exchange()
    del group.sessions["ghent"]
    for session in group.sessions.values():
        session.leave(t, {"ghent"})
        session.go_to(t)
    for _ in range(4):
        group.exchange()
    (sums,) = json.loads((tmp_path / "aachen" / "sums.json").read_text())["rows"].values()
    assert [sum(by_number.values()) for by_number in sums.values()] == [4]


def test_totals_are_the_plain_ones(tmp_path):
    """Without gate and rounding, in fixed point: every member works out the sum of all."""
    rng = np.random.default_rng(0)
    rows = {name: blobs(30, rng) for name in NAMES}
    gate = Gate(0, 0, rounding=0.0)
    found = Group(tmp_path, rows, Asks((start(3, rng),), 2), gate).run()
    for theta, total in found:
        plain = [statistics(theta, rows[name]) for name in NAMES]
        for part in ("mass", "first", "second"):
            expected = sum(getattr(one, part) for one in plain)
            np.testing.assert_allclose(getattr(total, part), expected, atol=3 * 2**-24)


def test_a1_crafted_cells_of_few_rows_are_not_opened(tmp_path):
    rng = np.random.default_rng(1)
    rows = {name: blobs(40, rng) for name in NAMES}
    mixture = (np.full(3, 1 / 3), blobs(3, rng), np.tile(np.eye(2) / 9, (3, 1, 1)))
    crafted = [Mixture(*cutting_cells(mixture, 120, rng)) for _ in range(20)]
    found = Group(tmp_path, rows, Asks(tuple(crafted))).run()
    everything = np.concatenate(list(rows.values()))
    for theta, total in found:
        mass, first, second = (
            np.asarray(part)[0, 0] for part in (total.mass, total.first, total.second)
        )
        small = statistics(theta, everything).mass[0, 0] < 8
        assert small.any()
        np.testing.assert_array_equal(first[small], 0)  # as if its rows lay as the cell has it
        known = mass[small][:, None, None] * theta.covariances[small]
        np.testing.assert_allclose(second[small], known, atol=1e-12)
    thetas, totals = seen_by(rows[ATTACKER], found)
    cells = [flat.reshape(len(theta[0]), -1) for theta, flat in zip(thetas, totals, strict=True)]
    got = [rows_in_cells(c[:, 0], c[:, 1:3], np.zeros((len(c), 2, 2))) for c in cells]
    assert hits(np.concatenate(got), everything, 1e-2) == 0


def test_a1_differences_of_crafted_cells_are_rounded_away(tmp_path):
    """Two cells that differ by one row: the difference of their sums is that row, if exact."""
    rng = np.random.default_rng(2)
    rows = {name: blobs(40, rng) for name in NAMES}
    target = rows["aachen"][np.argmax(rows["aachen"][:, 0])]
    edge = target[0] - np.array([0.01, -0.01])  # a plane just this side of it, and just beyond
    crafted = []
    for cut in edge:
        means = np.array([[cut - 1.0, 0], [cut + 1.0, 0]])
        crafted.append(Mixture([0.5, 0.5], means, np.tile(1e-3 * np.eye(2), (2, 1, 1))))
    caught = {}
    for name, gate in (("exact", Gate(0, 0, rounding=0.0)), ("as released", Gate())):
        found = Group(tmp_path / name, rows, Asks(tuple(crafted)), gate).run()
        raw = []
        for theta, total in found:
            mass, first = np.asarray(total.mass)[0, 0], np.asarray(total.first)[0, 0]
            raw.append(first[0] + mass[0] * theta.means[0])
        caught[name] = np.abs(raw[1] - raw[0] - target).max()
    assert caught["exact"] < 1e-5
    assert caught["as released"] > 0.05


def test_a_member_that_sends_different_shares_is_found_out(tmp_path):
    """A forged total: aachen is told another share than bergen. The next sum is refused."""
    rng = np.random.default_rng(4)
    rows = {name: blobs(30, rng) for name in NAMES}
    group = Group(tmp_path, rows, Asks((start(3, rng),), 3))

    def change(numbers):
        return numbers + (np.arange(len(numbers)) == 0).astype(np.uint64) * np.uint64(5 << 24)

    said = group.lying(change)

    def forge(source, to, message):
        return said(message) if (source, to) == (ATTACKER, "aachen") else message

    for _ in range(4):  # drawn numbers, commitments, shares; commitments
        group.exchange(forge)
    with pytest.raises(ModelRefused, match="has seen other totals"):
        group.exchange()


def test_who_shows_another_share_than_committed_to_is_named(tmp_path):
    """The others have shown theirs by then: what comes must be what was said before."""
    rng = np.random.default_rng(4)
    group = Group(tmp_path, {name: blobs(30, rng) for name in NAMES}, Asks((start(3, rng),)))
    other = lambda message: MaskedShare(message.numbers + np.uint64(1), message.seen)
    for _ in range(2):
        group.exchange()
    with pytest.raises(ModelRefused, match="shows another share than it has committed to"):
        group.exchange(poison=other)


@pytest.mark.parametrize("by", ["noise", "a thousand rows"])
def test_a_poisoned_total_is_none_and_the_others_go_on(tmp_path, by):
    """The same bad share to everybody: its total comes back as NaN, the next one is good again."""
    rng = np.random.default_rng(5)
    rows = {name: blobs(30, rng) for name in NAMES}
    group = Group(tmp_path, rows, Asks(tuple(start(3, rng) for _ in range(3))))

    def change(numbers):
        if by == "noise":
            drawn = np.random.default_rng(0).integers(0, 2**63, len(numbers))
            return drawn.astype(np.uint64)
        return numbers + (np.arange(len(numbers)) == 1).astype(np.uint64) * np.uint64(1000 << 24)

    for _ in range(5):  # drawn numbers, and a sum of masses and moments
        group.exchange()
    for _ in range(2):
        group.exchange(poison=group.lying(change))  # the masses of the second sum
    while not group.sessions["aachen"].is_over:
        group.exchange()
    masses = [np.asarray(total.mass)[0, 0] for _, total in group.sessions["aachen"].outcome]
    assert [bool(np.isfinite(mass).all()) for mass in masses] == [True, False, True]


def test_sets_that_differ_by_one_site_are_not_opened_over_the_same_rows(tmp_path):
    rng = np.random.default_rng(6)
    names = ("aachen", "bergen", "cork", "delft")
    rows = {name: blobs(30, rng) for name in names}
    program = Asks((start(3, rng),))
    four = Group(tmp_path, rows, program)
    four.run()
    three = Group(tmp_path, {name: rows[name] for name in names[:3]}, program)
    three.exchange()
    with pytest.raises(SumRefused, match="about 1 of them alone"):
        three.exchange()


def test_sums_end_at_the_budget(tmp_path):
    rng = np.random.default_rng(7)
    rows = {name: blobs(30, rng) for name in NAMES}
    budget = ReleaseBudget(max_sums=3)
    group = Group(tmp_path, rows, Asks((start(3, rng),), 5), releases=budget)
    with pytest.raises(BudgetSpent, match="max_sums"):
        group.run()
    assert group.sessions["aachen"].reached == 14  # three sums of four exchanges


def test_a8_in_a_sum_a_patient_with_many_visits_is_one_person(tmp_path):
    rng = np.random.default_rng(8)
    rows = {name: blobs(30, rng) for name in NAMES}
    patient = np.array([6.0, 6.0])
    rows["aachen"] = np.concatenate([rows["aachen"], patient + 0.01 * rng.standard_normal((14, 2))])
    people = {"aachen": np.concatenate([np.arange(30), np.full(14, 30)])}
    theta = start(3, rng)
    means = np.concatenate([theta.means, patient[None]])
    program = Asks((Mixture(np.full(4, 0.25), means, np.tile(0.15 * np.eye(2), (4, 1, 1))),))
    opened = {}
    for name, whose in (("rows", None), ("people", people)):
        found = Group(tmp_path / name, rows, program, people=whose).run()
        opened[name] = bool((np.asarray(found[0][1].first)[0, 0, 3] != 0).any())
    assert opened == {"rows": True, "people": False}


def test_n4_a_component_that_others_have_few_rows_in_gets_none_of_them(tmp_path):
    """The attacker has twenty rows of its own where the others have one or two each."""
    rng = np.random.default_rng(11)
    rows = {name: blobs(40, rng) for name in NAMES}
    place = np.array([5.0, 5.0])
    for name in NAMES:
        few = 20 if name == ATTACKER else 2
        rows[name] = np.concatenate([rows[name], place + 0.1 * rng.standard_normal((few, 2))])
    means = np.array([[0.3, 0.3], place])
    theta = Mixture([0.7, 0.3], means, np.stack([np.eye(2), np.eye(2) / 9]))
    added = {}
    for how, gate in (("all", Gate(min_own=0, rounding=0.0)), ("few", Gate(rounding=0.0))):
        ((_, total),) = Group(tmp_path / how, rows, Asks((theta,)), gate).run()
        own = statistics(theta, rows[ATTACKER]).mass[0, 0]
        added[how] = np.asarray(total.mass)[0, 0] - own
    assert added["all"][1] == pytest.approx(4, abs=0.1)
    assert added["few"][1] == pytest.approx(0, abs=1e-5)
    assert added["few"][0] == pytest.approx(84, abs=0.1)  # they are counted with the nearest


def test_nothing_is_added_to_cells_much_narrower_than_own_rows():
    x = blobs(60, np.random.default_rng(0))
    far = np.array([[-20.0, 0], [20.0, 0]])
    sharp = Mixture([0.5, 0.5], far, np.stack([np.eye(2)] * 2))
    thin = Mixture([0.5, 0.5], x[[0, 1]], np.stack([1e-3 * np.eye(2)] * 2))
    wide = Mixture([0.5, 0.5], x[[0, 1]], np.stack([np.eye(2)] * 2))
    added = [
        protected(statistics(theta, x), one(theta), 5).mass.sum() for theta in (sharp, thin, wide)
    ]
    np.testing.assert_allclose(added, [0, 0, 60])


def test_the_nearest_rows_count_for_those_of_a_component_with_few():
    """The row far out is in no sum; the others' mean and covariance are as they are without it."""
    x = np.concatenate([np.random.default_rng(0).standard_normal((40, 2)), [[6.0, 6.0]]])
    means = np.array([[0.0, 0], [6.0, 6.0]])
    theta = Mixture([0.9, 0.1], means, np.stack([np.eye(2)] * 2))
    made = protected(statistics(theta, x), one(theta), 5)
    np.testing.assert_allclose(made.mass[0, 0], [41, 0], atol=1e-9)
    np.testing.assert_allclose(made.first[0, 0, 0] / 41, x[:40].mean(0), atol=1e-6)
    np.testing.assert_allclose(made.second[0, 0, 0] / 41, x[:40].T @ x[:40] / 40, atol=1e-6)


def one(theta: Mixture) -> Mixture:
    return Mixture(*(part[None, None] for part in theta.parts))
