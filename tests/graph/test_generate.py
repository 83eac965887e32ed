"""Generated graphs: their backbones, their edge counts, their seeds."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmixtures.graph import (
    complete,
    erdos_renyi_ring,
    nearest_neighbours,
    ring,
    sparse_random,
    star,
    stochastic_blocks,
)

SEEDS = st.integers(0, 2**32 - 1)


def pairs(network):
    return set(zip(network.source.tolist(), network.target.tolist(), strict=True))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), SEEDS)
def test_erdos_renyi_contains_the_ring_and_is_connected(n, probability, seed):
    network = erdos_renyi_ring(n, probability, seed)
    assert len(network.components()) == 1
    assert pairs(ring(n)) <= pairs(network)
    assert network == erdos_renyi_ring(n, probability, seed)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1), SEEDS)
def test_blocks_contain_their_chains(sizes, p_in, p_out, seed):
    network = stochastic_blocks(sizes, p_in, p_out, seed)
    start = 0
    for size in sizes:
        assert {(i, i + 1) for i in range(start, start + size - 1)} <= pairs(network)
        start += size
    assert network.n_nodes == start
    assert network == stochastic_blocks(sizes, p_in, p_out, seed)


@pytest.mark.parametrize("p_out", [0.0, 1.0])
def test_blocks_are_joined_only_by_p_out(p_out):
    network = stochastic_blocks([5, 5, 5], 0.8, p_out, seed=0)
    across = [a // 5 != b // 5 for a, b in pairs(network)]
    assert sum(across) == (75 if p_out else 0)
    assert len(network.components()) == (1 if p_out else 3)


def test_a_larger_probability_only_adds_edges():
    graphs = [stochastic_blocks([5, 5, 5], 0.8, p, seed=3) for p in (0.0, 0.1, 0.4, 0.8)]
    for smaller, larger in zip(graphs, graphs[1:], strict=False):
        assert pairs(smaller) < pairs(larger)
    assert pairs(erdos_renyi_ring(20, 0.2, 1)) < pairs(erdos_renyi_ring(20, 0.6, 1))


def test_edge_frequencies_are_the_probabilities():
    p_in, p_out, n = 0.6, 0.2, 200
    network = stochastic_blocks([n, n], p_in, p_out, seed=5)
    within = sum(a // n == b // n for a, b in pairs(network))
    # The chains are certain; the other pairs are Bernoulli. Four standard errors.
    free = n * (n - 1) - 2 * (n - 1)
    inside = within - 2 * (n - 1)
    across = network.n_edges - within
    assert abs(inside - p_in * free) < 4 * np.sqrt(free * p_in * (1 - p_in))
    assert abs(across - p_out * n * n) < 4 * np.sqrt(n * n * p_out * (1 - p_out))


def test_seeds_differ_and_labels_are_kept():
    assert erdos_renyi_ring(10, 0.6, 0) != erdos_renyi_ring(10, 0.6, 1)
    assert erdos_renyi_ring(3, 0.6, 0, labels="abc").labels == ("a", "b", "c")
    assert erdos_renyi_ring(3, 0.6, 0).labels == (0, 1, 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 12), st.data())
def test_nearest_neighbours_are_those_of_a_distance_table(n, data):
    k = data.draw(st.integers(1, n - 1))
    points = np.random.default_rng(data.draw(SEEDS)).standard_normal((n, 3))
    network = nearest_neighbours(points, k)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    counted = {(i, j) for i in range(n) for j in np.argsort(distance[i])[:k].tolist()}
    assert pairs(network) == {(min(a, b), max(a, b)) for a, b in counted}
    assert (network.degree >= k).all()
    assert (network.weight == 1).all()


def test_nodes_at_one_point_are_not_their_own_neighbours():
    assert (nearest_neighbours(np.zeros((4, 2)), 2).degree >= 2).all()


def test_plain_graphs():
    assert [ring(n).n_edges for n in (1, 2, 3, 7)] == [0, 1, 3, 7]
    assert ring(7).degree.tolist() == [2] * 7
    assert star(5).degree.tolist() == [4, 1, 1, 1, 1]
    assert star(1).n_edges == 0
    assert complete("abcd").n_edges == 6


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 15), st.data())
def test_sparse_random_has_the_edges_asked_for(n, data):
    degree = data.draw(st.floats(0, n - 1))
    network = sparse_random(n, degree, data.draw(SEEDS))
    assert network.n_edges == round(n * degree / 2)


def test_sparse_random_at_its_fullest_is_complete():
    assert sparse_random(300, 299.0, seed=0) == complete(range(300))


def test_sparse_random_reaches_every_pair_alike():
    n, repeats = 5, 3000
    count = np.zeros((n, n))
    rng = np.random.default_rng(0)
    for _ in range(repeats):
        network = sparse_random(n, 1.6, rng)  # 4 of 10 pairs
        count[network.source, network.target] += 1
    frequency = count[np.triu_indices(n, 1)] / repeats
    assert np.abs(frequency - 0.4).max() < 4.5 * np.sqrt(0.4 * 0.6 / repeats)


def test_a_hundred_thousand_nodes_take_under_two_seconds():
    began = time.process_time()  # of this process: the machine may be shared
    network = sparse_random(100_000, 10.0, seed=0)
    assert time.process_time() - began < 2
    assert network.n_edges == 500_000
    assert network.degree.mean() == 10
    assert network.target.max() == 99_999  # the pair numbering reaches its last column


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: erdos_renyi_ring(0, 0.5, 0), "`n` is 0. Give a whole number of at least 1"),
        (lambda: erdos_renyi_ring(5, 1.5, 0), "`probability` is 1.5. Give a number from 0 to 1"),
        (lambda: erdos_renyi_ring(3, 0.5, 0, "ab"), "`labels` has 2 entries, but the graph has 3"),
        (lambda: stochastic_blocks([2, 0], 0.5, 0.5, 0), "`block_sizes` is 0"),
        (lambda: stochastic_blocks([2], -0.1, 0.5, 0), "`p_in` is -0.1"),
        (lambda: stochastic_blocks([2], 0.1, float("nan"), 0), "`p_out` is nan"),
        (lambda: nearest_neighbours(np.zeros(4), 1), r"`points` has the shape \(4,\)"),
        (lambda: nearest_neighbours(np.full((4, 1), np.nan), 1), "finite. Give one row per node"),
        (lambda: nearest_neighbours(np.eye(4), 4), "`n_neighbours` is 4, but there are 4 nodes"),
        (lambda: sparse_random(4, 3.5, 0), "`average_degree` is 3.5, but each of 4 nodes"),
    ],
)
def test_arguments_out_of_range_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
