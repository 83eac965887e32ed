"""A slice of `python -m reproduction --quick` from the configuration to the files."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from reproduction import workers
from reproduction.config import NAMES, load
from reproduction.page import command
from reproduction.results import Result
from reproduction.run import run, run_experiments


def small(problem):
    data = {**problem.data, "n_nodes": 4, "n_train": 40, "n_validation": 50}
    return replace(problem, data=data)


@pytest.fixture
def experiments():
    """Table 2 on one data set with two methods, and the grid protocol with two values."""
    table = load("table2")
    rows = [table.row(name) for name in ("gtv-mmd", "local", "fedkmeans", "start")]
    mmd = replace(rows[0], options={}, tune={"alpha": [0.1, 1.0]})
    iso = small(table.problem("iso"))
    slice_ = {"n_rounds": 3, "problems": [iso], "tuning": [iso]}
    grid = replace(load("alpha-grid"), rows=[mmd], **slice_)
    return [replace(table, rows=[mmd, *rows[1:]], **slice_), grid]


def test_from_configuration_to_tables(experiments, tmp_path, monkeypatch):
    folders = run_experiments(experiments, 2, 0, tmp_path)
    assert [folder.name for folder in folders] == ["table2", "alpha-grid"]

    result = json.loads((tmp_path / "table2" / "result.json").read_text())
    entries = {(e["row"], e["metric"]): e for e in result["entries"]}
    assert ("fedkmeans", "ll") not in entries  # no likelihood
    assert ("fedkmeans", "err") in entries
    assert result["seeds"] == [0, 1]
    assert result["chosen"]["gtv-mmd"]["alpha"] in (0.1, 1.0)
    mmd, local = entries["gtv-mmd", "ll"], entries["local", "ll"]
    assert mmd["paper"] == "-3.54 [-3.55, -3.51]"
    paired = np.median(np.array(mmd["values"]) - np.array(local["values"]))
    assert mmd["differences"]["local"][0] == pytest.approx(paired, abs=1e-12)

    grid = json.loads((tmp_path / "alpha-grid" / "result.json").read_text())
    best = max(grid["entries"], key=lambda entry: entry["median"])
    assert best["row"] == f"gtv-mmd alpha = {result['chosen']['gtv-mmd']['alpha']:g}"

    lines = list(csv.DictReader((tmp_path / "table2" / "cells.csv").read_text().splitlines()))
    assert len(lines) == len(result["entries"])
    assert "| GTV-MMD | -3.54 [-3.55, -3.51] |" in (tmp_path / "table2" / "table.md").read_text()
    assert (tmp_path / "alpha-grid" / "figure.svg").read_text().startswith("<?xml")

    def fail(work):
        raise AssertionError("computed again")

    monkeypatch.setattr(workers, "compute", fail)
    run_experiments(experiments, 2, 0, tmp_path)  # everything is known
    again = json.loads((tmp_path / "table2" / "result.json").read_text())
    assert again["entries"] == result["entries"]
    with pytest.raises(AssertionError, match="computed again"):
        run_experiments(experiments, 3, 0, tmp_path)


def test_bad_arguments_are_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="`name` is 'table9'"):
        run("table9", output=tmp_path)
    with pytest.raises(ValueError, match="`seeds` is 0"):
        run("table2", seeds=0, output=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_first_look_leaves_out_the_longest_and_says_so():
    digits = load("fig-digits")
    look = digits.quickened()
    assert [p.name for p in look.problems] == ["Dir=1"]
    assert all(row in digits.rows for row in look.rows)
    assert len(look.rows) == len(digits.rows) - 3
    costs = load("table1")
    assert max(costs.quickened().options["d"]) < max(costs.options["d"])
    for name in NAMES:
        experiment = load(name)
        for left_out in experiment.quick.get("problems", []):
            assert experiment.problem(left_out)  # a misspelt name leaves nothing out
        for left_out in experiment.quick.get("rows", []):
            assert experiment.row(left_out)
    three, twenty = tuple(range(3)), tuple(range(20))
    assert command(Result(look, three)) == "python -m reproduction fig-digits --quick"
    assert command(Result(digits, three)) == "python -m reproduction fig-digits --seeds 3"
    assert command(Result(digits, twenty)) == "python -m reproduction fig-digits"
    whole = load("trust-digits")  # a first look at it leaves nothing out
    assert command(Result(whole, three)) == "python -m reproduction trust-digits --quick"
    assert command(Result(whole, twenty)) == "python -m reproduction trust-digits"
