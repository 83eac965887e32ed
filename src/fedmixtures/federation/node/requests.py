"""Every request of a protocol becomes exchanges of typed messages between sites.

| request | exchanges |
|---|---|
| (the beginning) | one: a number that each site draws for this run |
| `Broadcast` | one: the gated, rounded mixture to all neighbours |
| `PerNeighbour` | one: a bit, or the label of a node, to each neighbour |
| `Connect` | as many as there are sites: bits, then who belongs together, over live edges |
| `Walk` | 17: bits, then whole numbers made of labels, over live edges |
| `Whereabouts` | one: whole numbers to all sites |
| `Sum` | four of statistics, two of anything else: see `summing` |
| `NoisySum` | two, of a private job: all that such a job asks for |

A site may leave for good. All that are left begin their present request again without it. A sum
over the others would show the share of the one that is missing, so that sums it was in have no
total from then on, and what is known so far stays; sums of other members go on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedmixtures.data.node_data import label_hash
from fedmixtures.federation.masked_sums import SMALLEST_GROUP
from fedmixtures.federation.node.gate import Support
from fedmixtures.federation.node.private_pool import NoisySum
from fedmixtures.federation.node.session import Refused
from fedmixtures.federation.node.summing import Exchange, Exchanges, Summing
from fedmixtures.federation.node.whereabouts import FARTHEST, Place, bounds
from fedmixtures.federation.wire.message import (
    IntegerMessage,
    ModelMessage,
    RunNonce,
    Silence,
    decode_digest,
    decode_model,
    decode_whole,
)
from fedmixtures.fits.units import UnitBounds
from fedmixtures.methods import walks
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import (
    Broadcast,
    Connect,
    Groups,
    PerNeighbour,
    Request,
    Sum,
    Walk,
    Whereabouts,
)
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


class SiteLeft(Exception):  # noqa: N818
    """Thrown into a request that has to be begun again."""


class Requests:
    """One site's part in a protocol, from its first request to its last."""

    def __init__(
        self,
        site: str,
        sites: Sequence[str],
        edges: Sequence[str],
        support: Support,
        feasible: FeasibleSet,
        sums: Summing,
        declared: Sequence[type],
    ):
        self.site, self.sites, self.edges = site, tuple(sites), edges
        self.support, self.people = support, support.people
        self.feasible, self.sums = feasible, sums
        self.left: frozenset[str] = frozenset()
        self.declared = frozenset(declared)
        self.n_models = self.n_releases = 0
        self.nonce = b""
        """What this site has drawn for this run; set by the session."""
        self.drawn: dict[str, bytes] = {}
        """What every site has drawn for this run, by name."""
        self.sets: dict[frozenset[str], int] = {}

    def carried(
        self,
        protocol: Generator[Request, Any, Outcome],
        at_home: Generator[Request, Any, Outcome] | None = None,
    ) -> Generator[Exchange, dict[str, Any], tuple[Outcome, Outcome]]:
        """All exchanges that a protocol asks for; first every site draws a number for this run.

        The same protocol `at_home` hears the same answers, and nothing of what it says leaves.
        Returns both outcomes; without one at home, the same twice.
        """
        while not self.drawn:
            try:
                yield from self._draw()
            except SiteLeft:
                continue
        answer = own = None
        while True:
            try:
                request = protocol.send(answer)
            except StopIteration as end:
                return end.value, end.value if at_home is None else _ended(at_home, own)
            said = None if at_home is None else at_home.send(own)
            answer = yield from self._carried_whole(request)
            own = self._at_home(request, answer, said)

    def _at_home(self, request: Request, answer: Any, said: Request | None) -> Any:
        """The answer to the same request at home."""
        if not isinstance(request, Sum) or not isinstance(said, Sum):
            return answer
        if answer is request.share:  # who pools with nobody adds up nothing but what it has
            return said.share
        return answer

    def _draw(self) -> Exchanges:
        said = dict.fromkeys(self._others, RunNonce(self.nonce))
        heard = yield Exchange(said, lambda content: decode_digest(content, "nonce"))
        self.drawn = {self.site: self.nonce, **heard}

    @property
    def _others(self) -> list[str]:
        return [name for name in self.sites if name != self.site and name not in self.left]

    def _carried_whole(self, request: Request) -> Exchanges:
        """A request from its first exchange to its last, with the same sites in all of them."""
        while True:
            try:
                return (yield from self._carried(request))
            except SiteLeft:
                continue

    def _carried(self, request: Request) -> Exchanges:
        kind = type(request.message) if isinstance(request, Broadcast) else type(request)
        if kind not in self.declared:
            raise Refused(f"the method sends a {kind.__name__}, which it does not say (`sends`)")
        match request:
            case Broadcast():
                return (yield from self._broadcast(request))
            case PerNeighbour(message):
                said = np.asarray(message)
                if said.ndim == 1 and said.dtype == bool:
                    return (yield from self._bits(said))
                if said.ndim == 1 and said.dtype == np.int64:
                    return (yield from self._labels(said))
                raise Refused("only bits and labels of nodes go to single neighbours")
            case Connect(live):
                return (yield from self._connect(np.asarray(live, dtype=bool)))
            case Walk(live):
                return (yield from self._walk(np.asarray(live, dtype=bool)))
            case Whereabouts():
                return (yield from self._whereabouts(request))
            case NoisySum(share):
                return (yield from self._noisy_sum(share))
            case Sum(share, group, spread):
                return (yield from self._sum(share, group, spread))
        raise Refused(f"the method asks for {type(request).__name__}, which no site knows")

    def _broadcast(self, request: Broadcast) -> Exchanges:
        """A mixture with its number of rows; a neighbour that is silent stands for no row."""
        message = request.message
        if self.n_releases:
            raise Refused("the method would tell its neighbours a mixture more than once")
        mixture = Mixture(*(np.asarray(part)[0] for part in message.theta.parts))
        if request.rows is None:
            raise Refused("the method does not say which rows stand behind its message")
        self.support = Support(np.asarray(request.rows), self.people)
        k, d = mixture.n_components, mixture.n_features
        said = ModelMessage(mixture, float(np.asarray(message.rows)[0]))
        exchange = self._to_neighbours(
            dict.fromkeys(self.edges, said),
            lambda content: decode_model(content, k, d, self.feasible),
        )
        heard = yield exchange
        self.n_models += 1
        self.n_releases += 1
        own = next(iter(exchange.released.values()), said)
        blank = ModelMessage(
            Mixture(np.full(k, 1 / k), np.zeros((k, d)), np.stack([np.eye(d)] * k))
        )
        said = [own, *(heard.get(name) for name in self.edges)]
        silent = np.array([found is None or isinstance(found, Silence) for found in said])
        lines = [blank if none else found for found, none in zip(said, silent, strict=True)]
        theta = Mixture(*map(np.stack, zip(*(m.mixture.parts for m in lines), strict=True)))
        rows = np.array([line.rows for line in lines])
        # Who lacks a column says of itself that it stands for no row, and has lost nothing.
        return type(message)(theta, rows, ((theta.weights > 0).sum(-1) < k) | silent)

    def _whereabouts(self, request: Whereabouts) -> Exchanges:
        """What all sites say of their own rows bounds the units; sums stand on the same answers."""
        cells, first, spread = (
            np.asarray(part, np.float64)[0]
            for part in (request.cells, request.first, request.deviation)
        )
        place = Place(cells, first / np.maximum(cells, 1.0), spread)
        n = 2 * len(cells)
        exchange = Exchange(
            dict.fromkeys(self._others, place),
            lambda content: decode_whole(content, n, -FARTHEST, FARTHEST),
        )
        told = dict((yield exchange))
        for message in exchange.released.values():
            assert isinstance(message, IntegerMessage)
            told[self.site] = message.numbers
        if not told:  # a job of one site
            return UnitBounds.anywhere(len(cells))
        self.sums.begin({name: numbers.tolist() for name, numbers in told.items()})
        return bounds([told[name] for name in sorted(told)])

    def _bits(self, bits: np.ndarray) -> Exchanges:
        said = {
            name: IntegerMessage(np.array([int(b)]))
            for name, b in zip(self.edges, bits, strict=True)
        }
        heard = yield self._to_neighbours(said, lambda content: decode_whole(content, 1, 0, 1))
        return np.array([heard.get(name, (0,))[0] == 1 for name in self.edges], dtype=bool)

    def _to_neighbours(self, messages: Mapping[str, object], decode: Any) -> Exchange:
        """An exchange with those of them who have not left."""
        return Exchange({s: m for s, m in messages.items() if s not in self.left}, decode)

    def _labels(self, labels: np.ndarray) -> Exchanges:
        """Labels of nodes, as numbers of sites: whatever else a method may put there is refused."""
        known = [label_hash(name) >> 1 for name in self.sites]
        if not set(labels.tolist()) <= set(known):
            raise Refused("the method gives a neighbour a number that is the label of no site")
        numbers = map(known.index, labels.tolist())
        said = {
            name: IntegerMessage(np.array([n])) for name, n in zip(self.edges, numbers, strict=True)
        }
        decode = lambda content: decode_whole(content, 1, 0, len(known) - 1)
        heard = yield self._to_neighbours(said, decode)
        own = {name: (self.sites.index(name),) for name in self.edges}
        found = [known[int(heard.get(name, own[name])[0])] for name in self.edges]
        return np.array(found, dtype=np.int64)

    def _connect(self, live: np.ndarray) -> Exchanges:
        """Members of the own group and their live edges, passed on from neighbour to neighbour.

        Every neighbour gets a message of the same size in every exchange; over an edge that is not
        live it says nothing.
        """
        both = live & (yield from self._bits(live))
        sites = self.sites
        table = np.full(len(sites), -1, dtype=np.int64)
        table[sites.index(self.site)] = both.sum()
        nothing = np.full(len(sites), -1, dtype=np.int64)
        for _ in range(len(sites) - 1):
            said = {
                name: IntegerMessage(table if is_live else nothing)
                for name, is_live in zip(self.edges, both, strict=True)
            }
            decode = lambda content: decode_whole(content, len(sites), -1, len(sites))
            heard = yield self._to_neighbours(said, decode)
            for name, is_live in zip(self.edges, both, strict=True):
                if is_live:
                    table = np.maximum(table, heard[name])
        members = [name for name, degree in zip(sites, table, strict=True) if degree >= 0]
        if not self._may_pool(frozenset(members)):
            members = [self.site]
        degree = dict(zip(sites, table.tolist(), strict=True))
        order = sorted(members, key=lambda name: (-degree[name], label_hash(name)))
        # Of all members, so that it is no other group's, nor what a method calls a lone node.
        label = label_hash("|".join(sorted(members))) >> 1
        self.sets[frozenset(members)] = label
        one = lambda value: np.array([value], dtype=np.int64)
        return Groups(one(label), one(len(members)), one(order.index(self.site)))

    def _walk(self, live: np.ndarray) -> Exchanges:
        """Numbers that diffuse over live edges; over the others zeros of the same size are said."""
        both = live & (yield from self._bits(live))
        numbers = walks.begun(np.array([label_hash(self.site)], dtype=np.uint64))
        nothing, degree = np.zeros(walks.WIDTH, dtype=np.int64), both.sum()[None]
        bounds = walks.WIDTH, -walks.UNIT, walks.UNIT
        there = np.zeros((len(self.edges), walks.WIDTH), dtype=np.int64)
        for step in range(walks.STEPS + 1):
            if step:
                numbers = walks.moved(numbers, there[both].sum(0)[None], degree)
            own = IntegerMessage(numbers[0].astype(np.int64))
            said = {
                name: own if is_live else IntegerMessage(nothing)
                for name, is_live in zip(self.edges, both, strict=True)
            }
            heard = yield self._to_neighbours(said, lambda content: decode_whole(content, *bounds))
            for i, name in enumerate(self.edges):
                there[i] = heard.get(name, nothing)
        return walks.alike(numbers.repeat(len(there), axis=0), there)

    def _may_pool(self, members: frozenset[str]) -> bool:
        """At least three, and so that what everybody has less than they is nobody or three too."""
        others = len(self.sites) - len(self.left) - len(members)
        return len(members) >= SMALLEST_GROUP and (others == 0 or others >= SMALLEST_GROUP)

    def _sum(self, share: Any, group: Any, spread: Any) -> Exchanges:
        members = frozenset(self.sites)
        if group is not None:
            label = int(np.asarray(group)[0])
            found = [known for known, of in self.sets.items() if of == label]
            members = found[0] if found else frozenset([self.site])
        alone, members = len(members) < SMALLEST_GROUP, members - self.left
        if alone or not self.sums.may_open(members):  # in step with the others all the same
            if group is None:
                raise Refused("a site left before all knew the units: submit the job without it")
            for _ in range(4 if isinstance(share, Statistics) else 2):
                yield Exchange({}, lambda content: None)
            return share if alone else jax.tree.map(lambda part: np.full_like(part, np.nan), share)
        return (yield from self.sums.total(share, members, spread))

    def _noisy_sum(self, share: np.ndarray) -> Exchanges:
        members = frozenset(self.sites) - self.left
        if self.sums.may_open(members):
            return (yield from self.sums.noisy(share, members))
        for _ in range(2):
            yield Exchange({}, lambda content: None)
        return np.full_like(share, np.nan)


def _ended(protocol: Generator[Request, Any, Outcome], answer: Any) -> Outcome:
    """The outcome of a protocol that asks for nothing more."""
    try:
        protocol.send(answer)
    except StopIteration as end:
        return end.value
    raise Refused("the method asks for other things at home than between sites")
