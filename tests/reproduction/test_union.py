"""A union of runs computes what its runs would compute alone."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedmixtures.metrics import node_means
from fedmixtures.mixture.mixture import Mixture
from reproduction.cells import fit_cell
from reproduction.config import load
from reproduction.tasks import fit, measure, situation


def settings(row, **changes):
    experiment = load("table2")
    iso = experiment.problem("iso")
    iso = replace(iso, data={**iso.data, "n_nodes": 4, "n_train": 40, "n_validation": 30})
    chosen = {"alpha": changes.pop("alpha")} if "alpha" in changes else {}
    experiment = replace(experiment, n_rounds=3)
    return fit_cell(experiment, experiment.row(row), iso, chosen, **changes).settings


@pytest.mark.parametrize("row", ["gtv-kl", "fedkmeans"])
def test_seeds_side_by_side_equal_seeds_alone(row):
    own = settings(row)
    together = list(fit.compute([(own, seed) for seed in (0, 1, 2)]))
    alone = list(fit.compute([(own, 2)]))[0]
    for name in ("ll", "err", "nmi"):
        if alone[name] is None:
            assert together[2][name] is None
        else:
            assert together[2][name] == pytest.approx(alone[name], rel=1e-9)
    assert together[0]["err"] != together[1]["err"]


def test_one_diverged_seed_leaves_the_others_alone(monkeypatch):
    """At alpha = 10 the Euclidean step is too long for these degrees: 2 eta alpha degree > 2."""
    own = settings("gtv-eucl", alpha=100.0)
    own["n_rounds"] = 40
    found = list(fit.compute([(own, seed) for seed in (0, 1)]))
    assert [numbers["status"] for numbers in found] == ["diverged", "diverged"]
    assert all(numbers["ll"] is None for numbers in found)

    def second_runs_away(history, pull_share, span):
        return span.start > 0 and span.stop == 8  # the second of two runs of four nodes

    monkeypatch.setattr(fit, "ran_away", second_runs_away)
    kind = settings("gtv-mmd")
    found = list(fit.compute([(kind, seed) for seed in (0, 1)]))
    assert [numbers["status"] for numbers in found] == ["completed", "completed"]


def test_likelihood_is_the_plain_mean_over_nodes():
    own = settings("start")
    scenario = situation.scenario(own, 0)
    theta = situation.start(own, 0)
    numbers = measure.final_numbers(theta, [scenario])[0]
    rows = scenario.nodes_validation
    density = np.concatenate(
        [theta.at(i).log_density(scenario.X_validation[rows == i]) for i in range(4)]
    )
    assert numbers["ll"] == pytest.approx(
        np.mean(list(node_means(density, np.sort(rows)).values())), rel=1e-12
    )


def test_rounds_begin_with_the_start_and_end_with_the_result():
    own = settings("gtv-mmd", record="rounds")
    numbers = list(fit.compute([(own, 0)]))[0]
    start = list(fit.compute([(settings("start"), 0)]))[0]
    end = list(fit.compute([(settings("gtv-mmd"), 0)]))[0]
    assert len(numbers["err"]) == 4
    assert numbers["err"][0] == pytest.approx(start["err"], rel=1e-12)
    assert numbers["err"][-1] == pytest.approx(end["err"], rel=1e-9)


def test_all_methods_of_a_seed_share_data_and_start():
    a, b = settings("gtv-mmd"), settings("local")
    assert situation.scenario(a, 3) is situation.scenario(json.loads(json.dumps(b)), 3)
    assert situation.start(a, 3) is situation.start(b, 3)
    assert isinstance(situation.start(a, 3), Mixture)
