"""Answers the requests of a protocol whose nodes are all in one block, and counts them.

A broadcast or a message per neighbour: its bytes to every neighbour, one round. A sum: as through
someone who adds, each node's share there and the total back, one round; a group of one sends
nothing. Groups: one byte to every neighbour in a first round (live or not), then the smallest label
floods every group, 8 bytes over each live edge and from both ends, in as many rounds as the
farthest node needs; then the sizes as a sum of 8 bytes. A walk: one byte to every neighbour, then
in every step 8 bytes for each of its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array
from fedmixtures.engine.solution import Traffic
from fedmixtures.fits.units import UnitBounds
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import (
    Segments,
    at,
    in_order_of,
    jit_on_gpu,
    replaced,
    xp,
)
from fedmixtures.methods import walks
from fedmixtures.methods.protocol import (
    Block,
    Broadcast,
    Connect,
    Groups,
    PerNeighbour,
    Sum,
    Walk,
    Whereabouts,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WIDTH = 36
"""Numbers of a node in one sum on a device: one program for all kinds of sums."""
FLOOD_ROUNDS = 100
"""In which labels flood a network on a device; where they need more (chains), it is searched."""
EDGES_AT_ONCE = 1 << 18
"""Of which the ends are compared, on a CPU."""
BYTES = 8
"""A label on the wire."""


@dataclass
class InProcess:
    """Answers the requests of a block that holds all nodes, and counts what would be sent."""

    block: Block
    rounds: int = 0
    sent: np.ndarray = field(init=False)
    """Bytes of each node."""
    received: np.ndarray = field(init=False)
    """Bytes of totals that came back to each node."""
    kinds: dict[str, dict[str, int]] = field(init=False)
    """Requests and bytes sent by all nodes, by kind of request."""
    step: str = ""
    """Kind of the last request."""

    def __post_init__(self):
        self.sent, self.received = np.zeros((2, self.block.data.n_nodes), dtype=np.int64)
        self.kinds = defaultdict(lambda: {"requests": 0, "bytes": 0})
        self._last: tuple[Any, Any] = None, None
        self._reverse = xp.asarray(self.block.reverse)

    def __call__(self, request: Any) -> Any:
        """Carry one request."""
        match request:
            case Broadcast(message=message):
                return self._broadcast(message)
            case PerNeighbour(message):
                return self._per_neighbour(message)
            case Connect(live):
                return self._connect(np.asarray(live, dtype=bool))
            case Walk(live):
                return self._walk(np.asarray(live, dtype=bool))
            case Sum(share=share, group=group, who=who):
                return self._sum(share, group, who)
            case Whereabouts(cells=cells):
                return UnitBounds.anywhere(cells.shape[-1])  # nobody adds what it has not
        raise TypeError(
            f"a protocol yielded {request!r}. Yield Broadcast, PerNeighbour, Connect, Walk, "
            "Sum, Whereabouts or Stage."
        )

    def _broadcast(self, message: Any) -> Any:
        self._count("broadcast", _bytes(message) * self._degree)
        return message

    def _per_neighbour(self, message: Any) -> Any:
        self._count("per neighbour", _bytes(message) * self._degree)
        return at(message, self._reverse)

    def _connect(self, live: np.ndarray) -> Groups:
        block, n, hashes = self.block, self.block.data.n_nodes, self.block.data.label_hashes
        both = live & live[block.reverse]
        degree = np.bincount(block.receiver[both], minlength=n)
        found = None
        if dispatch.keeps_on_device():
            found = _flooded(both, block.receiver, block.sender, hashes)
        root, depth = found or _searched(block.sender[both], degree, hashes)
        sizes = np.bincount(root, minlength=n)
        flood = depth * BYTES * degree
        back = BYTES * (sizes[root] > 1)
        self._count("connect", self._degree + flood + back, back, rounds=2 + depth)
        label = (hashes[root] >> np.uint64(1)).astype(np.int64)  # without a sign
        rank = np.empty(n, dtype=np.int64)
        rank[np.asarray(in_order_of(hashes, -degree, root))] = np.arange(n)
        return Groups(label, sizes[root], rank - (np.cumsum(sizes) - sizes)[root])

    def _walk(self, live: np.ndarray) -> Any:
        block, steps = self.block, walks.STEPS + 1
        both = live & live[block.reverse]
        count = self._degree * (1 + steps * walks.WIDTH * BYTES)
        self._count("walk", count, rounds=1 + steps)
        return _walked(both, block.receiver, block.sender, block.data.label_hashes)

    @cached_property
    def _degree(self) -> np.ndarray:
        return np.bincount(self.block.receiver, minlength=self.block.data.n_nodes)

    def _sum(self, share: Any, group: np.ndarray | None, who: np.ndarray | None) -> Any:
        """Totals of groups, members added up in the order of the hashes of their labels.

        A share that is not a number is left out, as it is where shares are fixed-point numbers.
        """
        order, number, members, several = self._members(group, who)
        size = _bytes(share) * several
        self._count("sum", size, size)
        return _totals(share, order, number, members)

    def _members(
        self, group: np.ndarray | None, who: np.ndarray | None
    ) -> tuple[Any, Any, Segments, np.ndarray]:
        """Nodes group by group, each one's number of group, where groups stand, who has others."""
        if self._last[0] is group and self._last[1] is not None:  # as in most steps
            return self._last[1]
        n, hashes = self.block.data.n_nodes, self.block.data.label_hashes
        who = np.arange(n) if who is None else who
        label = np.zeros(len(who), dtype=np.int64) if group is None else np.asarray(group)
        order = np.asarray(in_order_of(hashes[who], label))
        new = np.diff(label[order], prepend=label[order[:1]] - 1) != 0
        number = np.empty(len(who), dtype=np.int64)
        number[order] = np.cumsum(new) - 1
        several = np.zeros(n, dtype=bool)
        several[who] = np.bincount(number)[number] > 1
        members = Segments(np.flatnonzero(new), len(who))
        self._last = group, (xp.asarray(order), xp.asarray(number), members, several)
        return self._last[1]

    def _count(
        self, kind: str, sent: np.ndarray, received: np.ndarray | int = 0, rounds: int = 1
    ) -> None:
        self.rounds += rounds
        self.step = kind
        self.sent += sent
        self.received += received
        self.kinds[kind]["requests"] += 1
        self.kinds[kind]["bytes"] += int(sent.sum())

    @property
    def counts(self) -> dict[str, Any]:
        """All that was counted so far, for a checkpoint."""
        return {
            "rounds": self.rounds,
            "sent": self.sent.copy(),
            "received": self.received.copy(),
            "kinds": {kind: dict(of) for kind, of in self.kinds.items()},
        }

    @counts.setter
    def counts(self, counts: dict[str, Any]) -> None:
        self.rounds, self.sent, self.received = counts["rounds"], counts["sent"], counts["received"]
        self.kinds.update(counts["kinds"])

    def traffic(self) -> Traffic:
        """What every node has sent and received."""
        by_label = lambda values: dict(zip(self.block.data.labels, values.tolist(), strict=True))
        to = "neighbours and sums" if "sum" in self.kinds else "neighbours"
        return Traffic(
            int(self.sent.max(initial=0)) // max(self.rounds, 1),
            by_label(self.sent),
            to,
            self.rounds,
            received=by_label(self.received),
            kinds=dict(self.kinds),
        )


