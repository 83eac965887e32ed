"""Protocols: who gets which message, groups, sums; alone as together; what is counted."""

import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import node_block, protocol_block
from fedmixtures.engine.run.protocols import InProcess, run_protocol
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import (
    Block,
    Broadcast,
    Connect,
    PerNeighbour,
    Protocol,
    Sum,
)


class Average(Protocol):
    """One Gaussian for everybody, by one sum of the rows' moments."""

    def run(self, block: Block):
        share = {
            "mass": block.data.total_weights(),
            "first": np.stack([w @ x for x, w in each_node(block)]),
            "second": np.stack([(w[:, None] * x).T @ x for x, w in each_node(block)]),
        }
        total = yield Sum(share)
        mean = total["first"] / total["mass"][:, None]
        square = total["second"] / total["mass"][:, None, None]
        covariance = square - mean[:, :, None] * mean[:, None, :]
        weights = np.ones((len(mean), 1))
        return Outcome(fm.Mixture(weights, mean[:, None], covariance[:, None]))


class Talk(Protocol):
    """Every kind of request: nodes join those whose mean is near, and sum over their group."""

    def run(self, block: Block):
        own = np.stack([x.mean(0) for x, _ in each_node(block)])
        table = yield Broadcast(own)
        np.testing.assert_array_equal(table[block.line], own)
        theirs, mine = table[block.sender], own[block.receiver]
        near = np.abs(theirs - mine).max(-1) < 3
        messages = yield PerNeighbour(1000 * mine[:, :1] + theirs[:, :1])
        group, size, rank = yield Connect(near)
        hashes = block.data.label_hashes
        draw = np.array([np.random.default_rng([block.seed, h]).normal() for h in hashes])
        total = yield Sum({"mean": own, "draw": draw, "one": np.ones(len(own), int)}, group)
        mean = total["mean"] / total["one"][:, None]
        d = own.shape[1]
        theta = fm.Mixture(
            np.ones((len(own), 1)),
            mean[:, None],
            np.broadcast_to(np.eye(d), (len(own), 1, d, d)),
        )
        nodes = {"group": group, "size": size, "draw": total["draw"], "members": total["one"]}
        nodes["rank"] = rank
        return Outcome(theta, nodes=nodes, edges={"message": messages, "near": near})

    @property
    def needs_start(self) -> bool:
        return False


def each_node(block: Block):
    return [block.data.of(i) for i in range(block.data.n_nodes)]


CENTRES = np.array([0, 0, 0, 9, 9, 9, 0, 50])
LABELS = [f"n{i}" for i in range(8)]
EDGES = [(0, 1, 1.0), (1, 2, 2.0), (2, 3, 0.5), (3, 4, 1.0), (4, 5, 1.0), (0, 5, 1.0), (6, 7, 1.0)]


def problem(order=range(8)) -> tuple[NodeData, Network]:
    """Two groups of three on a path, a node on an island with one that is far away."""
    order = list(order)
    rows = {i: np.random.default_rng(i).normal(CENTRES[i], 1, (20 + i, 2)) for i in order}
    place = {i: p for p, i in enumerate(order)}
    data = NodeData(
        tuple(LABELS[i] for i in order),
        np.concatenate([rows[i] for i in order]),
        np.ones(sum(map(len, rows.values()))),
        np.cumsum([0, *(len(rows[i]) for i in order)]),
        np.arange(sum(map(len, rows.values()))),
    )
    ends = sorted((*sorted((place[a], place[b])), w) for a, b, w in EDGES)
    source, target, weight = map(np.array, zip(*ends, strict=True))
    return data, Network(data.labels, source, target, weight)


def test_average_consensus_is_one_sum():
    data, network = problem()
    told = []
    solution = fm.solve(Average(), data, network, n_components=1, announce=told.append)
    assert told == ["exchange 1"]
    rows = data.rows
    for i in range(8):
        np.testing.assert_allclose(solution.theta.means[i, 0], rows.mean(0), rtol=1e-12)
        covariance = np.cov(rows.T, bias=True)
        np.testing.assert_allclose(solution.theta.covariances[i, 0], covariance, rtol=1e-12)
    assert solution.traffic.kinds == {"sum": {"requests": 1, "bytes": 8 * 8 * (1 + 2 + 4)}}
    assert solution.traffic.received["n3"] == 56
    assert solution.n_rounds == 1


