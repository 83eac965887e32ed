"""A protocol over several devices: each runs it on its own nodes, and all answer each other.

Every device has its part of the nodes as a block of its own, with their rows and nothing of the
rows of others, and runs the same protocol on it. At a request each waits for the others; then
messages go to the devices of the nodes that hear them, and sums to all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from fedmixtures._types import Device
from fedmixtures.engine.layout.parts import Part, parts_of
from fedmixtures.engine.run.in_process import InProcess
from fedmixtures.engine.run.protocols import ProtocolRun
from fedmixtures.engine.run.stages import Stages
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import at, numpy_rules
from fedmixtures.kernels.cores import cores_shared_by
from fedmixtures.methods.base import Joined, Levels, Outcome
from fedmixtures.methods.protocol import (
    Block,
    Broadcast,
    Connect,
    Groups,
    PerNeighbour,
    Request,
    Sum,
    Walk,
    Whereabouts,
    requests_of,
)
from fedmixtures.mixture.mixture import Mixture


class BetweenParts(InProcess):
    """Answers the requests that all parts make together, and counts as if nodes had sent them."""

    def __init__(self, block: Block, parts: Sequence[Part], devices: Sequence[Device]):
        super().__init__(block)
        self.parts, self.devices = parts, devices
        n = block.data.n_nodes
        self._of_nodes = _places([part.nodes for part in parts], n)
        self._of_edges = _places([part.edges for part in parts], len(block.receiver))
        self._asked: tuple[Sequence[Any], tuple[Any, Any]] = (), (None, None)

    def together(self, requests: Sequence[Any]) -> list[Any]:
        """The reply to each part."""
        kinds = {type(request) for request in requests}
        if len(kinds) > 1:
            raise TypeError(f"parts of a network have asked for {kinds} at the same time.")
        first = requests[0]
        if isinstance(first, Sum):
            return self._sums(requests)
        if isinstance(first, Broadcast):
            whole = self(Broadcast(self._by_node([request.message for request in requests])))
            return self._to_each(whole, [part.lines for part in self.parts])
        nodes, edges = ([getattr(part, of) for part in self.parts] for of in ("nodes", "edges"))
        if isinstance(first, PerNeighbour):
            whole = self(PerNeighbour(self._by_edge([request.message for request in requests])))
            return self._to_each(whole, edges)
        if isinstance(first, Walk):
            return self._to_each(self(Walk(self._live(requests))), edges)
        if isinstance(first, Connect):
            found = self(Connect(self._live(requests)))
            return [Groups(*(of[who] for of in found)) for who in nodes]
        assert isinstance(first, Whereabouts)
        return [self(first)] * len(requests)

    def _sums(self, requests: Sequence[Sum]) -> list[Any]:
        """Members are added up in the order of their labels, whatever part they are of."""
        who, group = self._members_of_parts(requests)
        share = self._joined([request.share for request in requests])
        total = self(Sum(share, group, who=who))
        ends = np.cumsum([0, *(len(jax.tree.leaves(one.share)[0]) for one in requests)])
        spans = [slice(int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return self._to_each(total, spans)

    def _members_of_parts(self, requests: Sequence[Sum]) -> tuple[np.ndarray, Any]:
        """The nodes that ask, part after part, and their groups: the same as long as they are."""
        groups, (who, group) = self._asked[0], self._asked[1]
        asked = [request.group for request in requests]
        same = len(groups) == len(asked) and all(a is b for a, b in zip(groups, asked, strict=True))
        if not same or asked[0] is None:
            each = zip(self.parts, requests, strict=True)
            who = [part.nodes if one.who is None else part.nodes[one.who] for part, one in each]
            who = np.concatenate(who)
            group = None if asked[0] is None else np.concatenate([np.asarray(of) for of in asked])
            self._asked = asked, (who, group)
        return who, group

    def _live(self, requests: Sequence[Any]) -> np.ndarray:
        live = [np.asarray(request.live, dtype=bool) for request in requests]
        return np.concatenate(live)[self._of_edges]

    def _by_node(self, trees: Sequence[Any]) -> Any:
        return at(self._joined(trees), self._of_nodes)

    def _by_edge(self, trees: Sequence[Any]) -> Any:
        return at(self._joined(trees), self._of_edges)

    def _joined(self, trees: Sequence[Any]) -> Any:
        """Lines of all parts, one after the other, in one place."""
        if not dispatch.keeps_on_device():
            return jax.tree.map(lambda *of: np.concatenate(list(map(np.asarray, of))), *trees)
        here = jax.device_put(list(trees), self.devices[0])
        return jax.tree.map(lambda *of: jax.numpy.concatenate(of), *here)

    def _to_each(self, whole: Any, lines: Sequence[Any]) -> list[Any]:
        """Some lines to each device."""
        found = [at(whole, index) for index in lines]
        if not dispatch.keeps_on_device():
            return found
        return [jax.device_put(of, to) for of, to in zip(found, self.devices, strict=True)]


class SpreadRun(ProtocolRun):
    """A protocol on nodes that are spread over devices."""

    answers: BetweenParts

    def _begin(self, begun: dict[str, tuple[Any, list[np.ndarray]]]) -> None:
        self.parts, self.shards = parts_of(self.block, self.network, len(self.options.devices))
        devices = self.options.devices[: len(self.parts)]
        self.answers = BetweenParts(self.block, self.parts, devices)
        self.writing, self.written = threading.Lock(), 0
        self.each = [self._stages_of(number, begun) for number in range(len(self.parts))]

    def _stages_of(self, number: int, begun: dict[str, Any]) -> Stages:
        mine = f"/{number}"
        known = {name.removesuffix(mine): of for name, of in begun.items() if name.endswith(mine)}
        counter = SimpleNamespace(counts={}) if number else self.answers
        return self._stages(counter, known, self._part_ended)

    def _outcome(self) -> Outcome:
        """All parts to their next request, which is answered; and so on."""
        rules = zip(self.parts, self.each, strict=True)
        steps = [requests_of(self.protocol.run(part.block), kept) for part, kept in rules]
        pool, n = ThreadPoolExecutor(len(steps)), len(steps)
        replies: list[Any] = [None] * n
        try:
            while True:
                found = list(pool.map(self._advanced, steps, self.answers.devices, replies))
                ended = [one for one in found if isinstance(one, Outcome)]
                if len(ended) == n:
                    return _joined(ended, self.parts)
                replies = self._reply(found)
                del found  # its arrays
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _advanced(
        self, steps: Generator[Request, Any, Outcome], device: Device, reply: Any
    ) -> Request | Outcome:
        """The next request of a part, or its outcome."""
        with (
            jax.default_device(device),
            numpy_rules(self.options.dtype),
            cores_shared_by(len(self.parts)),
        ):
            try:
                return steps.send(reply)
            except StopIteration as end:
                return end.value

    def _answered(self, request: Any) -> Any:
        return self.answers.together(request)

    def _part_ended(self) -> None:
        """A checkpoint once all parts have finished a stage."""
        with self.writing:
            done = len(self._done())
            if done > self.written:
                self.written = done
                self._stage_ended()

    def _done(self) -> dict[str, tuple[Any, list[np.ndarray]]]:
        """What all parts have finished."""
        names = [name for name in list(self.each[0].done) if all(name in s.done for s in self.each)]
        return {
            f"{name}/{number}": stages.done[name]
            for name in names
            for number, stages in enumerate(self.each)
        }

    def _last(self) -> tuple[str, Callable[[], Mixture]] | None:
        readers = [dict(stages.readers) for stages in self.each]
        names = [name for name in readers[0] if all(name in of for of in readers)]
        if not names:
            return None
        read = lambda: _by_node([of[names[-1]]().to_numpy() for of in readers], self.parts)
        return names[-1], read

    def _settings(self) -> tuple[Any, ...]:
        return *super()._settings(), len(self.options.devices)


def _places(index: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Where each of `n` stands when those of all parts stand one after the other."""
    place = np.empty(n, dtype=np.int64)
    place[np.concatenate(index)] = np.arange(n)
    return place


