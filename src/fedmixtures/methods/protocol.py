"""A method as a protocol: written from top to bottom, it asks and goes on with the reply."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.kernels.arrays import xp
from fedmixtures.methods.base import Diagnostics, Levels, Method, Outcome
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True, eq=False)
class Block:
    """The nodes that one process runs a protocol for: all of them, or a single silo's one.

    Nodes are listed by position, their neighbours as directed edges: sorted by receiver, then by
    the hash of the sender's label, so that no number depends on the order in which nodes came.
    """

    data: NodeData  # rows, row weights and labels of these nodes; ``data.of(i)`` are those of one
    n_components: np.ndarray  # (nodes,)
    seed: int
    dtype: str
    start: Mixture | None  # starting mixtures, where the user gave some
    line: np.ndarray  # (nodes,) where each node's own message stands in the reply to a `Broadcast`
    receiver: np.ndarray  # (edges,) the node that hears
    sender: np.ndarray  # (edges,) the line of the node that is heard, in the reply to a `Broadcast`
    weight: np.ndarray  # (edges,) positive
    neighbour: np.ndarray  # (edges,) `label_hash` of the node that is heard
    reverse: np.ndarray
    """(edges,) the edge of the opposite direction; -1 where the neighbour is elsewhere."""
    n_network: int
    """Nodes of the whole network, here and elsewhere: all know it."""
    most_components: int = 0
    """Room for components that mixtures have, if more than the largest here needs."""

    @cached_property
    def device_data(self) -> NodeData:
        """`data`, with rows where a fit works with them: they are copied to a GPU once."""
        data = self.data
        rows, weights = xp.asarray(data.rows), xp.asarray(data.row_weights)
        return replace(data, rows=rows, row_weights=weights)


@dataclass(frozen=True)
class Broadcast:
    """One message to all neighbours. Reply: a table (lines, ...), own messages among them.

    ``table[block.sender]`` is what was heard over every edge, ``table[block.line]`` what was sent.
    """

    message: Any  # pytree of arrays (nodes, ...)
    rows: Array | None = None
    """The block's rows in the units of the message: what a silo's gate counts behind it."""


class Release(eqx.Module):
    """What a node tells of its rows in the clear: its own mixture and how many rows it has.

    Between silos no other message can be broadcast: it passes the release gate.
    """

    theta: Mixture  # (lines, ...)
    rows: Any  # (lines,)
    lost: Any = None
    """(lines,) whether a silo's gate took components away, or all; None: nowhere."""


@dataclass(frozen=True)
class PerNeighbour:
    """A message to each neighbour. Reply: what came over every edge, (edges, ...)."""

    message: Any
    """Pytree of arrays (edges, ...): over edge e to the sender of e, who hears it from there."""


class Groups(NamedTuple):
    """Which nodes belong together; each (nodes,) int64."""

    label: np.ndarray
    """A number that all nodes of a group share, made from their labels and not from positions."""
    size: np.ndarray  # how many they are
    rank: np.ndarray
    """Place of the node in its group: most live edges first, then by the hash of its label."""


@dataclass(frozen=True)
class Connect:
    """Find the groups that are connected by edges live from both ends. Reply: `Groups`."""

    live: Array  # (edges,) bool


@dataclass(frozen=True)
class Walk:
    """How alike the places of neighbours are in the network of live edges. Reply: (edges,) cosines.

    Of numbers that diffuse over edges live from both ends: see `methods.walks`. They are made from
    labels and live edges alone; a method has no say in them.
    """

    live: Array  # (edges,) bool


@dataclass(frozen=True)
class Sum:
    """Totals over groups. Reply: the total of each node's own group, (nodes, ...)."""

    share: Any  # pytree of arrays (nodes, ...)
    group: np.ndarray | None = None
    """(nodes,) labels as `Connect` gives them; None: one total over all nodes."""
    spread: Any = 1.0
    """Standard deviation of what one row adds, a number or a pytree like the share: between silos
    no total is finer than a part of it. Zero: no row is in it, but messages that were broadcast
    before. Of a `Statistics`: the covariances (nodes, ..., d, d) that it was taken under; its
    log-likelihood stays at home."""
    who: np.ndarray | None = None
    """Nodes of the block that the lines above are of: the others ask for nothing. None: all."""


