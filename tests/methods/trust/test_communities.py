"""Step 5, communities: which live edges lie inside one; few labels, and thousands of nodes."""

import jax
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import protocol_block
from fedmixtures.engine.run import in_process
from fedmixtures.engine.run.in_process import InProcess
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.requests import Requests
from fedmixtures.federation.node.summing import Summing
from fedmixtures.federation.wire.message import encode_message
from fedmixtures.graph.generate import sparse_random
from fedmixtures.graph.network import Network, as_network
from fedmixtures.kernels import dispatch
from fedmixtures.methods.protocol import Walk
from fedmixtures.methods.trust_then_pool.communities import communities
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.mixture.feasible import FeasibleSet


def drive(steps, engine):
    answer = None
    while True:
        try:
            answer = engine(steps.send(answer))
        except StopIteration as end:
            return end.value


def kept_edges(edges, gain=0.1):
    """The edges between nodes of one row that `communities` keeps, all live from both ends."""
    labels = range(1 + max(map(max, edges)))
    data = NodeData.from_rows(np.zeros((len(labels), 1)), labels)
    network = as_network([(*edge, 1.0) for edge in edges], data.labels).aligned(data.labels)
    block = protocol_block(data, network, [1] * data.n_nodes)
    live = np.ones(len(block.receiver), dtype=bool)
    kept = drive(communities(block, live, np.full(len(live), gain)), InProcess(block))
    ends = zip(block.receiver[kept], block.sender[kept], strict=True)
    return {(int(a), int(b)) for a, b in ends if a < b}


def test_one_edge_by_chance_does_not_join_two_groups():
    clique = [(a, b) for a in range(5) for b in range(a)]
    inner = {tuple(sorted(e)) for e in clique} | {(b + 5, a + 5) for a, b in clique}
    assert kept_edges([*inner, (0, 5)]) == inner


@pytest.mark.parametrize(
    "edges", [[(0, i) for i in range(1, 8)], [(i, i + 1) for i in range(7)]], ids=["star", "chain"]
)
def test_stars_and_chains_stay_whole(edges):
    assert kept_edges(edges) == set(edges)


def planted(size, n_groups, n_chance):
    """Groups of `size` nodes of degree 8, 9 in 10 edges live; and live edges between neighbours."""
    rng, n = np.random.default_rng(0), size * n_groups
    inside = [sparse_random(size, 8.0, seed) for seed in range(n_groups)]
    ends = [np.stack([g.source, g.target]) + i * size for i, g in enumerate(inside)]
    first = np.arange(n_groups - 1).repeat(n_chance) * size
    ends.append(first + [[0], [size]] + rng.integers(size, size=(2, len(first))))
    low, high = np.divmod(np.unique(np.concatenate(ends, axis=1).T @ [n, 1]), n)
    network = Network(tuple(range(n)), low, high, np.ones(len(low)))
    data = NodeData.from_rows(np.zeros((n, 1)), np.arange(n))
    block = protocol_block(data, network, [1] * n)
    group = np.arange(n) // size
    draw = rng.random((n, n), dtype=np.float32)
    draw = (draw + draw.T)[block.receiver, block.sender]
    across = group[block.receiver] != group[block.sender]
    return block, across | (draw < 1.55), 0.1 + 0.1 * draw, group


@pytest.fixture(scope="module")
def two_large():
    return planted(1500, 2, 30)


def groups_of(block, kept):
    pairs = (np.ones(kept.sum()), (block.receiver[kept], block.sender[kept]))
    return connected_components(coo_array(pairs, (block.data.n_nodes,) * 2), directed=False)[1]


def purity(found, group):
    both, count = np.unique(np.stack([found, group]), axis=1, return_counts=True)
    most = np.zeros(len(group))
    np.maximum.at(most, both[0], count)
    return most.sum() / len(group)


def test_chance_edges_do_not_join_groups_of_thousands(two_large, monkeypatch):
    block, live, gain, group = two_large
    kept = drive(communities(block, live, gain), InProcess(block))
    np.testing.assert_array_equal(kept, kept[block.reverse])
    found = groups_of(block, kept)
    assert purity(found, group) > 0.995
    assert np.bincount(found).max() > 1300
    monkeypatch.setattr(C, "many", np.inf)
    by_labels = drive(communities(block, live, gain), InProcess(block))
    assert purity(groups_of(block, by_labels), group) < 0.6


def test_who_is_left_alone_has_a_second_look(monkeypatch):
    block, live, gain, group = planted(60, 10, 1)
    alone = lambda kept: np.bincount(block.receiver[kept], minlength=len(group)) == 0
    kept = drive(communities(block, live, gain), InProcess(block))
    none = np.bincount(block.receiver[live], minlength=len(group)) == 0
    np.testing.assert_array_equal(alone(kept), none)
    assert purity(groups_of(block, kept), group) > 0.995
    monkeypatch.setattr(C, "many", np.inf)
    assert alone(drive(communities(block, live, gain), InProcess(block))).sum() > none.sum()


def test_a_walk_on_a_device_is_the_same(two_large, monkeypatch):
    block, live, *_ = two_large
    host = InProcess(block)(Walk(live))
    monkeypatch.setattr(dispatch, "keeps_on_device", lambda: True)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        ends = block.receiver, block.sender, block.data.label_hashes
        device = np.asarray(in_process._walked_on_device(live, *ends))
    np.testing.assert_allclose(device[live], host[live], rtol=1e-12)


def test_sites_walk_as_one_process_does():
    """Every site by itself, its exchanges carried by hand."""
    names = [f"site-{i}" for i in range(7)]
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3), (0, 5)]  # the last is not live
    data = NodeData.from_rows(np.zeros((7, 1)), names)
    network = as_network([(names[a], names[b], 1.0) for a, b in edges], data.labels)
    block = protocol_block(data, network.aligned(data.labels), [1] * 7)
    far = lambda a, b: {names[a], names[b]} == {names[0], names[5]}
    live = np.array([not far(a, b) for a, b in zip(block.receiver, block.sender, strict=True)])
    whole = InProcess(block)(Walk(live))
    here = [block.receiver == i for i in range(7)]
    walks = [_site(names, i, block, here[i])._walk(live[here[i]]) for i in range(7)]
    exchanges, found = [next(walk) for walk in walks], {}
    while len(found) < 7:
        boxes = [
            {to: encode_message(said, "full") for to, said in one.messages.items()}
            for one in exchanges
        ]
        for i, walk in enumerate(walks):
            senders = [j for j in range(7) if names[i] in boxes[j]]
            heard = {names[j]: exchanges[i].decode(boxes[j][names[i]]) for j in senders}
            try:
                exchanges[i] = walk.send(heard)
            except StopIteration as end:
                found[i] = end.value
    for i in range(7):
        np.testing.assert_array_equal(found[i][live[here[i]]], whole[here[i] & live])


def _site(names, i, block, here):
    neighbours = [names[j] for j in block.sender[here]]
    support, gate = Support(np.zeros((1, 1)), None), Gate()
    sums = Summing(names[i], gate, "full")
    return Requests(names[i], names, neighbours, support, FeasibleSet(), sums, (Walk,))
