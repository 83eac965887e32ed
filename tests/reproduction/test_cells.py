import json
from dataclasses import replace

import pytest

from reproduction import cells, workers
from reproduction.cells import cell, fit_cell
from reproduction.config import load
from reproduction.journal import Journal


@pytest.fixture
def experiment():
    return load("table2")


def key(experiment, row="gtv-kl", problem="iso", seed=0, **changes):
    return fit_cell(experiment, experiment.row(row), experiment.problem(problem), **changes).key(
        seed
    )


def test_the_key_changes_with_everything_that_numbers_depend_on(experiment, monkeypatch):
    gtv, start = experiment.gtv, experiment.start
    keys = {
        key(experiment),
        key(experiment, seed=1),
        key(experiment, row="gtv-mmd"),
        key(experiment, problem="var"),
        key(experiment, chosen={"alpha": 0.2}),
        key(experiment, record="rounds"),
        key(replace(experiment, n_rounds=41)),
        key(replace(experiment, gtv=replace(gtv, learning_rate=0.03))),
        key(replace(experiment, start=replace(start, n_init=3))),
    }
    monkeypatch.setattr(cells, "code_version", lambda: "another")
    keys.add(key(experiment))
    assert len(keys) == 10


def test_the_key_does_not_change_with_how_things_are_called(experiment):
    renamed = replace(experiment, title="another", name="other", metrics=["ll"])
    assert key(renamed) == key(experiment)


def test_a_sweep_over_graphs_is_one_cell_for_methods_without_graph():
    sweep = load("fig-sbm")
    keys = lambda row: {key(sweep, row, problem.name) for problem in sweep.problems}
    assert len(keys("local")) == len(keys("centralized")) == len(keys("start")) == 1
    assert len(keys("gtv-kl")) == len(sweep.problems)


def test_table_and_figure_share_the_cells_they_have_in_common():
    table, sweep = load("table3"), load("fig-sbm")
    chosen = {"alpha": 1.0}
    assert key(table, "gtv-kl", "sbm", chosen=chosen) == key(
        sweep, "gtv-kl", "p_out=0.2", chosen=chosen
    )


def test_the_code_version_reads_the_code(tmp_path, monkeypatch):
    for name in ("mixture", "report", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1")
    monkeypatch.setattr(cells, "files", lambda name: tmp_path)
    version = cells.code_version.__wrapped__
    before = version()
    assert version() == before
    (tmp_path / "report" / "a.py").write_text("x = 2")
    assert version() == before  # what only shows numbers
    (tmp_path / "mixture" / "a.py").write_text("x = 2")
    assert version() != before


def test_finished_cells_are_not_computed_again(tmp_path, monkeypatch):
    calls = []

    def compute(work):
        calls.append([seed for _, seed in work])
        return [{"ll": float(seed), "status": "completed"} for _, seed in work], 0.0

    monkeypatch.setattr(workers, "compute", compute)
    own = cell("fit", method="local", data={}, graph={})
    path = tmp_path / "cells.jsonl"
    workers.complete([(own, range(2))], Journal(path), jobs=0)
    workers.complete([(own, range(3))], Journal(path), jobs=0)  # another process, say
    assert calls == [[0, 1], [2]]
    assert [Journal(path).read(own, seed)["ll"] for seed in range(3)] == [0.0, 1.0, 2.0]


def test_another_code_version_does_not_use_old_cells(tmp_path, monkeypatch):
    own, journal = cell("fit", method="local"), Journal(tmp_path / "cells.jsonl")
    journal.write(own, 0, {"ll": 1.0})
    assert journal.missing(own, range(2)) == [1]
    monkeypatch.setattr(cells, "code_version", lambda: "another")
    assert Journal(journal.path).missing(own, range(2)) == [0, 1]


def test_half_a_line_at_the_end_is_forgotten(tmp_path):
    own, path = cell("fit", method="local"), tmp_path / "cells.jsonl"
    Journal(path).write(own, 0, {"ll": 1.0})
    with path.open("a") as file:
        file.write('{"key": "abc", "num')
    journal = Journal(path)
    journal.write(own, 1, {"ll": 2.0})
    assert Journal(path).missing(own, range(3)) == [2]
    assert json.loads(path.read_text().splitlines()[0])["numbers"] == {"ll": 1.0}
