"""Categorical columns against three ways to do without: what fits are given, what is compared."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from reproduction import mixed
from reproduction.mixed import Mixed


def test_a_table_is_the_same_rows_in_every_way():
    numbers, codes = np.array([[0.5], [1.5]]), np.array([[2.0, np.nan], [0.0, 1.0]])
    make = lambda way: mixed.as_table(way, numbers, codes, [3, 2])
    np.testing.assert_array_equal(make("categories"), [[0.5, 2, np.nan], [1.5, 0, 1]])
    np.testing.assert_array_equal(make("codes"), make("categories"))
    np.testing.assert_array_equal(make("one-hot"), [[0.5, 0, 1, np.nan], [1.5, 0, 0, 1]])
    np.testing.assert_array_equal(make("without"), numbers)


def test_shares_at_the_node_are_what_categories_are_compared_with():
    train = Mixed(np.zeros((4, 1)), np.array([[0.0], [0], [1], [np.nan]]), np.array([*"aaab"]), [])
    test = Mixed(np.zeros((3, 1)), np.array([[0.0], [np.nan], [1]]), np.array([*"aab"]), [])
    found = mixed._frequencies(train, test, [2])
    np.testing.assert_allclose(found, np.log([3 / 5, 1, 1 / 2]))


def test_k_prototypes_finds_clusters_that_codes_tell_apart():
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=240)
    numbers = 6.0 * (label == 2)[:, None] + rng.normal(size=(240, 2))
    codes = np.where(rng.random((240, 4)) < 0.1, rng.integers(2, size=(240, 4)), label[:, None] % 2)
    codes = codes.astype(float)
    codes[::11, 1], numbers[::13, 0] = np.nan, np.nan
    rows = Mixed(numbers, codes, np.repeat("a", 240), label)
    found = mixed.k_prototypes(rows.at(np.arange(120)), rows.at(np.arange(120, 240)), 3, 0)
    assert adjusted_rand_score(label[120:], found) > 0.8


def test_a_density_of_categories_is_a_probability(monkeypatch):
    """One cluster: the log-probability of a category is its share, whatever the other cells."""
    rng = np.random.default_rng(1)
    nodes = np.repeat(["a", "b"], 100)
    rows = Mixed(rng.normal(size=(200, 1)), rng.integers(2, size=(200, 1)) * 1.0, nodes, nodes)
    monkeypatch.setattr(mixed, "K", 1)
    found = mixed.outcome("categories", rows, rows, [2], 0)
    assert found["cells"] == pytest.approx(np.log(0.5), abs=0.02)
    assert found["measurements"] == pytest.approx(-0.5 * np.log(2 * np.pi * np.e), abs=0.1)
