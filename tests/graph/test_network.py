"""The network type: canonical form, queries, alignment, and what it refuses."""

import pickle

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmixtures.graph import Network, from_edges


def triangle_and_tail() -> Network:
    """a-b-c triangle, c-d tail, e isolated."""
    return from_edges(
        [("a", "b", 1.0), ("b", "c", 2.0), ("c", "a", 4.0), ("d", "c", 8.0)], labels="abcde"
    )


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 8))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return n, chosen, [draw(st.floats(0.01, 100)) for _ in chosen]


def network_of(graph) -> Network:
    # Not inside the strategy: the type checks of the tests draw on `random`, which hypothesis bans.
    n, chosen, weight = graph
    ends = np.array(chosen, dtype=int).reshape(-1, 2)
    return Network(tuple(f"h{i}" for i in range(n)), ends[:, 0], ends[:, 1], np.array(weight))


@settings(max_examples=50, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_order_and_direction_of_edges_do_not_matter(graph, random):
    network = network_of(graph)
    order = list(range(network.n_edges))
    random.shuffle(order)
    turned = np.array([random.random() < 0.5 for _ in order], dtype=bool)
    source, target = network.source[order], network.target[order]
    again = Network(
        network.labels,
        np.where(turned, target, source),
        np.where(turned, source, target),
        network.weight[order],
    )
    assert again == network
    assert hash(again) == hash(network)
    assert (again.source < again.target).all()
    assert sorted(zip(again.source, again.target, strict=True)) == list(
        zip(again.source, again.target, strict=True)
    )


@settings(max_examples=50, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_alignment_keeps_every_edge_by_label(graph, random):
    network = network_of(graph)
    order = list(network.labels)
    random.shuffle(order)
    moved = network.aligned(order)
    assert moved.labels == tuple(order)
    assert moved.aligned(network.labels) == network

    def by_label(net):
        ends = zip(net.source, net.target, net.weight, strict=True)
        return {(frozenset((net.labels[a], net.labels[b])), w) for a, b, w in ends}

    assert by_label(moved) == by_label(network)


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_queries_agree_with_the_adjacency_matrix(graph):
    network = network_of(graph)
    dense = network.adjacency().toarray()
    assert np.array_equal(dense, dense.T)
    assert np.array_equal(network.degree, (dense > 0).sum(1))
    np.testing.assert_allclose(network.weighted_degree, dense.sum(1), rtol=1e-12)
    for i, label in enumerate(network.labels):
        assert network.position(label) == i
        wanted = tuple(network.labels[j] for j in np.flatnonzero(dense[i]))
        assert network.neighbours(label) == wanted


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_components_agree_with_networkx(graph):
    network = network_of(graph)
    found = network.components()
    assert sorted(label for part in found for label in part) == sorted(network.labels)
    expected = {frozenset(part) for part in nx.connected_components(network.to_networkx())}
    assert {frozenset(part) for part in found} == expected


def test_components_come_in_the_order_of_labels():
    assert triangle_and_tail().components() == [("a", "b", "c", "d"), ("e",)]


def test_small_queries_by_hand():
    network = triangle_and_tail()
    assert (network.n_nodes, network.n_edges) == (5, 4)
    assert network.degree.tolist() == [2, 2, 3, 1, 0]
    assert network.weighted_degree.tolist() == [5, 3, 14, 8, 0]
    assert network.neighbours("c") == ("a", "b", "d")
    assert network.neighbours("e") == ()
    assert repr(network) == "Network(n_nodes=5, n_edges=4)"


def test_networks_differ_by_label_edge_and_weight():
    network = triangle_and_tail()
    other_weight = Network(network.labels, network.source, network.target, 2 * network.weight)
    fewer = Network(network.labels, network.source[1:], network.target[1:], network.weight[1:])
    renamed = Network(tuple("vwxyz"), network.source, network.target, network.weight)
    for other in (other_weight, fewer, renamed, "a network"):
        assert network != other


def test_arrays_are_read_only_and_the_callers_stay_writable():
    weight = np.ones(1)
    network = Network(("a", "b"), np.array([0]), np.array([1]), weight)
    with pytest.raises(ValueError, match="read-only"):
        network.weight[0] = 3.0
    weight[0] = 3.0
    assert network.weight[0] == 1.0


def test_survives_pickling():
    network = triangle_and_tail()
    assert pickle.loads(pickle.dumps(network)) == network


def test_numpy_labels_become_plain_ones():
    network = Network(tuple(np.array(["a", "b"])), np.array([0]), np.array([1]), np.ones(1))
    assert [type(label) for label in network.labels] == [str, str]
    assert network.position(np.str_("b")) == 1


def build(labels, source, target, weight):
    return Network(tuple(labels), np.array(source), np.array(target), np.array(weight, float))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ab", [0], [0], [1]), r"edge \('a', 'a'\) is a self-loop. Remove it"),
        (("abc", [0, 1], [1, 0], [1, 1]), r"edge \('a', 'b'\) is given more than once"),
        (("abc", [1, 1], [2, 2], [1, 2]), r"edge \('b', 'c'\) is given more than once"),
        (("abc", [2], [1], [0]), r"edge \('c', 'b'\) has weight 0.0. Weights must be positive"),
        (("abc", [2], [1], [-1]), r"edge \('c', 'b'\) has weight -1.0"),
        (("abc", [0], [1], [np.nan]), r"edge \('a', 'b'\) has weight nan"),
        (("abc", [0], [1], [np.inf]), r"edge \('a', 'b'\) has weight inf"),
        (("abc", [0], [3], [1]), r"`target` holds position 3, but there are 3 nodes. .* 0 to 2"),
        (("abc", [-1], [1], [1]), r"`source` holds position -1, but there are 3 nodes"),
        (("abca", [0], [1], [1]), r"`labels` names 'a' more than once"),
        (("abc", [0], [1, 2], [1]), r"have the shapes \(1,\), \(2,\) and \(1,\)"),
        (("abc", [0.0], [1], [1]), r"`source` holds float64 values. Give integer positions"),
    ],
)
def test_refuses_what_is_no_graph(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(*arguments)


def test_refuses_unhashable_labels():
    with pytest.raises(ValueError, match="`labels` must be hashable .* Use strings or integers"):
        triangle_and_tail().aligned(iter([["a"], ["b"]]))


def test_unknown_label_is_named():
    with pytest.raises(ValueError, match="`label` is 'x', which is not a node .* 'a', 'b', 'c'"):
        triangle_and_tail().position("x")


@pytest.mark.parametrize(
    ("with_data", "message"),
    [
        (
            ["a", "b", "c", "d", "e", "h13", "h14"],
            "'h13' and 'h14' hold data but are not in `graph`. "
            "Add them (isolated nodes are fine) or drop their rows.",
        ),
        (
            ["a", "b", "c", "d", "e", "h13"],
            "'h13' holds data but is not in `graph`. "
            "Add it (isolated nodes are fine) or drop its rows.",
        ),
        (
            np.array(["a", "c", "d"]),
            "'b' and 'e' are in `graph` but hold no data. "
            "Remove them from the graph or give them rows.",
        ),
        (
            ["a", "b", "c", "d"],
            "'e' is in `graph` but holds no data. Remove it from the graph or give it rows.",
        ),
        (
            ["a", "b", "c", "d", "e", 1, 2, 3, 4, 5, 6, 7],
            "1, 2, 3, 4, 5 and 2 more hold data but are not in `graph`. "
            "Add them (isolated nodes are fine) or drop their rows.",
        ),
    ],
)
def test_alignment_says_which_side_lacks_a_node(with_data, message):
    with pytest.raises(ValueError, match="data") as error:
        triangle_and_tail().aligned(with_data)
    assert str(error.value) == message
