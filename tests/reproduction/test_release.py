"""The price of running between sites: the same problem plain and behind a gate."""

from __future__ import annotations

import pytest

from reproduction.config import load
from reproduction.kinds import release
from reproduction.tasks import between_sites

BLOCKS = {
    "data": {"scenario": "shifted_blocks", "n_blocks": 1, "nodes_per_block": 3,
             "n_components": 2, "n_train": 60, "n_validation": 100},
    "graph": {"kind": "erdos_renyi_ring", "probability": 1.0},
    "n_components": 2,
}  # fmt: skip


@pytest.mark.slow  # as tests/federation/test_protocol.py, on a drawn problem
def test_without_gate_and_rounding_nothing_is_lost():
    gates = None, {"rounding": 0.0, "min_count": 0, "per_feature": 0}
    plain, behind = (between_sites.one({**BLOCKS, "gate": gate}, 0) for gate in gates)
    assert len(plain["nodes"]) == 3
    assert behind["ll"] == pytest.approx(plain["ll"], abs=1e-3)


def test_tables_and_drawn_problems_have_every_form(monkeypatch, tmp_path):
    lines = ["node,kind,size,price"]
    lines += [f"{n},{n},{i},{i % 3}" for n in "abc" for i in range(9)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("FEDMIXTURES_TABLES", str(tmp_path))
    experiment = load("release-price")
    places = {place for place, _ in release._cells(experiment)}
    assert places == {"SBM, 50 rows", "SBM, 10 to 500 rows", "table few", "table 70/30"}
    gates = [row.options.get("gate") for row in experiment.rows]
    assert gates[0] is None
    assert all(set(gate) == {"rounding", "min_count", "per_feature"} for gate in gates[1:])
