"""Rows grouped by node."""

import subprocess
import sys

import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData, group_labels, label_hash


def test_rows_stand_node_after_node_and_remember_their_place():
    X = np.arange(12.0).reshape(6, 2)
    data = NodeData.from_rows(X, ["b", "a", "b", "c", "a", "b"], [1, 2, 0, 1, 1, 3])
    assert data.labels == ("a", "b", "c")
    assert data.counts.tolist() == [2, 2, 1]  # the row of weight zero is absent
    np.testing.assert_array_equal(X[data.source_index], data.rows)
    rows, weights = data.of(1)
    np.testing.assert_array_equal(rows, X[[0, 5]])
    assert weights.tolist() == [1.0, 3.0]
    assert data.total_weights().tolist() == [3.0, 4.0, 1.0]
    assert data.node_index.tolist() == [0, 0, 1, 1, 2]


def test_without_labels_all_rows_are_of_one_node():
    data = NodeData.from_rows(np.zeros((4, 1)))
    assert (data.labels, data.n_nodes, data.counts.tolist()) == ((0,), 1, [4])


def test_labels_are_plain_python_values():
    labels, index = group_labels(np.array([3, 1, 3]), 3)
    assert labels == (1, 3)
    assert {type(label) for label in labels} == {int}
    assert index.tolist() == [1, 0, 1]


def test_labels_that_do_not_compare_keep_their_order():
    nodes = np.empty(4, dtype=object)
    nodes[:] = ["x", 2, "x", (1, 2)]
    labels, index = group_labels(nodes, 4)
    assert labels == ("x", 2, (1, 2))
    assert index.tolist() == [0, 1, 0, 2]


def test_a_scalar_weight_counts_every_row():
    assert NodeData.from_rows(np.zeros((3, 1)), None, 2.0).row_weights.tolist() == [2.0] * 3


def test_hashes_tell_labels_apart_and_stay_the_same_between_processes():
    labels = ["a", "b", 1, "1", 1.5, ("a", 1), 10**20]
    assert len({label_hash(label) for label in labels}) == len(labels)
    assert label_hash(np.int64(1)) == label_hash(1)
    program = (
        "from fedmixtures.data.node_data import label_hash;"
        "print([label_hash(x) for x in ['a', 'b', 1, '1', 1.5, ('a', 1), 10**20]])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str([label_hash(label) for label in labels])


@pytest.mark.parametrize("weights", [np.inf, np.nan, -1.0])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(ValueError, match="`sample_weight` is .* at row 0. Give finite weights"):
        NodeData.from_rows(np.zeros((3, 1)), None, weights)


def test_a_subset_is_the_grouping_of_the_chosen_rows():
    rng = np.random.default_rng(0)
    X, nodes = rng.normal(size=(30, 2)), rng.choice(["b", "a", "c", "d"], 30)
    keep = (rng.random(30) < 0.6) & (nodes != "c")
    found = NodeData.from_rows(X, nodes, np.arange(1, 31)).subset(keep)
    wanted = NodeData.from_rows(X[keep], nodes[keep], np.arange(1, 31)[keep])
    assert found.labels == wanted.labels == ("a", "b", "d")
    for name in ("rows", "row_weights", "offsets", "source_index"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
