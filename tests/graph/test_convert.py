"""Every way of handing in a graph gives the same network, and mistakes are named."""

import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmixtures.graph import as_network, from_edges, from_networkx, from_sparse

LABELS = ("h1", "h2", "h3", "h4")
EDGES = [("h1", "h2", 2.0), ("h2", "h3", 1.0)]
MATRIX = np.array([[0, 2, 0, 0], [2, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])


def networkx_graph():
    graph = nx.Graph()
    graph.add_nodes_from(reversed(LABELS))  # another order than the data's, on purpose
    graph.add_edge("h2", "h1", weight=2.0)
    graph.add_edge("h3", "h2")
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        EDGES,
        iter(EDGES),
        [("h3", "h2"), ["h2", "h1", 2]],
        [(np.str_("h2"), "h1", np.float32(2)), ("h3", "h2")],
        networkx_graph(),
        nx.freeze(networkx_graph()),
        MATRIX,
        MATRIX.astype(float),
        sp.csr_array(MATRIX),
        sp.coo_matrix(MATRIX),
        from_edges(EDGES, LABELS[::-1]),
    ],
    ids=lambda graph: type(graph).__name__,
)
def test_all_forms_give_one_network(graph):
    assert as_network(graph, LABELS) == from_edges(EDGES, LABELS)


def test_full_and_none():
    full, empty = as_network("full", LABELS), as_network(None, LABELS)
    assert full.n_edges == 6
    assert full.degree.tolist() == [3, 3, 3, 3]
    assert empty.labels == LABELS
    assert empty.n_edges == 0


def test_matrix_rows_follow_the_order_of_labels():
    network = as_network(MATRIX, ("z", "y", "x", "w"))
    assert network.neighbours("y") == ("z", "x")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**32 - 1), st.sampled_from(["dense", "csr", "networkx"]))
def test_round_trips(n, seed, form):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.5), 1)
    matrix = upper + upper.T
    network = from_sparse(matrix)
    again = {
        "dense": lambda: from_sparse(network.adjacency().toarray()),
        "csr": lambda: from_sparse(network.adjacency()),
        "networkx": lambda: from_networkx(network.to_networkx()),
    }[form]()
    assert again == network
    np.testing.assert_array_equal(network.adjacency().toarray(), matrix)


def test_labels_of_an_edge_list_come_in_order_of_appearance():
    assert from_edges([("c", "a"), ("a", "b")]).labels == ("c", "a", "b")


def test_stored_zeros_and_repeated_entries_of_a_sparse_matrix():
    zeros = sp.csr_array((np.array([0.0, 0.0]), ([0, 1], [1, 0])), shape=(2, 2))
    assert from_sparse(zeros).n_edges == 0
    parts = sp.coo_array((np.array([1.0, 2.0, 3.0]), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert from_sparse(parts).weight.tolist() == [3.0]


def test_rounding_between_the_halves_is_forgiven():
    matrix = np.array([[0, 1.0], [1.0 + 1e-15, 0]])
    assert from_sparse(matrix).weight == pytest.approx([1.0], rel=1e-14)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("knn", r'"none", for no edges; "knn" needs the data: nearest_neighbours\('),
        ("ring", r"`graph` is 'ring'. Names known here are \"full\" and \"none\""),
        (7, r"`graph` is a int. Give a networkx Graph"),
        (nx.DiGraph(), r"`graph` is directed \(DiGraph\), but edges here are undirected"),
        (nx.MultiGraph(), r"`graph` is a multigraph \(MultiGraph\)"),
        (nx.Graph([("h1", "h2")]), r"'h3' and 'h4' hold data but are not in `graph`"),
        (nx.complete_graph([*LABELS, "h5"]), r"'h5' is in `graph` but holds no data"),
        (np.zeros((3, 3)), r"matrix of shape \(3, 3\), but there are 4 nodes"),
        (np.zeros((4, 2)), r"matrix of shape \(4, 2\), .* edge list goes in as a list of tuples"),
        (np.eye(4), r"edge \('h1', 'h1'\) is a self-loop"),
        (np.triu(MATRIX), r"not symmetric: 2.0 from 'h1' to 'h2', but 0.0 back"),
        (-MATRIX, r"edge \('h1', 'h2'\) has weight -2.0"),
        (np.where(MATRIX == 1, np.nan, MATRIX), r"edge \('h2', 'h3'\) has weight nan"),
        (np.where(MATRIX == 1, np.inf, MATRIX), r"edge \('h2', 'h3'\) has weight inf"),
        ([("h1", "h9")], r"edge \('h1', 'h9'\) names 'h9', not among the 4 nodes"),
        ([("h1", "h2"), ("h2", "h1")], r"edge \('h1', 'h2'\) is given more than once"),
        ([("h1", "h1")], r"edge \('h1', 'h1'\) is a self-loop"),
        ([("h1", "h2", "heavy")], r"holds the edge \('h1', 'h2', 'heavy'\). Give each edge as"),
        ([("h1",)], r"holds the edge \('h1',\)"),
        (["h1", "h2"], r"holds the edge 'h1'. Give each edge as \(a, b\)"),
        ([("h1", ["h2"])], r"holds the edge \('h1', \['h2'\]\)"),
        ([("h1", "h2", 0)], r"edge \('h1', 'h2'\) has weight 0.0"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else type(value).__name__,
)
def test_mistakes_are_named(graph, message):
    with pytest.raises(ValueError, match=message):
        as_network(graph, LABELS)


def test_a_table_is_not_read_as_edges():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="`graph` is a DataFrame. Give a networkx Graph"):
        as_network(pandas.DataFrame({"a": [1], "b": [2]}), LABELS)


def test_networkx_is_loaded_only_by_those_who_use_it():
    program = (
        "import sys, fedmixtures.graph as g; g.ring(3); g.as_network('full', 'abc');"
        "print('networkx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