def _totals(share: Any, order: Any, number: Any, members: Segments) -> Any:
    """For every node the sum over its group, in the types of the shares.

    Nodes that gave something not finite are left out.
    """
    parts, tree = jax.tree.flatten(share)
    shapes = tuple((part.shape, _dtype_of_sum(part)) for part in parts)
    if dispatch.keeps_on_device():
        tables = _side_by_side(parts, WIDTH)
        sums = _apart([_summed(table, order, number, members) for table in tables], shapes)
    else:  # one by one, for the memory
        sound = np.all([np.isfinite(part).reshape(len(part), -1).all(1) for part in parts], axis=0)
        kept = lambda part: part if sound.all() else replaced(part, ~sound, np.zeros(1))
        sums = [
            members.sums(kept(part)[order], np.float64).astype(dtype)[number]
            for part, (_, dtype) in zip(parts, shapes, strict=True)
        ]
    return jax.tree.unflatten(tree, sums)


def _dtype_of_sum(part: Any) -> np.dtype:
    return np.dtype(np.int64 if part.dtype.kind == "b" else part.dtype)


@partial(jit_on_gpu, static_argnums=1)
def _side_by_side(parts: list[Any], width: int) -> list[Any]:
    """All numbers of a node in one line, in tables of one width; zeros if one is not finite."""
    real = np.result_type(np.float32, *(part.dtype for part in parts))
    flat = [xp.asarray(part, real).reshape(len(part), -1) for part in parts]
    table = xp.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]
    table = xp.where(xp.isfinite(table).all(1, keepdims=True), table, 0.0)
    table = xp.pad(table, ((0, 0), (0, -table.shape[1] % width)))
    return [table[:, first : first + width] for first in range(0, table.shape[1], width)]


@jit_on_gpu
def _summed(table: Any, order: Any, number: Any, members: Segments) -> Any:
    return members.sums(table[order], np.float64).astype(table.dtype)[number]


@partial(jit_on_gpu, static_argnums=1)
def _apart(tables: list[Any], shapes: tuple[tuple[tuple[int, ...], np.dtype], ...]) -> list[Any]:
    """The arrays (nodes, ...) that stand in the tables of `_side_by_side`, in their own types."""
    table = xp.concatenate(tables, axis=1) if len(tables) > 1 else tables[0]
    end = np.cumsum([int(np.prod(shape[1:])) for shape, _ in shapes])
    return [
        part.reshape(shape).astype(dtype)
        for part, (shape, dtype) in zip(xp.split(table, end, axis=1), shapes, strict=False)
    ]


