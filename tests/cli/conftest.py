"""The command line called in this process, and small files to call it on."""

import csv

import numpy as np
import pytest

from fedmixtures.data.scenarios import shifted_blocks


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Run a command in an empty folder; returns exit code and what was printed."""
    from fedmixtures.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(command: str) -> tuple[int, str, str]:
        code = main(command.split())
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture(scope="session")
def rows():
    s = shifted_blocks(2, 3, n_components=2, n_train=30, n_validation=1, seed=5)
    names = np.array(["h0", "h1", "h2", "h3", "h4", "h5"])
    return s.X, names[s.nodes]


EDGES = [("h0", "h1"), ("h1", "h2"), ("h3", "h4"), ("h4", "h5"), ("h2", "h3")]


@pytest.fixture(scope="session")
def write_csv():
    def write(path, header, lines):
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(lines)

    return write


@pytest.fixture
def files(tmp_path, rows, write_csv):
    """data.csv and edges.csv, as a user has them."""
    X, nodes = rows
    table = [[f"{a:.6f}", node, f"{b:.6f}"] for (a, b), node in zip(X, nodes, strict=True)]
    write_csv(tmp_path / "data.csv", ["age", "site", "dose"], table)
    write_csv(tmp_path / "edges.csv", ["source", "target"], EDGES)
    return tmp_path


@pytest.fixture
def change(files):
    """Rewrite one cell of data.csv."""

    def rewrite(line: int, column: int, value: str) -> None:
        lines = [row.split(",") for row in (files / "data.csv").read_text().splitlines()]
        lines[line][column] = value
        (files / "data.csv").write_text("\n".join(",".join(row) for row in lines) + "\n")

    return rewrite