def test_messages_arrive_groups_are_found_and_bytes_are_counted():
    data, network = problem()
    solution = fm.solve(Talk(), data, network, n_components=1)
    told = solution.diagnostics
    group = told.nodes["group"]
    assert [len(set(group[:3])), len(set(group[3:6])), len(set(group))] == [1, 1, 4]
    assert told.nodes["size"].tolist() == told.nodes["members"].tolist() == [3] * 6 + [1, 1]
    ranks = told.nodes["rank"]
    assert ranks[1] == ranks[4] == 0  # the middle of a path of three has most live edges
    assert sorted(ranks[:3]) == sorted(ranks[3:6]) == [0, 1, 2]
    assert sorted(ranks[6:]) == [0, 0]
    means = np.stack([data.of(i)[0].mean(0) for i in range(8)])
    ends = np.stack([network.source, network.target], 1)
    own, other = means[ends][..., :1], means[ends[:, ::-1]][..., :1]
    np.testing.assert_allclose(told.edges["message"], 1000 * other + own, rtol=1e-14)
    np.testing.assert_allclose(solution.theta.means[4, 0], means[3:6].mean(0), rtol=1e-14)
    degree, live = network.degree.sum(), 8  # ends of the four edges within groups
    root = [data.label_hashes[first : first + 3].argmin() for first in (0, 3)]
    depth = 2 if any(r != 1 for r in root) else 1  # a path of three, from its middle or its end
    assert solution.traffic.kinds == {
        "broadcast": {"requests": 1, "bytes": 16 * degree},
        "per neighbour": {"requests": 1, "bytes": 8 * degree},
        "connect": {"requests": 1, "bytes": degree + 8 * depth * live + 8 * 6},
        "sum": {"requests": 1, "bytes": 6 * (16 + 8 + 8)},
    }
    assert solution.traffic.n_rounds == 1 + 1 + (2 + depth) + 1


def test_the_order_of_nodes_changes_no_bit():
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    one, other = (fm.solve(Talk(), *problem(o), n_components=1) for o in (range(8), order))
    for name, values in one.diagnostics.nodes.items():
        np.testing.assert_array_equal(values[order], other.diagnostics.nodes[name])
    np.testing.assert_array_equal(one.theta.means[order], other.theta.means)


def test_nodes_apart_hear_what_a_block_of_all_hears():
    """As silos run it: a generator for every node, in step, and replies cut out of the whole."""
    data, network = problem()
    together = fm.solve(Talk(), data, network, n_components=1)
    engine = InProcess(protocol_block(data, network, [1] * 8))
    whole, talks = engine.block, []
    for i, label in enumerate(data.labels):
        here = whole.receiver == i
        names = tuple(data.labels[j] for j in whole.sender[here])
        weights = dict(zip(names, whole.weight[here], strict=True))
        block, found = node_block(label, *data.of(i), dict(reversed(weights.items())), 1)
        assert found == names
        talks.append(Talk().run(block))
    requests, outcomes = [next(talk) for talk in talks], []
    while not outcomes:
        replies = engine(joined(requests))
        for i, talk in enumerate(talks):
            try:
                requests[i] = talk.send(own_part(replies, i, whole, requests[i]))
            except StopIteration as end:
                outcomes.append(end.value)
    for i, outcome in enumerate(outcomes):
        np.testing.assert_array_equal(outcome.theta.means[0], together.theta.means[i])
        np.testing.assert_array_equal(
            outcome.nodes["group"], together.diagnostics.nodes["group"][[i]]
        )


def joined(requests):
    """The requests of nodes apart as the one of a block of all."""
    (kind,) = {type(request) for request in requests}
    if kind in (Broadcast, PerNeighbour):
        return kind(np.concatenate([r.message for r in requests]))
    if kind is Connect:
        return Connect(np.concatenate([r.live for r in requests]))
    share = {n: np.concatenate([r.share[n] for r in requests]) for n in requests[0].share}
    return Sum(share, np.concatenate([r.group for r in requests]))


def own_part(replies, i, whole, request):
    here = whole.receiver == i
    if isinstance(request, Broadcast):
        return replies[[i, *whole.sender[here]]]
    if isinstance(request, PerNeighbour):
        return replies[here]
    if isinstance(request, Connect):
        return tuple(part[[i]] for part in replies)
    return {name: part[[i]] for name, part in replies.items()}


def test_replies_kept_lead_to_the_same_place():
    """Recovery: what was heard before a crash is heard again, and nothing else is needed."""
    data, network = problem()
    block = protocol_block(data, network, [1] * 8)
    kept = []
    engine = InProcess(block)
    first = run_protocol(Talk(), block, lambda request: kept.append(engine(request)) or kept[-1])
    replies = iter(kept)
    again = run_protocol(Talk(), block, lambda request: next(replies))
    np.testing.assert_array_equal(first.theta.means, again.theta.means)


def test_what_is_no_request_is_refused():
    class Shout(Protocol):
        def run(self, block):
            yield "hello"

    data, network = problem()
    with pytest.raises(TypeError, match="yielded 'hello'. Yield Broadcast"):
        fm.solve(Shout(), data, network, n_components=1)