def _by_node(trees: Sequence[Any], parts: Sequence[Part], axis: int = 0) -> Any:
    """Lines of all nodes in the order of the network."""
    order = _places([part.nodes for part in parts], sum(len(part.nodes) for part in parts))
    join = lambda *of: np.concatenate([np.asarray(one) for one in of], axis).take(order, axis)
    return jax.tree.map(join, *trees)


def _joined(outcomes: Sequence[Outcome], parts: Sequence[Part]) -> Outcome:
    """The outcome of the whole network."""
    first, nodes = outcomes[0], lambda of: _by_node([of(one) for one in outcomes], parts)
    order = _places([part.edges for part in parts], sum(len(part.edges) for part in parts))
    of_edges = lambda name: np.concatenate([np.asarray(one.edges[name]) for one in outcomes])[order]
    levels = first.levels
    if levels is not None:
        each: list[Any] = [one.levels for one in outcomes]
        by_node = lambda name: _by_node([getattr(one, name) for one in each], parts)
        rest = {name: by_node(name) for name in ("weights", "evidence", "clusters", "prequential")}
        theta = _by_node([one.theta.to_numpy() for one in each], parts, axis=1)
        levels = Levels(levels.names, theta, **rest)
    return replace(
        first,
        theta=nodes(lambda one: one.theta.to_numpy()),
        message=" ".join(one.message for one in outcomes if one.message),
        nodes={name: nodes(lambda one, name=name: one.nodes[name]) for name in first.nodes},
        edges={name: of_edges(name) for name in first.edges},
        levels=levels,
        joined=_clusters([one.joined for one in outcomes if one.joined is not None], parts),
    )


def _clusters(found: list[Joined], parts: Sequence[Part]) -> Joined | None:
    if not found:
        return None
    most = max(of.unsure.shape[1] for of in found)
    wide = [np.pad(of.unsure, ((0, 0), (0, most - of.unsure.shape[1]))) for of in found]
    return Joined(_by_node([of.cluster for of in found], parts), _by_node(wide, parts))
