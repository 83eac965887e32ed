"""The one deployed run of `make test`: a hub and three sites as processes, one killed and back."""

from __future__ import annotations

import numpy as np
import pytest

from deployed import a_fit, federation, fitted
from federated import engine_solution, site_rows
from fedmixtures import load
from fedmixtures.federation.node.kept import folder_of

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.deployed,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
NAMES = ("aachen", "bergen", "cork")


def test_three_sites_one_killed_and_back(tmp_path, home):
    rows = {name: site_rows((96, 96, 96, 96))[name] for name in NAMES}
    edges = (("aachen", "bergen", 1.0), ("bergen", "cork", 0.5))
    job = a_fit("mmd", 60, n_components=dict.fromkeys(NAMES, 3), edges=edges)
    killed = []

    def kill():
        killed.append([process.pid for process in machine.parties["bergen"].working()])
        machine.parties["bergen"].crash()

    with federation(tmp_path / "fed", rows) as machine:
        machine.driver.listener.when(5, kill, n_sites=3)
        # Long deadlines: only a dead site is lost, not one that shares a busy machine.
        record, models = fitted(machine, job, patience=240, start_timeout=240.0)
    assert killed
    assert killed[0]
    outcomes = [segment["outcome"] for segment in record.segments]
    assert outcomes[-1] == "completed"
    assert "lost" in outcomes
    assert record.segments[-1]["first_round"] >= 5
    assert record.absent == []
    told = record.segments[-1]["progress"]  # as `federate watch` shows it
    for name in NAMES:  # jobs and models, as they were when the last segment began
        left = told[name]["left"]
        assert left[0] == 999
        assert 10**6 - 62 <= left[1] < 10**6
    assert {how["at"] for how in told.values()} == {"models"}
    alone = engine_solution(job, rows, block_size=1)
    for config in machine.configs():  # each site has its model, also one that was killed
        np.testing.assert_allclose(
            load(folder_of(config, job)).means_[0], alone.mixture(config.name).means, rtol=1e-9
        )
    # Bits are compared in `make federation`: here sites may use other instructions than the test.
    for name in NAMES:
        expected = alone.mixture(name)
        for one, other in zip(models[name].trimmed().parts, expected.parts, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
