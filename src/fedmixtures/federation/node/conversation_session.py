"""A conversation at one node: every request becomes exchanges of typed messages between sites.

| request | exchanges |
|---|---|
| `Broadcast` | one: the gated, rounded mixture to all neighbours |
| `PerNeighbour` | one: a bit, or the label of a node, to each neighbour |
| `Connect` | as many as there are sites: bits, then who belongs together, over live edges |
| `Sum` of statistics | two: masses, then moments of the components that enough rows stand behind |
| any other `Sum` | one |

Shares of sums go to all members, who each add them up: nobody announces a total, so nobody can
forge one, and who sends different shares to different members is found out at the next sum. To go
on after a fault the node runs the conversation again on what it heard, and sends again the boxes it
sent.

A site may leave for good. All that are left begin their present request again without it. A sum
over the others would show the share of the one that is missing, so that sums it was in have no
total from then on, and what is known so far stays; sums of other members go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmixtures.data.node_data import label_hash
from fedmixtures.engine.layout.blocks import node_block
from fedmixtures.federation.job import Job
from fedmixtures.federation.masked_sums import SMALLEST_GROUP, OpenedSets, SumRefused, total
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.job_program import feasible_of
from fedmixtures.federation.node.session import Refused, job_rows, rows_fingerprint
from fedmixtures.federation.node.store import Store, digest
from fedmixtures.federation.wire.message import (
    MaskedShare,
    Message,
    ModelMessage,
    ModelRefused,
    Silence,
    Whole,
    decode_model,
    decode_share,
    decode_whole,
)
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.conversation import (
    Broadcast,
    Connect,
    Conversation,
    Groups,
    PerNeighbour,
    Request,
    Sum,
)
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, possible


@dataclass(frozen=True)
class SumShare:
    """A site's own part of a sum, as it is at home; it leaves rounded and under masks."""

    values: np.ndarray
    """Flat, float64."""
    coarseness: np.ndarray
    """Standard error of each number with one row behind it."""
    members: frozenset[str]
    number: int
    attempt: int
    """How many sites had left: a request that is begun again has masks of its own."""
    cost: int
    """As how many sums this counts."""
    seen: str


@dataclass
class Exchange:
    """What the node says next, whom it waits for, and how their messages are read."""

    messages: Mapping[str, object]
    decode: Callable[[bytes], Any]
    members: frozenset[str] | None = None
    """Of a sum over rows."""
    released: dict[str, Message] = field(default_factory=dict)
    """The messages as they left, once they have passed the gate."""


Exchanges = Generator[Exchange, dict[str, Any], Any]
MIXTURES_IN_A_SUM = 4
"""A sum of statistics under more of them counts as several."""


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


def _in_units(units: np.ndarray, first: Any, second: Any) -> tuple[np.ndarray, np.ndarray]:
    """First and second moments of rows that are multiplied by `units` (..., d, d)."""
    second = units @ np.asarray(second, np.float64) @ np.swapaxes(units, -1, -2)
    return (units @ np.asarray(first, np.float64)[..., None])[..., 0], second


class _SiteLeft(Exception):  # noqa: N818
    """Thrown into a request that has to be begun again."""


