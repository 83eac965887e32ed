"""Clusters against known populations: how agreement is counted, and the experiment as a whole."""

from dataclasses import replace

import numpy as np
import pytest

from reproduction.config import load
from reproduction.kinds import clusters as kind
from reproduction.run import run_experiments
from reproduction.tasks import csv_tables, populations
from reproduction.tasks.clusters import METHODS_OF, agreement, f_measure
from reproduction.tasks.csv_tables import Split


def _rows(labels, nodes):
    nothing = np.zeros((len(labels), 1))
    return Split(nothing, np.asarray(nodes), nothing, np.asarray(nodes), np.asarray(labels))


def test_names_that_differ_between_nodes_count_across_alone():
    rows = _rows([0, 0, 1, 1, 0, 0, 1, 1], ["a"] * 4 + ["b"] * 4)
    same, swapped = np.array([0, 0, 1, 1] * 2), np.array([0, 0, 1, 1, 1, 1, 0, 0])
    assert agreement(same, rows)["across"] == agreement(swapped, rows)["within"] == 1
    assert agreement(swapped, rows)["across"] < 0
    assert agreement(same, rows)["n_clusters"] == 2


def test_f_measure_by_hand():
    # of four rows of population 0 the best cluster has three and nothing else: F = 6 / 7
    found = f_measure(np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 1, 1]))
    assert found == pytest.approx((4 * 6 / 7 + 2 * 4 / 5) / 6)


@pytest.mark.parametrize("name", populations.DRAWN)
def test_training_rows_of_a_few_are_no_test_rows(name):
    data = {**populations.DRAWN[name], "drawn": name, "regime": "few"}
    rows, other = populations.rows(data, 0), populations.rows(data, 1)
    assert np.unique(rows.nodes, return_counts=True)[1].max() <= data["few"]
    assert len(np.unique(rows.labels_test)) == data["n_clusters"]
    assert not np.array_equal(rows.X_test[:50], other.X_test[:50])
    assert not {tuple(x) for x in rows.X} & {tuple(x) for x in rows.X_test}


def test_hindsight_is_the_best_of_several_numbers(tmp_path, monkeypatch):
    monkeypatch.delenv(csv_tables.VARIABLE, raising=False)
    whole = load("clusters")
    names = ("kmeans", "kmeans-best")
    rows = [row for row in whole.rows if row.name in names]
    options = {"regimes": ["few"], "only": ["blobs"]}
    own = replace(whole, rows=rows, options=options, references=["kmeans"])
    (folder,) = run_experiments([own], 2, 0, tmp_path)
    assert "best k in hindsight" in (folder / "table.md").read_text("utf-8")
    (place,) = kind.places(own)
    (told, best) = [line for line in (folder / "cells.csv").read_text().splitlines() if
                    f"{place},kmeans" in line and ",across," in line]  # fmt: skip
    values = lambda line: np.array([float(v) for v in line.split(",")[-2:]])
    assert (values(best) >= values(told)).all()


@pytest.mark.parametrize("name", ["gmm", "kmeans"])
def test_scikit_learn_chooses_a_number_where_none_is_told(name):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0], [9, 0], [0, 9]])
    truth = rng.integers(0, 3, 300)
    X = centres[truth] + rng.standard_normal((300, 2))
    rows = Split(X[:200], truth[:200], X[200:], truth[200:], truth[200:])
    found = METHODS_OF["pooled"](rows, None, {"kind": name}, 0)
    assert f_measure(truth[200:], found) > 0.95
    assert len(np.unique(found)) == 3
