"""A protocol at one node, between two requests of its carrier.

To go on after a fault the node runs the protocol again on what it heard, and sends again the
boxes it sent. What is asked for and how it becomes exchanges is in `requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmixtures.engine.layout.blocks import node_block
from fedmixtures.federation.job import Job
from fedmixtures.federation.masked_sums import SumName, run_of
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.job_program import feasible_of
from fedmixtures.federation.node.requests import Requests, SiteLeft
from fedmixtures.federation.node.session import Refused, job_rows, rows_fingerprint
from fedmixtures.federation.node.store import Store, digest
from fedmixtures.federation.node.summing import Exchange, Summing
from fedmixtures.federation.wire.message import ModelMessage, ModelRefused, PrivateModelMessage
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import Protocol, requests_of
from fedmixtures.mixture.mixture import Mixture


class ProtocolSession:
    """What a node holds for a protocol between two requests of its carrier."""

    def __init__(
        self, job: Job, site: str, support: Support, folder: Path, program: Protocol, gate: Gate
    ):
        self.job, self.site, self.gate, self.given = job, site, gate, program
        self.at_home = Support(job_rows(job, support.rows), support.people)
        self.feasible = feasible_of(program)
        self.fingerprint = rows_fingerprint(job, self.at_home.rows)
        self.store = Store(folder, self.fingerprint, keep=job.last_round)
        self.inputs, self.released, self.leaves = self.store.answers()
        self.passed: Callable[[Any], None] = lambda session: None
        """Lets the messages of the present exchange through the gate; set by the node."""
        self.opened: Callable[[Any], None] = lambda session: None
        """Takes note that all members have shown their shares; set by the node."""
        self.noted: Callable[[Any, str], None] = lambda session, source: None
        """Takes note that one has; set by the node."""
        self.shown = self.at_home
        """The site's rows as far as anything that leaves may depend on them."""
        self.round: int | None = None
        self.outcome: Outcome | None = None
        self.told: Outcome | None = None
        """The outcome without what only the site's own model knows."""
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
    def support(self) -> Support:
        """What stands behind the present message, in its units."""
        return self.requests.support

    @property
    def n_models(self) -> int:
        """Models that left before the present one."""
        return self.requests.n_models

    @property
    def attempt(self) -> int:
        """How many sites have left: what is begun again has masks of its own."""
        return len(self.requests.left)

    def sum_name(self, members: frozenset[str], ahead: int = 0) -> SumName:
        """Which sum is shown in the present exchange, or so many exchanges later.

        By the exchange, which all members are in: not all of them have been in the same sums.
        """
        run = run_of(self.job.key, self.requests.drawn)
        number = self.reached + ahead
        return SumName(self.job.key, run, number, self.attempt, tuple(sorted(members)))

    @property
    def slots(self) -> tuple[str, ...]:
        """Sites that this node speaks to just now."""
        return tuple(self.exchange.messages) if self.exchange else ()

    neighbours = slots

    @property
    def is_over(self) -> bool:
        """Whether the protocol has come to its end."""
        return self.exchange is None

    @property
    def gone(self) -> list[str]:
        """Sites that have left for good."""
        return sorted(name for names in self.leaves.values() for name in names)

    @property
    def key(self) -> str:
        """What boxes are sealed under: those from before somebody left open no more."""
        return "|".join([self.job.key, *sorted(self.requests.left)])

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
        job, shown = self.job, self.shown
        running = lambda block: requests_of(self.given.run(block))
        block, edges = self._block(shown)
        sums = Summing(self.site, self.gate, self.feasible.covariance_type)
        sums.name = self.sum_name
        self.requests = Requests(
            self.site, job.sites, edges, shown, self.feasible, sums, self.given.sends
        )
        if job.missing:
            sums.together = lambda theta: self.requests.support.masses_together(theta)
        self.requests.nonce = self.store.nonce()
        at_home = None if shown is self.at_home else running(self._block(self.at_home)[0])
        self.generator = self.requests.carried(running(block), at_home)
        self.round, self.outcome, self.told = 0, None, None
        self.exchange: Exchange | None = next(self.generator)
        self.heard, self.contents = {}, {}

    def shows(self, rows: np.ndarray) -> None:
        """Let nothing that leaves depend on other rows than these."""
        self.shown = Support(job_rows(self.job, rows), self.at_home.people)

    def _block(self, support: Support) -> tuple[Any, tuple[str, ...]]:
        """The site's node with such rows, and its neighbours; masses of sums count people."""
        job = self.job
        k, near = job.n_components[self.site], job.neighbours(self.site)
        own, everybody = (self.site, support.rows, support.weights), len(job.sites)
        return node_block(*own, near, k, job.seed, n_network=everybody)

    def accept(self, source: str, source_round: int, content: bytes) -> None:
        """Take in an opened message of the present exchange."""
        if self.exchange is None or source_round != self.reached:
            raise ModelRefused("the message is not of this exchange")
        _, mark = self.inputs.get(source_round, {}).get(source, (0, digest(content)))
        if mark != digest(content):
            raise ModelRefused("another message of that round was already answered")
        found = self.exchange.decode(content)
        self.exchange.check(source, found)
        self.heard[source] = (source_round, found)
        self.contents[source] = content
        self.noted(self, source)

    def freshness(self) -> dict[str, list[str]]:
        """Partners by whether their message has come."""
        fresh = [s for s in self.slots if self.heard.get(s, (-1,))[0] == self.reached]
        missing = [s for s in self.slots if s not in fresh]
        return {"fresh": fresh, "stale": [], "dropped": missing, "silent": []}

    def must_wait(self, freshness: dict[str, list[str]]) -> bool:
        """A protocol goes on with all or not at all."""
        return bool(freshness["dropped"])

    def replay(self) -> bool:
        """Go on with what was heard before in this exchange; False if it was not answered."""
        if (names := self.leaves.get(self.reached)) is not None:
            self.requests.left |= frozenset(names)
            self.requests.n_models += 1  # what is begun again may be another model
            if self.reached == 0 and self.store.boxes(0) is None:  # nothing has been sent yet
                self.exchange = None
            self._goes_on(lambda: self.generator.throw(SiteLeft()))
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
        self.passed(self)  # what was sent is part of what the protocol goes on with
        self.opened(self)
        self._goes_on(lambda: self.generator.send(heard))

    def _goes_on(self, resumed: Callable[[], Exchange]) -> None:
        if self.exchange is not None and self.exchange.members is not None:
            self.requests.sums.shared.append(self.exchange.members)
        self.round, self.heard, self.contents = self.reached + 1, {}, {}
        try:
            self.exchange = resumed()
        except StopIteration as end:
            self.exchange, (self.told, self.outcome) = None, end.value
            self.requests.support = self.shown

    def warm_up(self) -> None:
        """Compile nothing: what a protocol asks for is known only on the way."""

    def outgoing(self) -> Mapping[str, object]:
        """Messages of the present exchange, by destination."""
        return self.exchange.messages if self.exchange else {}

    def message(self) -> ModelMessage | PrivateModelMessage:
        """The final mixture; of a private job the one that all have found, without the own rows."""
        if self.told is None:
            raise Refused("the protocol is not over")
        if self.job.privacy is None:
            return ModelMessage(_mixture(self.told))
        assert self.told.levels is not None
        levels = self.told.levels
        return PrivateModelMessage(levels.theta.at((levels.names.index("everyone"), 0)))

    def result(self) -> Mixture:
        """The mixture of this node; it stays here."""
        if self.outcome is None:
            raise Refused("the protocol is not over")
        return _mixture(self.outcome)


def _mixture(outcome: Outcome) -> Mixture:
    """That of the one node."""
    return jax.tree.map(lambda part: np.asarray(part)[0], outcome.theta)
