"""A member of masked sums that does not follow the protocol, and what it makes of what it sees.

It is a true site whose part of every sum is chosen by the attacker: once the others' parts have
come, where the protocol lets it wait for them, or else by what it expects of them. So it steers
the mixture under which everybody sums next: two far cells, with a sharp plane between them. The
masses say how many rows of the others lie beyond; bisection finds the outermost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from federated import Sites
from fedmixtures.federation.in_process import InProcessRounds, ask
from fedmixtures.federation.masked_sums import total
from fedmixtures.federation.node import node as node_module
from fedmixtures.federation.node import protocol_session, release, summing
from fedmixtures.federation.node.budgets import ReleaseBudget
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.node.release import _masked
from fedmixtures.federation.node.summing import MIXTURES_IN_A_SUM, Summing, SumShare
from fedmixtures.federation.rounds import common_round, hello
from fedmixtures.federation.wire.frames import Frame
from fedmixtures.federation.wire.sealing import Address
from fedmixtures.methods.trust_then_pool import pool, program
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, project_psd

FAR, SHARP = 12.0, 1e-4
"""Where the two cells have their centres, on both sides of a plane, and their variances."""
BLUNT = 1.5, 0.25
"""The same, so wide that no site takes the cells for narrower than its rows made them."""
RANGE = 4.5
"""Standard deviations within which rows are looked for."""


@dataclass
class Plane:
    """How far rows reach in a direction: bisected."""

    direction: np.ndarray
    low: float = 0.0
    high: float = RANGE
    beyond: int = 0
    """The plane that this many rows lie beyond is looked for."""
    asked: int = 0

    @property
    def next(self) -> float:
        return (self.low + self.high) / 2

    def learn(self, at: float, rows: float) -> None:
        if self.low < at < self.high:
            self.asked += 1
            if rows > self.beyond + 0.5:
                self.low = at
            else:
                self.high = at


class Member:
    """What the attacker knows, and what it adds to sums."""

    def __init__(
        self, planes: list[Plane], d: int, rows: float = 150.0,
        cells: tuple[float, float] = (FAR, SHARP), by: str = "mass",
    ):  # fmt: skip
        self.planes, self.d, self.rows, self.cells, self.by = planes, d, rows, cells, by
        self.theta: Any = None
        self.expected: dict[str, np.ndarray] = {}

    def plan(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Normal and offset of the plane that mixture `number` is to ask about."""
        plane = self.planes[number % len(self.planes)]
        return plane.direction, plane.next

    def guess(self, kind: str, n: int) -> np.ndarray:
        """What the others may add: what they have added last."""
        last = self.expected.get(kind, np.zeros(n))
        return last if len(last) == n else np.zeros(n)

    def learn(self, found_beyond: np.ndarray) -> None:
        """By what (mixtures, components) the others have added under the present mixtures."""
        for means, found in zip(self.theta.means[0], found_beyond, strict=True):
            apart = means[-1] - means[0]
            length = np.linalg.norm(apart)
            if length < self.cells[0]:
                continue  # not of our making
            normal, middle = apart / length, (means[-1] + means[0]) / 2
            for plane in self.planes:
                if abs(normal @ plane.direction) > 0.9999:
                    sign = np.sign(normal @ plane.direction)
                    right = (means - middle) @ plane.direction > 0
                    plane.learn(sign * (middle @ normal), found[right].sum())

    def wanted(self, own: Statistics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Totals after which the next mixtures are those of the plan."""
        _, several, k, d = own.first.shape
        mass = np.full((several, k), self.rows / k)
        first, second = np.zeros((several, k, d)), np.zeros((several, k, d, d))
        for number in range(several):
            normal, offset = self.plan(number)
            sides = np.where(np.arange(k) < k - 1, -1.0, 1.0)  # masses are told in whole rows
            means = normal * offset + np.outer(sides, normal) * self.cells[0]
            shift = means - self.theta.means[0, number]
            first[number] = mass[number][:, None] * shift
            second[number] = mass[number][:, None, None] * (
                self.cells[1] * np.eye(d) + shift[:, :, None] * shift[:, None]
            )
        return mass, first, second


class Late(SumShare):
    """A part of a sum that is made when it has to leave."""

    def __init__(self, share: SumShare, made: Any):
        super().__init__(share.values, share.coarseness, share.members, share.cost, share.seen)
        object.__setattr__(self, "made", made)
        object.__setattr__(self, "known", [])

    def resolved(self, session: Any) -> SumShare:
        """The part itself, once and for all."""
        if not self.known:
            values = np.ravel(self.made(session))
            nothing = np.zeros_like(values)
            self.known.append(SumShare(values, nothing, self.members, self.cost, self.seen))
        return self.known[0]


class Attack:
    """A default job in which one site is `member`, and the others are as they should be."""

    def __init__(self, folder: Any, monkeypatch: Any, rows: dict, name: str, member: Member,
                 silent: tuple[str, ...] = (), unprotected: bool = False):  # fmt: skip
        """`silent`: in league, they add nothing. `unprotected`: as before there were commitments,
        own rows counted, and noise."""
        gate = Gate(min_own=0) if unprotected else Gate()
        self.sites = Sites(folder, rows, gate=gate, releases=ReleaseBudget())
        self.name, self.member = name, member
        self.inbox: list[Any] = []
        node = self.sites.nodes[name]
        node.point.gate = replace(node.point.gate, rounding=0.0)
        passed = node.point.passed

        def late(message, session):
            for holder in (message, getattr(message, "share", None)):
                if isinstance(holder, Late):
                    if unprotected and holder is not message:  # it promises anything
                        share = SumShare(holder.values, holder.values, members=holder.members,
                                         cost=holder.cost, seen=holder.seen)  # fmt: skip
                    else:
                        share = holder.resolved(session)
                    message = share if holder is message else replace(message, share=share)
            return passed(message, session)

        node.point.passed = late
        attack = self

        class Steered(Summing):
            """The sums of the attacker."""

            def _statistics(self, own, theta, members):
                return (yield from attack.summed(self, own, theta, members))

        class Nothing(Summing):
            """The sums of those in league."""

            def _statistics(self, own, theta, members):
                return (
                    yield from super()._statistics(jax.tree.map(np.zeros_like, own), theta, members)
                )

        kinds = {name: Steered, **dict.fromkeys(silent, Nothing)}
        make = lambda site, *more: kinds.get(site, Summing)(site, *more)
        monkeypatch.setattr(protocol_session, "Summing", make)
        if unprotected:
            for module in (summing, release):
                monkeypatch.setattr(module, "commitment", lambda *of: bytes(32))
            monkeypatch.setattr(node_module, "blurred", lambda rows, *of: rows)
        total = pool._total

        def watched(nodes, fit, group):
            if nodes.block.data.labels[0] == name:
                member.theta = jax.tree.map(np.asarray, fit.theta)
            return (yield from total(nodes, fit, group))

        monkeypatch.setattr(pool, "_total", watched)
        units = program.common_units

        def watched_units(block, *more):
            self.units = yield from units(block, *more)
            return self.units

        monkeypatch.setattr(program, "common_units", watched_units)

    def run(self, job: Any) -> None:
        """A job in which the attacker is always the last to send."""
        self.member.expected.clear()
        rounds = InProcessRounds(self.sites.nodes, self.sites.signed(job))
        names = [n for n in rounds.nodes if n != self.name] + [self.name]
        replies = {n: ask(rounds.nodes[n], hello(rounds.signed)) for n in names}
        t = common_round(replies)
        for n in names:
            rounds.deliver(rounds.sites[n].begin(t))
        while not all(site.is_over for site in rounds.sites.values()):
            waiting = {n: rounds.parcels_for(n) for n in names}
            for n in names:
                rounds.sites[n].round = t
                self.inbox = list(rounds.waiting[self.name])
                rounds.deliver(rounds.sites[n].step(waiting[n]))
            t += 1

    def seen(self, session: Any, members: frozenset[str], n: int) -> np.ndarray | None:
        """What the others have added, if their parts are here before the own one leaves."""
        shares = []
        for parcel in self.inbox:
            if parcel.source not in members or parcel.round != session.reached:
                continue
            address = Address(session.key, parcel.round, parcel.source, self.name)
            sender = self.sites.roster.sites[parcel.source]
            frame = Frame.decode(self.sites.keys[self.name].open(parcel.box, sender, address))
            if len(frame.boxes.get("share", b"")) == 8 * n:
                shares.append(np.frombuffer(frame.boxes["share"], "<u8").astype(np.uint64))
        if len(shares) < len(members) - 1:
            return None
        nothing = SumShare(np.zeros(n), np.zeros(n), members, 0, "")
        name = session.sum_name(members)
        own = _masked(self.sites.nodes[self.name].point, nothing, np.zeros(n), name)
        return total([own.numbers, *shares])

    def summed(self, sums: Summing, own: Statistics, theta: Mixture, members: frozenset):
        """A sum of statistics as the attacker steers it: masses, then moments."""
        member, shape = self.member, own.mass.shape
        mass = member.wanted(own)[0]
        k, d = own.first.shape[-2:]
        factor = np.linalg.cholesky(theta.covariances)
        units = np.linalg.inv(factor)[0]
        upper = np.triu_indices(d)
        learned = {}

        def part(kind: str, wanted: np.ndarray):
            def made(session):
                others = self.seen(session, members, wanted.size)
                learned[kind] = others
                if others is None:
                    others = member.guess(kind, wanted.size)
                return np.ravel(wanted) - others

            n = wanted.size
            return lambda cost: (
                lambda seen: Late(SumShare(np.zeros(n), np.zeros(n), members, cost, seen), made)
            )

        cost = -(-shape[1] // MIXTURES_IN_A_SUM)
        added = yield from sums._added(part("mass", mass)(cost), members)
        sent = mass.ravel() - (0 if learned["mass"] is None else learned["mass"])
        if learned["mass"] is None:
            sent = mass.ravel() - member.guess("mass", mass.size)
        others = added - sent
        if member.by == "mass":
            member.learn(others.reshape(mass.shape))
        member.expected["mass"] = others
        _, first, second = member.wanted(own)  # by what the masses have told
        round_first = (units @ first[..., None])[..., 0]
        round_second = units @ second @ np.swapaxes(units, -1, -2)
        heavy = np.concatenate([round_first, round_second[..., upper[0], upper[1]]], -1)
        found = yield from sums._added(part("heavy", heavy)(0), members)
        expected = learned["heavy"]
        if expected is None:
            expected = member.guess("heavy", heavy.size)
        member.expected["heavy"] = found - (heavy.ravel() - expected)
        if member.by == "moments":  # squared deviations of one row or more, in the cell's own units
            squares = member.expected["heavy"].reshape(heavy.shape)[..., d:]
            member.learn(np.abs(squares).sum(-1))
        found = found.reshape(heavy.shape)
        whole = np.zeros((*heavy.shape[:-1], d, d))
        whole[..., upper[0], upper[1]] = found[..., d:]
        whole[..., upper[1], upper[0]] = found[..., d:]
        back = factor[0]
        parts = (
            added.reshape(shape),
            (back @ found[..., :d, None])[None, ..., 0],
            (back @ whole @ np.swapaxes(back, -1, -2))[None],
        )
        like = jax.tree.structure(own)
        made = jax.tree.unflatten(like, [np.zeros_like(own.log_likelihood), *parts])
        return project_psd(made)
