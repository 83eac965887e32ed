"""Means per node."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmixtures.metrics import node_means

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(-100, 10)), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_agrees_with_a_loop(rows):
    groups = {}
    for label, value in rows:
        groups.setdefault(label, []).append(value)
    expected = {label: sum(values) / len(values) for label, values in groups.items()}
    nodes, log_density = [label for label, _ in rows], [value for _, value in rows]
    assert node_means(log_density, nodes) == pytest.approx(expected, abs=1e-9)


def test_labels_are_sorted():
    log_density, nodes = np.array([-1.0] * 99 + [-3.0]), np.array([7] * 99 + [3])
    assert node_means(log_density, nodes) == {3: -3.0, 7: -1.0}


def test_an_impossible_row_is_minus_infinity_and_no_warning():
    assert node_means([-np.inf, -1.0, -1.0], ["a", "a", "b"]) == {"a": -np.inf, "b": -1.0}


def test_mismatched_rows_are_named():
    with pytest.raises(ValueError, match=r"`nodes` has the shape \(2,\) but `log_density` has \(3"):
        node_means(np.zeros(3), np.zeros(2))