def _bytes(message: Any) -> int:
    """Bytes of the message of one node, or over one edge."""
    parts = jax.tree.leaves(message)
    return sum(int(np.prod(part.shape[1:])) * part.dtype.itemsize for part in parts)


def _flooded(
    live: np.ndarray, receiver: np.ndarray, sender: np.ndarray, hashes: np.ndarray
) -> tuple[np.ndarray, int] | None:
    """Groups of live edges and rounds it took, by rounds of nodes on a device; None: too many."""
    order = np.asarray(in_order_of(hashes))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    least, rounds = _flood(live, receiver, sender, rank)
    return (order[np.asarray(least)], int(rounds) - 1) if rounds < FLOOD_ROUNDS else None


def _walked(live: np.ndarray, receiver: np.ndarray, sender: np.ndarray, hashes: np.ndarray) -> Any:
    """(edges,) how alike the ends are after all steps of a walk over live edges."""
    if dispatch.keeps_on_device():
        return _walked_on_device(live, receiver, sender, hashes)
    from scipy.sparse import csr_array

    n, numbers = len(hashes), walks.begun(hashes)
    degree = np.bincount(receiver[live], minlength=n)
    begin, ones = np.concatenate([[0], np.cumsum(degree)]), np.ones(degree.sum(), np.int64)
    neighbours = csr_array((ones, sender[live], begin), (n, n))
    for _ in range(walks.STEPS):
        numbers = walks.moved(numbers, neighbours @ numbers, degree)
    parts = np.array_split(np.arange(len(live)), -(-len(live) // EDGES_AT_ONCE) or 1)
    alike = [walks.alike(numbers[receiver[part]], numbers[sender[part]]) for part in parts]
    return np.concatenate(alike)


@jax.jit
def _walked_on_device(live: Array, receiver: Array, sender: Array, hashes: Array) -> Any:
    n = len(hashes)
    total = lambda part: jax.ops.segment_sum(part, receiver, n, indices_are_sorted=True)
    degree = total(jnp.asarray(live, jnp.int64))

    def step(_, numbers):
        heard = jnp.where(live[:, None], numbers[sender], 0).astype(jnp.int64)
        return walks.moved(numbers, total(heard), degree)

    numbers = jax.lax.fori_loop(0, walks.STEPS, step, walks.begun(hashes))
    return walks.alike(numbers[receiver], numbers[sender])


@jax.jit
def _flood(live: Array, receiver: Array, sender: Array, rank: Array) -> tuple[Any, Any]:
    """The least rank that reaches every node over live edges; rounds, the last of which is idle."""

    def spread(carry):
        least, rounds, _ = carry
        heard = jnp.where(live, least[sender], jnp.iinfo(least.dtype).max)
        heard = jax.ops.segment_min(heard, receiver, len(rank), indices_are_sorted=True)
        return jnp.minimum(least, heard), rounds + 1, (heard < least).any()

    begin = jnp.asarray(rank), jnp.int32(0), jnp.bool_(True)
    go_on = lambda carry: carry[2] & (carry[1] < FLOOD_ROUNDS)
    return jax.lax.while_loop(go_on, spread, begin)[:2]


def _searched(
    neighbour: np.ndarray, degree: np.ndarray, hashes: np.ndarray
) -> tuple[np.ndarray, int]:
    """The node of each one's group whose label has the least hash; how far the farthest is from it.

    `neighbour` (live edges,) in the order of the receivers, who have `degree` of them.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n, begin = len(degree), np.concatenate([[0], np.cumsum(degree)])
    graph = csr_array((np.ones(len(neighbour), np.int8), neighbour, begin), (n, n))
    _, component = connected_components(graph, directed=False)
    order = np.lexsort((hashes, component))
    roots = order[np.flatnonzero(np.diff(component[order], prepend=-1))]
    return roots[component], _depth(graph, roots)


def _depth(graph: csr_array, roots: np.ndarray) -> int:
    """Edges from the nearest root to the node that is farthest from any, every part having one."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    n, n_edges = graph.shape[0], graph.nnz + len(roots)
    ends = np.concatenate([graph.indices, roots])  # from one more node to all roots
    begin = np.append(graph.indptr, n_edges)
    graph = csr_array((np.ones(n_edges, np.int8), ends, begin), (n + 1, n + 1))
    order, parent = breadth_first_order(graph, n, directed=True)
    place = np.empty(n + 1, dtype=np.int64)
    place[order] = np.arange(n + 1)
    before = place[parent[order[1:]]]  # ascending: what was seen first is followed first
    depth, seen = -1, 1  # that node is no node
    while seen < n + 1:
        depth, seen = depth + 1, 1 + int(np.searchsorted(before, seen))
    return depth