class ConversationSession:
    """What a node holds for a conversation between two requests of its carrier."""

    ledger = None

    def __init__(
        self, job: Job, site: str, support: Support, folder: Path, program: Conversation, gate: Gate
    ):
        self.job, self.site, self.gate, self.given = job, site, gate, program
        self.at_home = Support(job_rows(job, support.rows), support.people)
        self.support, self.feasible = self.at_home, feasible_of(program)
        self.fingerprint = rows_fingerprint(job, self.at_home.rows)
        self.store = Store(folder, self.fingerprint, keep=job.last_round)
        self.inputs, self.released, self.leaves = self.store.answers()
        self.passed: Callable[[Any], None] = lambda session: None
        """Lets the messages of the present exchange through the gate; set by the node."""
        self.round: int | None = None
        self.state_from = "nowhere"
        self.heard: dict[str, tuple[int, Any]] = {}
        self.contents: dict[str, bytes] = {}

    # What a node asks of a session.

    @property
    def reached(self) -> int:
        """Exchanges that this node has behind it."""
        if self.round is None:
            raise Refused("this node stands nowhere yet: ask it to share first")
        return self.round

    @property
    def slots(self) -> tuple[str, ...]:
        """Sites that this node speaks to just now."""
        return tuple(self.exchange.messages) if self.exchange else ()

    neighbours = slots

    @property
    def is_over(self) -> bool:
        """Whether the conversation has come to its end."""
        return self.exchange is None

    @property
    def gone(self) -> list[str]:
        """Sites that have left for good."""
        return sorted(name for names in self.leaves.values() for name in names)

    @property
    def key(self) -> str:
        """What boxes are sealed under: those from before somebody left open no more."""
        return "|".join([self.job.key, *sorted(self.left)])

    def available(self) -> list[int]:
        """Exchanges this node can go back to: all that it has kept."""
        t = last = 0
        while t in self.leaves or self.store.boxes(t, "heard") is not None:
            last, t = (last if t in self.leaves else t + 1), t + 1
        return list(range(last + 1))

    def leave(self, t: int, names: set[str]) -> None:
        """Sites that do not come back: exchange `t` is void, and those after it never were."""
        new = names - set(self.gone)
        if not new:
            return
        staying = set(self.job.sites) - names
        if self.site not in staying or 2 * len(staying) < len(self.job.sites):
            raise Refused("fewer than half of the job's sites are left: it is not gone on with")
        if t not in self.available():
            raise Refused(f"exchange {t} is not on disk here")
        self.store.forget(t)
        self.store.note(t, left=sorted(new))
        self.inputs, self.released, self.leaves = self.store.answers()
        self.round = None

    def go_to(self, t: int) -> None:
        """Stand after `t` exchanges: from memory, or by running again on what was heard."""
        if self.round == t and t not in self.leaves:
            self.state_from = "memory"
            return
        if t not in self.available():
            raise Refused(f"exchange {t} is not on disk here")
        self._begin()
        while self.reached < t or self.reached in self.leaves:
            if not self.replay():
                raise Refused(f"exchange {self.reached} is not on disk here")
        self.state_from = "disk" if t else "init"

    def _begin(self) -> None:
        self.round, self.n_models = 0, 0
        self.support = self.at_home
        self.sets: dict[frozenset[str], int] = {}
        self.seen: dict[frozenset[str], str] = {}
        self.mass_of: dict[frozenset[str], float] = {}
        self.left: frozenset[str] = frozenset()
        self.shared: list[frozenset[str]] = []
        """Members of the sums that this site has sent a share of."""
        self.outcome: Outcome | None = None
        self.generator = self._conversation()
        self.exchange: Exchange | None = next(self.generator)
        self.heard, self.contents = {}, {}

    def accept(self, source: str, source_round: int, content: bytes) -> None:
        """Take in an opened message of the present exchange."""
        if self.exchange is None or source_round != self.reached:
            raise ModelRefused("the message is not of this exchange")
        _, mark = self.inputs.get(source_round, {}).get(source, (0, digest(content)))
        if mark != digest(content):
            raise ModelRefused("another message of that round was already answered")
        self.heard[source] = (source_round, self.exchange.decode(content))
        self.contents[source] = content

    def freshness(self) -> dict[str, list[str]]:
        """Partners by whether their message has come."""
        fresh = [s for s in self.slots if self.heard.get(s, (-1,))[0] == self.reached]
        missing = [s for s in self.slots if s not in fresh]
        return {"fresh": fresh, "stale": [], "dropped": missing, "silent": []}

    def must_wait(self, freshness: dict[str, list[str]]) -> bool:
        """A conversation goes on with all or not at all."""
        return bool(freshness["dropped"])

    def replay(self) -> bool:
        """Go on with what was heard before in this exchange; False if it was not answered."""
        if (names := self.leaves.get(self.reached)) is not None:
            self.left |= frozenset(names)
            self.n_models += 1  # what is begun again may be another model
            if self.reached == 0 and self.store.boxes(0) is None:  # nothing has been sent yet
                self.exchange = None
            self._goes_on(lambda: self.generator.throw(_SiteLeft()))
            return True
        contents = self.store.boxes(self.reached, "heard")
        if contents is None or self.exchange is None:
            return False
        self._advance({s: self.exchange.decode(content) for s, content in contents.items()})
        return True

    def step(self, freshness: dict[str, list[str]]) -> None:
        """Go on with what all partners said, once it is on disk."""
        del freshness
        if not self.store.is_ours():
            raise Refused("another process of this site has taken the job over")
        t = self.reached
        contents = {source: self.contents[source] for source in self.slots}
        inputs = {source: (t, digest(content)) for source, content in sorted(contents.items())}
        if self.inputs.get(t, inputs) != inputs:
            raise Refused(f"round {t} was already answered, to other messages")
        if t not in self.inputs:
            self.store.note(t, inputs=inputs)
            self.inputs[t] = inputs
        self.store.keep_boxes(t, contents, "heard")
        self._advance({source: self.heard[source][1] for source in self.slots})
        self.state_from = "memory"

    def _advance(self, heard: dict[str, Any]) -> None:
        self.passed(self)  # what was sent is part of what the conversation goes on with
        self._goes_on(lambda: self.generator.send(heard))

    def _goes_on(self, resumed: Callable[[], Exchange]) -> None:
        if self.exchange is not None and self.exchange.members is not None:
            self.shared.append(self.exchange.members)
        self.round, self.heard, self.contents = self.reached + 1, {}, {}
        try:
            self.exchange = resumed()
        except StopIteration as end:
            self.exchange, self.outcome, self.support = None, end.value, self.at_home

    def warm_up(self) -> None:
        """Nothing to compile before it is known what is asked for."""

    def outgoing(self) -> Mapping[str, object]:
        """Messages of the present exchange, by destination."""
        return self.exchange.messages if self.exchange else {}

    def message(self) -> ModelMessage:
        """The final mixture."""
        return ModelMessage(self.result())

    def result(self) -> Mixture:
        """The mixture of this node; it stays here."""
        if self.outcome is None:
            raise Refused("the conversation is not over")
        return jax.tree.map(lambda part: np.asarray(part)[0], self.outcome.theta)

    # Requests of the conversation as exchanges.

    def _conversation(self) -> Generator[Exchange, dict[str, Any], Outcome]:
        rows = self.at_home.rows
        k = self.job.n_components[self.site]
        # Masses of sums count people, where these are known.
        weights, neighbours = self.at_home.weights, self.job.neighbours(self.site)
        self.block, self.edges = node_block(self.site, rows, weights, neighbours, k, self.job.seed)
        conversation = self.given.run(self.block)
        answer = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield from self._carried_whole(request)

    def _carried_whole(self, request: Request) -> Exchanges:
        """A request from its first exchange to its last, with the same sites in all of them."""
        while True:
            try:
                return (yield from self._carried(request))
            except _SiteLeft:
                continue

    def _carried(self, request: Request) -> Exchanges:
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
            case Sum(share, group, spread):
                return (yield from self._sum(share, group, spread))
        raise Refused(f"the method asks for {type(request).__name__}, which no site knows")

    def _broadcast(self, request: Broadcast) -> Exchanges:
        """A mixture with its number of rows; a neighbour that is silent stands for no row."""
        message = request.message
        mixture = Mixture(*(np.asarray(part)[0] for part in message.theta.parts))
        if request.rows is None:
            raise Refused("the method does not say which rows stand behind its message")
        self.support = Support(np.asarray(request.rows), self.at_home.people)
        k, d = mixture.n_components, mixture.n_features
        said = ModelMessage(mixture, float(np.asarray(message.rows)[0]))
        exchange = self._to_neighbours(
            dict.fromkeys(self.edges, said),
            lambda content: decode_model(content, k, d, self.feasible),
        )
        heard = yield exchange
        self.n_models += 1
        own = next(iter(exchange.released.values()), said)
        blank = ModelMessage(
            Mixture(np.full(k, 1 / k), np.zeros((k, d)), np.stack([np.eye(d)] * k))
        )
        usable = lambda found: blank if found is None or isinstance(found, Silence) else found
        lines = [usable(own), *(usable(heard.get(name)) for name in self.edges)]
        theta = Mixture(*map(np.stack, zip(*(m.mixture.parts for m in lines), strict=True)))
        rows = np.array([line.rows for line in lines])
        return type(message)(theta, rows, ((theta.weights > 0).sum(-1) < k) | (rows == 0))

    def _bits(self, bits: np.ndarray) -> Exchanges:
        said = {name: Whole(np.array([int(b)])) for name, b in zip(self.edges, bits, strict=True)}
        heard = yield self._to_neighbours(said, lambda content: decode_whole(content, 1, 0, 1))
        return np.array([heard.get(name, (0,))[0] == 1 for name in self.edges], dtype=bool)

    def _to_neighbours(self, messages: Mapping[str, object], decode: Any) -> Exchange:
        """An exchange with those of them who have not left."""
        return Exchange({s: m for s, m in messages.items() if s not in self.left}, decode)

    def _labels(self, labels: np.ndarray) -> Exchanges:
        """Labels of nodes, as numbers of sites: whatever else a method may put there is refused."""
        known = [label_hash(name) >> 1 for name in self.job.sites]
        if not set(labels.tolist()) <= set(known):
            raise Refused("the method gives a neighbour a number that is the label of no site")
        numbers = map(known.index, labels.tolist())
        said = {name: Whole(np.array([n])) for name, n in zip(self.edges, numbers, strict=True)}
        decode = lambda content: decode_whole(content, 1, 0, len(known) - 1)
        heard = yield self._to_neighbours(said, decode)
        own = {name: (self.job.sites.index(name),) for name in self.edges}
        found = [known[int(heard.get(name, own[name])[0])] for name in self.edges]
        return np.array(found, dtype=np.int64)

    def _connect(self, live: np.ndarray) -> Exchanges:
        """Members of the own group and their live edges, passed on from neighbour to neighbour.

        Every neighbour gets a message of the same size in every exchange; over an edge that is not
        live it says nothing.
        """
        both = live & (yield from self._bits(live))
        sites = self.job.sites
        table = np.full(len(sites), -1, dtype=np.int64)
        table[sites.index(self.site)] = both.sum()
        nothing = np.full(len(sites), -1, dtype=np.int64)
        for _ in range(len(sites) - 1):
            said = {
                name: Whole(table if is_live else nothing)
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

    def _may_pool(self, members: frozenset[str]) -> bool:
        """At least three, and so that what everybody has less than they is nobody or three too."""
        others = len(self.job.sites) - len(self.left) - len(members)
        return len(members) >= SMALLEST_GROUP and (others == 0 or others >= SMALLEST_GROUP)

    def _sum(self, share: Any, group: Any, spread: Any) -> Exchanges:
        members = frozenset(self.job.sites)
        if group is not None:
            label = int(np.asarray(group)[0])
            found = [known for known, of in self.sets.items() if of == label]
            members = found[0] if found else frozenset([self.site])
        alone, members = len(members) < SMALLEST_GROUP, members - self.left
        if alone or not self._may_open(members):  # in step with the others all the same
            if group is None:
                raise Refused("a site left before all knew the units: submit the job without it")
            for _ in range(2 if isinstance(share, Statistics) else 1):
                yield Exchange({}, lambda content: None)
            return share if alone else jax.tree.map(lambda part: np.full_like(part, np.nan), share)
        if isinstance(share, Statistics):
            return (yield from self._statistics(share, np.asarray(spread, np.float64), members))
        leaves, structure = jax.tree.flatten(share)
        values = _flat(share)
        widths = np.full_like(values, spread) if isinstance(spread, float) else _flat(spread)
        # What is made of releases is as coarse as they left, and tells nothing new.
        added = yield from self._added(values, widths, members, 1 if widths.any() else 0)
        parts = np.split(added, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        shaped = [p.reshape(np.shape(leaf)) for p, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def _statistics(
        self, own: Statistics, covariances: np.ndarray, members: frozenset[str]
    ) -> Exchanges:
        """Masses first; moments only of components that enough rows of all members stand behind.

        The others keep their mean and covariance. Moments are summed in units in which the
        component is round, so that rounding is as fine in a narrow direction, by its own standard
        error, as in a wide one. A total that cannot be one comes back as NaN, which changes nothing
        at anybody's.
        """
        mass = np.asarray(own.mass, np.float64)
        factor = np.linalg.cholesky(covariances)
        first, second = _in_units(np.linalg.inv(factor), own.first, own.second)
        _, times, k, d = first.shape
        cost = -(-times // MIXTURES_IN_A_SUM)
        masses = np.ravel(mass)
        added = yield from self._added(masses, np.ones_like(masses), members, cost)
        mass_total = added.reshape(mass.shape)
        enough = mass_total >= self.gate.threshold(d)
        # Spread of the own rows in each component; of too few rows, that of the component.
        spread = np.diagonal(second, axis1=-2, axis2=-1) / np.maximum(mass, 1.0)[..., None]
        spread = np.sqrt(np.where(mass[..., None] >= 1.0, np.maximum(spread, 1e-6), 1.0))
        apart = self.feasible.covariance_type in ("diag", "spherical")
        upper = np.diag_indices(d) if apart else np.triu_indices(d)
        heavy = np.concatenate([first, second[..., upper[0], upper[1]]], axis=-1)
        # Of a square the variance is twice that of a product.
        squares = spread[..., upper[0]] * spread[..., upper[1]]
        squares = np.where(upper[0] == upper[1], np.sqrt(2), 1.0) * squares
        widths = np.concatenate([spread, squares], axis=-1)
        heavy = np.where(enough[..., None], heavy, 0.0)
        widths = np.where(enough[..., None], widths, 0.0)
        added = yield from self._added(np.ravel(heavy), np.ravel(widths), members, 0)
        added = added.reshape(heavy.shape)
        whole = np.zeros_like(second)
        whole[..., upper[0], upper[1]] = added[..., d:]
        whole[..., upper[1], upper[0]] = added[..., d:]
        # What is not opened stays where it is.
        whole = np.where(enough[..., None, None], whole, mass_total[..., None, None] * np.eye(d))
        good = self._in_range(mass_total, members)
        nan = lambda part: np.where(good.reshape(1, -1, *(1,) * (part.ndim - 2)), part, np.nan)
        parts = nan(mass_total), *map(nan, _in_units(factor, added[..., :d], whole))
        like = jax.tree.structure(own)
        return possible(jax.tree.unflatten(like, [np.zeros_like(own.log_likelihood), *parts]))

    def _in_range(self, masses: np.ndarray, members: frozenset[str]) -> np.ndarray:
        """Whether the masses of each mixture add up to the rows that the members have.

        The first total says how many these are, and all later ones agree, but for rounding.
        """
        rows = masses.sum(-1)[0]
        known = self.mass_of.setdefault(members, float(rows[0]))
        slack = 2.0 + 0.05 * abs(known)
        return (masses[0] > -slack).all(-1) & (np.abs(rows - known) <= slack)

    def _may_open(self, members: frozenset[str]) -> bool:
        """Whether no sum that a share was sent for tells, less this one, about one or two sites."""
        try:
            OpenedSets(self.shared).admit(members)
        except SumRefused:
            return False
        return len(members) >= SMALLEST_GROUP

    def _added(
        self, values: np.ndarray, widths: np.ndarray, members: frozenset[str], cost: int
    ) -> Exchanges:
        """One masked sum: the total that every member works out."""
        seen = self.seen.setdefault(members, hashlib.sha256(b"").hexdigest())
        # By the exchange, which all members are in: not all of them have been in the same sums.
        share = SumShare(values, widths, members, self.reached, len(self.left), cost, seen)
        others = sorted(members - {self.site})
        exchange = Exchange(
            dict.fromkeys(others, share),
            lambda content: decode_share(content, len(values), seen),
            members if widths.any() else None,
        )
        heard = yield exchange
        own = exchange.released[others[0]]
        assert isinstance(own, MaskedShare)
        found = total([own.numbers, *(heard[name] for name in others)])
        self.seen[members] = hashlib.sha256(bytes.fromhex(seen) + found.tobytes()).hexdigest()
        return found
