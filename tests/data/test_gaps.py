"""Rows with missing cells: laid out by pattern, and filled for starts."""

from dataclasses import replace

import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData, by_pattern, filled, padded
from fedmixtures.mixture.density import IncompleteRows


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X[rng.random(X.shape) < 0.3] = np.nan
    return NodeData.from_rows(X, rng.choice(list("abc"), 300), rng.integers(1, 4, 300))


def test_rows_of_a_stretch_lack_the_same_and_none_is_lost(data):
    found = by_pattern(data)
    assert found.segment > 1
    real = found.source_index >= 0
    assert (found.row_weights[~real] == 0).all()
    order = np.argsort(found.source_index[real])
    where = np.argsort(data.source_index)
    np.testing.assert_array_equal(found.rows[real][order], data.rows[where])
    np.testing.assert_array_equal(found.row_weights[real][order], data.row_weights[where])
    np.testing.assert_array_equal(found.node_index[real][order], data.node_index[where])
    gone = np.isnan(found.rows).reshape(-1, found.segment, 3)
    assert (gone == gone[:, :1]).all()
    # Eight patterns at each of three nodes: that many segments more than full ones, at most.
    assert len(found.rows) <= 300 + 24 * (found.segment - 1)
    assert by_pattern(found) is found


def test_padded_rows_keep_their_stretches(data):
    found = by_pattern(data)
    rows, counts = padded(found, 256)
    assert isinstance(rows, IncompleteRows)
    assert rows.observed.shape == (3, 256 // found.segment, 3)
    seen = np.repeat(rows.observed, found.segment, axis=1)
    for i in range(3):
        own, weights = found.of(i)
        np.testing.assert_array_equal(np.where(seen[i], rows.x[i], np.nan)[: len(own)], own)
        np.testing.assert_array_equal(counts[i, : len(own)], weights)
        assert (counts[i, len(own) :] == 0).all()


def test_nothing_changes_where_nothing_is_missing(data):
    whole = replace(data, rows=np.nan_to_num(data.rows))
    assert by_pattern(whole) is whole
    assert filled(whole) is whole
    assert isinstance(padded(whole, 128)[0], np.ndarray)


def test_a_cell_is_filled_from_the_nearest_row_that_has_it():
    X = np.array([[0.0, 1.0], [10.0, 2.0], [9.0, np.nan], [0.5, np.nan]])
    found = filled(NodeData.from_rows(X))
    np.testing.assert_array_equal(found.rows[:, 1], [1.0, 2.0, 2.0, 1.0])


def test_a_column_that_a_node_lacks_is_filled_from_the_others():
    X = np.array([[0.0, 1.0], [10.0, 2.0], [9.0, np.nan], [0.5, np.nan]])
    found = filled(NodeData.from_rows(X, ["a", "a", "b", "b"]))
    np.testing.assert_array_equal(found.rows[:, 1], [1.0, 2.0, 2.0, 1.0])
