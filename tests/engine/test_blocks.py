"""Blocks: every row and edge in its place, few shapes, little padding."""

import jax
import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout import blocks
from fedmixtures.engine.layout.blocks import build_layout
from fedmixtures.graph.generate import erdos_renyi_ring, ring
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.compiling import rounded_up
from fedmixtures.mixture.arithmetic import double


def data_of(counts, seed=0, weights=True):
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    X = rng.standard_normal((len(nodes), 2))
    return NodeData.from_rows(X, nodes, rng.uniform(0.5, 2, len(nodes)) if weights else None)


def small_blocks(monkeypatch, overhead=0.0, nodes=4):
    """Make several groups and blocks of what would be one."""
    monkeypatch.setattr(blocks, "GROUP_OVERHEAD", overhead)
    monkeypatch.setattr(dispatch, "BLOCK_NODES", nodes)


def test_lengths_grow_by_at_most_a_quarter():
    grid = [rounded_up(n) for n in range(1, 3000)]
    assert all(n <= up <= max(1.25 * n, 1) for n, up in zip(range(1, 3000), grid, strict=True))
    assert len(set(grid)) < 45
    assert [rounded_up(n) for n in (0, 1, 8, 9, 50, 256, 257)] == [1, 1, 8, 10, 56, 256, 320]


@pytest.mark.parametrize("block_size", [None, 1])
def test_every_row_stands_once_with_its_share(monkeypatch, block_size):
    small_blocks(monkeypatch)
    data = data_of([3, 40, 9, 1, 17, 300, 5, 8, 2, 11])
    network = erdos_renyi_ring(10, 0.3, seed=1)
    with double():
        layout = build_layout(data, network, block_size=block_size)
    assert len(layout.groups) > 1
    flat = lambda pick: [pick(g).reshape(-1, *pick(g).shape[2:]) for g in layout.groups]
    rows = sum((list(np.asarray(part)) for part in flat(lambda g: g.data.rows)), [])
    shares = sum((list(np.asarray(part)) for part in flat(lambda g: g.data.row_weights)), [])
    totals = np.concatenate(flat(lambda g: np.asarray(g.data.total_weight)))
    assert len(set(layout.position.tolist())) == 10
    for i, place in enumerate(layout.position):
        own, weights = data.of(i)
        m = len(own)
        np.testing.assert_array_equal(rows[place][:m], own)
        np.testing.assert_allclose(shares[place][:m], weights / weights.sum(), rtol=1e-15)
        assert not shares[place][m:].any()
        assert totals[place] == pytest.approx(weights.sum())
    empty = np.setdiff1d(np.arange(layout.n_places), layout.position)
    assert not totals[empty].any()
    assert all(not shares[place].any() for place in empty)


@pytest.mark.parametrize("block_size", [None, 1])
def test_slots_name_neighbours(monkeypatch, block_size):
    small_blocks(monkeypatch)
    data = data_of([3, 40, 9, 1, 17, 300, 5, 8, 2, 11])
    network = erdos_renyi_ring(10, 0.3, seed=1)
    with double():
        layout = build_layout(data, network, block_size=block_size)
    sender = [np.asarray(g.sender).reshape(-1, g.shape[3]) for g in layout.groups]
    weight = [np.asarray(g.weight).reshape(-1, g.shape[3]) for g in layout.groups]
    receiver_of_slot = np.concatenate(
        [
            np.repeat(first + np.arange(len(part)), part.shape[1])
            for first, part in zip(
                np.cumsum([0, *(len(part) for part in sender[:-1])]), sender, strict=True
            )
        ]
    )
    sender_of_slot = np.concatenate([part.reshape(-1) for part in sender])
    weight_of_slot = np.concatenate([part.reshape(-1) for part in weight])
    node_at = np.full(layout.n_places, -1)
    node_at[layout.position] = np.arange(10)
    used = np.flatnonzero(weight_of_slot > 0)
    found = {
        (int(node_at[receiver_of_slot[s]]), int(node_at[sender_of_slot[s]])): weight_of_slot[s]
        for s in used
    }
    adjacency = network.adjacency().toarray()
    assert found == {(i, j): adjacency[i, j] for i, j in np.argwhere(adjacency).tolist()}
    assert len(used) == 2 * network.n_edges


@pytest.mark.parametrize(
    ("counts", "limit"),
    [
        pytest.param([10] * 500 + [100_000], 1.2, id="one-huge"),
        pytest.param([50] * 257, 1.5, id="one-more-than-a-block"),
        pytest.param([10] * 2000 + [1000] * 20, 1.1, id="two-sizes"),
        pytest.param([1 + int(20 * 1.007**i) for i in range(1000)], 2.0, id="all-sizes"),
    ],
)
def test_padding_stays_bounded(counts, limit):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    total = int(offsets[-1])
    labels = tuple(range(len(counts)))
    data = NodeData(labels, np.zeros((total, 1)), np.ones(total), offsets, np.arange(total))
    layout = build_layout(data, ring(len(counts)), dtype="float32")
    assert layout.row_waste < limit
    assert len(layout.groups) <= 10  # each is a program to compile


def test_small_problems_are_one_program():
    """Padding a few thousand rows costs less than compiling another shape."""
    with double():
        layout = build_layout(data_of([10] * 5 + [3000]), ring(6))
    assert [group.shape for group in layout.groups] == [(1, 6, 3072, 2)]


def test_keys_come_from_seed_and_labels_alone():
    data, network = data_of([5, 6, 7, 8, 9]), ring(5)
    with double():
        one = build_layout(data, network, seed=3)
        alone = build_layout(data, network, block_size=1, seed=3)
        other = build_layout(data, network, seed=4)

    def keys(layout):
        bits = [np.asarray(g.node_key).reshape(-1, 2) for g in layout.groups]
        return np.concatenate(bits)[layout.position]

    np.testing.assert_array_equal(keys(one), keys(alone))
    assert not (keys(one) == keys(other)).all(1).any()
    assert len({tuple(key) for key in keys(one).tolist()}) == 5
    # both ends of an edge draw from keys of their own
    slots = [
        np.asarray(g.slot_key).reshape(-1, 2)[np.asarray(g.weight).reshape(-1) > 0]
        for g in one.groups
    ]
    assert len({tuple(key) for key in np.concatenate(slots).tolist()}) == 10
    assert jax.config.jax_enable_x64 is False