@dataclass(frozen=True)
class Whereabouts:
    """Where the rows of each node lie. Reply: `UnitBounds` for the units of all.

    Between silos it is told to all, coarsely, so that none of them can spoil the units by what it
    adds to sums. In one process nobody needs to be told, and anything is possible.
    """

    cells: Any  # (nodes, features) how many there are
    first: Any  # (nodes, features) and their sums
    deviation: Any  # (nodes, features)


Request = Broadcast | PerNeighbour | Connect | Walk | Sum | Whereabouts


@dataclass(frozen=True)
class Stage:
    """A part of a run whose result is worth keeping. Reply: that result.

    No message by itself: the requests of the part are carried as all others are. Who goes on from a
    checkpoint gets the result that was kept, and the part is not run again.
    """

    name: str
    """One of its own in a run."""
    work: Callable[[], Any]
    """Makes the result, or a generator of requests that returns it: arrays in tuples, dictionaries
    and the classes that the protocol `keeps`."""
    mixtures: Callable[[Any], Mixture] | None = None
    """The mixtures of all nodes as this result has them: what is left of an interrupted run."""

    def result(self) -> Generator[Request, Any, Any]:
        """Run the part, requests and all."""
        made = self.work()
        return (yield from cast(Any, made)) if inspect.isgenerator(made) else made


class StageResults(abc.ABC):
    """The results of the stages of a run, as far as an engine keeps them."""

    @abc.abstractmethod
    def known(self, stage: Stage) -> bool:
        """Whether the result of this stage is here from a run before."""

    @abc.abstractmethod
    def result_of(self, stage: Stage) -> Any:
        """The result that is here."""

    @abc.abstractmethod
    def keep(self, stage: Stage, result: Any) -> Any:
        """Take note of a result; returns it as it would come back from a checkpoint."""


class Protocol(Method):
    """A program that is written from top to bottom: it asks, and goes on when it has the reply.

    Every process runs the same generator on its own block: a simulation one for all nodes, a silo
    one for its node. Whoever drives it carries the messages, so that what leaves a node is what is
    yielded and nothing else. To go on after a crash a silo runs the generator again on the replies
    it has kept: `run` has to be deterministic, given block and replies. All nodes make the same
    requests in the same order, so that conditions for a further request must be known to all
    (totals over everybody, say).
    """

    kind: ClassVar = "protocol"
    needs_start: ClassVar = False
    keeps: ClassVar[tuple[type, ...]] = ()
    """Dataclasses and named tuples in the results of its stages."""
    spreads: ClassVar[bool] = False
    """Whether nodes get the same numbers when they are cut into several blocks, one a device."""

    @abc.abstractmethod
    def run(self, block: Block) -> Generator[Request | Stage, Any, Outcome]:
        """Yield requests and stages, get replies, return the outcome."""

    def join(
        self, block: Block, levels: Levels, rows: np.ndarray, diagnostics: Diagnostics
    ) -> Outcome | None:
        """What a node that comes later gets from what the network has found; None: its own fit.

        `rows` (nodes,) are those of the fitted nodes, `levels` and `diagnostics` what was found.
        """
        return None


def requests_of(
    steps: Generator[Request | Stage, Any, Outcome], results: StageResults | None = None
) -> Generator[Request, Any, Outcome]:
    """The requests of a protocol that runs, those of its stages among them; returns its outcome.

    With `results` stages that are known there are not run again, and others are kept there.
    """
    answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = None
        if not isinstance(request, Stage):
            answer = yield request
        elif results is not None and results.known(request):
            answer = results.result_of(request)
        else:
            answer = yield from request.result()
            answer = answer if results is None else results.keep(request, answer)
        del request  # its arrays
