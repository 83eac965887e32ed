"""Splits of rows over nodes, and hold-outs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmixtures.data import dirichlet_split, holdout, rows_by_node
from fedmixtures.data import scenarios as partition_module

CLASSES = np.random.default_rng(0).integers(0, 10, size=1797)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([0.3, 0.5, 1.0, 100.0]), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_every_row_has_a_node_and_every_node_its_rows(concentration, n_nodes, seed):
    nodes = dirichlet_split(CLASSES, n_nodes, concentration, seed)
    assert nodes.shape == CLASSES.shape
    sizes = np.bincount(nodes, minlength=n_nodes)
    assert len(sizes) == n_nodes
    assert sizes.min() >= 20
    np.testing.assert_array_equal(nodes, dirichlet_split(CLASSES, n_nodes, concentration, seed))


def test_concentration_sets_the_skew():
    def largest_share(concentration):
        nodes = dirichlet_split(CLASSES, 10, concentration, seed=1)
        table = np.zeros((10, 10))
        np.add.at(table, (nodes, CLASSES), 1)
        return (table / table.sum(1, keepdims=True)).max(1).mean()

    assert largest_share(0.5) > 0.3
    assert largest_share(100.0) < 0.2


def test_shares_of_a_class_have_the_dirichlet_moments():
    one_class, n_nodes, concentration = np.zeros(1000, int), 4, 0.5
    shares = np.array(
        [
            np.bincount(dirichlet_split(one_class, n_nodes, concentration, s, 0), minlength=4)
            for s in range(800)
        ]
    )
    shares = shares / 1000
    variance = (1 / 4) * (3 / 4) / (4 * concentration + 1)
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=4 * np.sqrt(variance / 800))
    # A share is Beta(1/2, 3/2), of no excess kurtosis: its sample variance spreads by sqrt(2/n).
    np.testing.assert_allclose(shares.var(0), variance, rtol=5 * np.sqrt(2 / 800))


def test_rows_of_a_class_go_out_in_random_order():
    nodes = dirichlet_split(np.zeros(2000, int), 2, 100.0, seed=0)
    first_half = nodes[:1000].mean()
    assert abs(first_half - nodes.mean()) < 0.1  # in file order it would be near 0 against 0.5


def test_classes_may_be_strings():
    names = np.array(["zero", "one"])[CLASSES % 2]
    assert dirichlet_split(names, 3, 1.0, seed=0).shape == CLASSES.shape


def test_gives_up_with_advice(monkeypatch):
    monkeypatch.setattr(partition_module, "MAX_DRAWS", 50)
    with pytest.raises(ValueError, match="no split gave all 10 nodes at least 19 rows in 50 draws"):
        dirichlet_split(np.zeros(200, int), 10, 0.01, seed=0, min_rows=19)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dirichlet_split(CLASSES, 100, 0.5, 0),
            "1797 rows cannot give 100 nodes",
        ),
        (lambda: dirichlet_split(CLASSES, 0, 0.5, 0), "`n_nodes` is 0"),
        (lambda: dirichlet_split(CLASSES, 5, 0.0, 0), "`concentration` is 0.0. Give a positive"),
        (lambda: dirichlet_split(np.eye(3), 5, 0.5, 0), r"`classes` has the shape \(3, 3\)"),
        (lambda: holdout([0, 1], 1.0, 0), "`fraction` is 1.0. Give a number from 0 to less than 1"),
        (lambda: rows_by_node(np.eye(3)), r"`nodes` has shape \(3, 3\)"),
    ],
)
def test_arguments_out_of_range_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=60),
    st.floats(0, 0.99),
    st.integers(0, 2**32 - 1),
)
def test_holdout_takes_the_fraction_of_every_node(nodes, fraction, seed):
    held_out = holdout(nodes, fraction, seed)
    nodes = np.array(nodes)
    for label in set(nodes):
        size = (nodes == label).sum()
        assert held_out[nodes == label].sum() == min(round(fraction * size), size - 1)
    np.testing.assert_array_equal(held_out, holdout(nodes, fraction, seed))


def test_holdout_is_even_over_rows():
    rng = np.random.default_rng(0)
    share = np.mean([holdout(np.zeros(10, int), 0.4, rng) for _ in range(2000)], axis=0)
    np.testing.assert_allclose(share, 0.4, atol=4 * np.sqrt(0.4 * 0.6 / 2000))


def test_rows_by_node():
    rows = rows_by_node(np.array(["b", "a", "b", "c"], dtype=object))
    assert {label: found.tolist() for label, found in rows.items()} == {
        "a": [1],
        "b": [0, 2],
        "c": [3],
    }
    assert list(rows) == ["a", "b", "c"]
    assert rows_by_node([]) == {}
