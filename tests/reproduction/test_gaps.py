"""The experiment on missing cells: what fits are given, and its three tables."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from reproduction.config import from_toml, load, to_toml
from reproduction.run import run_experiments
from reproduction.tasks import csv_tables, gaps


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table of three nodes, whose price follows from the size."""
    rng = np.random.default_rng(0)
    where = tmp_path / "tables"
    where.mkdir()
    with (where / "shops.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["node", "kind", "size", "price"])
        for i in range(120):
            size = rng.normal() + 4 * (i % 2)
            writer.writerow([f"n{i % 3}", "ab"[i % 2], size, size + 0.1 * rng.normal()])
    monkeypatch.setenv(csv_tables.VARIABLE, str(where))


def test_every_way_sees_the_same_gaps():
    rng = lambda: np.random.default_rng(3)
    X, nodes = rng().normal(size=(200, 3)), np.repeat(["a", "b"], 100)
    made = {way: gaps.treated(X, nodes, 0.4, way, rng()) for way in ("exact", "complete", "mean")}
    exact = made["exact"][0]
    gone = np.isnan(exact)
    assert 0.2 < gone.mean() < 0.4
    assert not gone.all(1).any()
    np.testing.assert_array_equal(made["complete"][0], X[~gone.any(1)])
    np.testing.assert_array_equal(made["complete"][1], nodes[~gone.any(1)])
    filled = made["mean"][0]
    np.testing.assert_array_equal(filled[~gone], X[~gone])
    own = exact[nodes == "b"]
    means = np.broadcast_to(np.nanmean(own, 0), own.shape)
    np.testing.assert_allclose(filled[nodes == "b"], np.where(np.isnan(own), means, own))


def test_from_a_folder_to_three_tables(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(gaps, "cost", lambda settings, seed: {"seconds": 1.0, "megabytes": 300.0})
    whole = load("gaps")
    assert from_toml(to_toml(whole)) == whole
    absent = [{"table": "shops", "column": "price", "nodes": ["n1"]}]
    options = {**whole.options, "absent": absent, "patterns": [200], "ways": ["exact", "mean"]}
    local = replace(whole.row("local"), options={"engine": "jax", "n_init": 2})
    small = replace(whole, n_seeds=1, problems=[], rows=[local], options=options)
    (written,) = run_experiments([small], None, 0, tmp_path)
    table = (written / "table.md").read_text()
    assert "| Local with prior, exact EM |" in table
    assert "| 200 patterns | 1.0 s, 300 MB |" in table
    (line,) = [line for line in table.splitlines() if line.startswith("| price at n1")]
    error, gap = line.split("|")[2].split()
    assert float(error) < 0.5  # of a standard deviation, and far below the pooled mean's
    assert float(gap.strip("()")) < -0.3
