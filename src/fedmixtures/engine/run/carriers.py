"""Who carries the messages of a run: neighbour to neighbour, over several devices, or by a hub."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.engine.layout.blocks import Layout
from fedmixtures.engine.layout.shards import ShardedLayout
from fedmixtures.engine.run import hub, rounds, sharded
from fedmixtures.engine.run.accounts import account_of_groups
from fedmixtures.engine.solution import Traffic
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Account, HubProgram, Info, Method, NodeProgram, Prepared

P = TypeVar("P", NodeProgram, HubProgram)


def carrier_of(program: Method, layout: Layout, dtype: str) -> Carrier:
    """The one for this program on this layout."""
    if isinstance(program, HubProgram):
        return ByHub(layout, dtype)
    if isinstance(layout, ShardedLayout):
        return BetweenDevices(layout, dtype)
    return Between(layout, dtype)


class Carrier(abc.ABC, Generic[P]):
    """Runs a program on a layout; what `states` are is its own matter."""

    def __init__(self, layout: Layout, dtype: str):
        self.layout, self.groups, self.dtype = layout, layout.groups, dtype

    @abc.abstractmethod
    def start(self, program: P, prepared: Prepared) -> Any:
        """States before the first round."""

    @abc.abstractmethod
    def run(
        self, program: P, states: Any, first: int, n: int, capacity: int
    ) -> tuple[Any, tuple[Info, ...]]:
        """`n` rounds from round `first` on: states after them, and what each round showed."""

    @abc.abstractmethod
    def results(self, program: P, states: Any) -> Any:
        """The mixtures, group by group."""

    @abc.abstractmethod
    def traffic(
        self, program: P, states: Any, n_rounds: int, prepared: Prepared, network: Network
    ) -> Traffic:
        """Bytes that left each node, before the rounds and in them, and what came back."""

    def account(self, program: P, states: Any, network: Network) -> Account | None:
        """What the program tells of its nodes and edges; nothing if there is a hub."""
        del program, states, network
        return None

    def _bytes_before(self, numbers: int | np.ndarray, network: Network) -> np.ndarray:
        """Of each node, before the first round."""
        return np.full(network.n_nodes, numbers * np.dtype(self.dtype).itemsize, dtype=np.int64)


class Between(Carrier[NodeProgram]):
    """From neighbour to neighbour, all on one device."""

    def start(self, program, prepared):
        """As `rounds.start`."""
        return rounds.start(program, self.groups, self._thetas(prepared))

    def run(self, program, states, first, n, capacity):
        """As `rounds.run_rounds`."""
        span = jnp.int32(first), jnp.int32(n)
        return rounds.run_rounds(program, self.groups, states, *span, capacity)

    def results(self, program, states):
        """As `rounds.results`."""
        return self._ask("result", program, states)

    def account(self, program, states, network):
        """By node and by edge, as the program tells."""
        answers = self._ask("account", program, states)
        return account_of_groups(answers, self.layout, network)

    def traffic(self, program, states, n_rounds, prepared, network):
        """One message to each neighbour in a round."""
        size = rounds.message_bytes(program, self.groups, states)
        setup = self._bytes_before(prepared.sent, network)
        sent = setup + n_rounds * size * network.degree
        by_label = lambda values: _by_label(network, values)
        return Traffic(size, by_label(sent), "neighbours", n_rounds, by_label(setup))

    def _thetas(self, prepared: Prepared):
        return rounds.scatter(prepared.theta, self.layout, self.dtype)

    def _ask(self, question: str, program, states):
        return rounds.ask(question, program, self.groups, states)


class BetweenDevices(Between):
    """From neighbour to neighbour, each on one of several devices."""

    layout: ShardedLayout

    def start(self, program, prepared):
        """As `sharded.start`."""
        return sharded.start(program, self.groups, self._thetas(prepared), self.layout.mesh)

    def run(self, program, states, first, n, capacity):
        """As `sharded.run_rounds`."""
        halo, mesh = self.layout.halo, self.layout.mesh
        return sharded.run_rounds(program, self.groups, halo, states, first, n, capacity, mesh)

    def _ask(self, question: str, program, states):
        return sharded.ask(question, program, self.groups, states, self.layout.mesh)


class ByHub(Carrier[HubProgram]):
    """To a hub that hears all nodes, and back."""

    def start(self, program, prepared):
        """As `hub.start`."""
        thetas = rounds.scatter(prepared.theta, self.layout, self.dtype)
        agreed = prepared.shared, prepared.hub_state
        agreed = jax.tree.map(lambda part: jnp.asarray(part, self.dtype), agreed)
        return hub.start(program, self.groups, thetas, *agreed)

    def run(self, program, states, first, n, capacity):
        """As `hub.run_rounds`."""
        span = jnp.int32(first), jnp.int32(n)
        return hub.run_rounds(program, self.groups, states, *span, capacity)

    def results(self, program, states):
        """As `hub.results`."""
        return hub.results(program, self.groups, states)

    def traffic(self, program, states, n_rounds, prepared, network):
        """One message to the hub and one reply in a round."""
        size, reply = hub.message_bytes(program, self.groups, states)
        setup = self._bytes_before(prepared.sent, network)
        received = self._bytes_before(prepared.received, network) + n_rounds * reply
        by_label = lambda values: _by_label(network, values)
        parts = by_label(setup + n_rounds * size), "hub", n_rounds, by_label(setup)
        return Traffic(size, *parts, by_label(received))


def _by_label(network: Network, values: np.ndarray) -> dict:
    return dict(zip(network.labels, values.tolist(), strict=True))
