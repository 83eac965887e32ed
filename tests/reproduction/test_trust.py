"""The trust experiments: what nodes are given, how liars lie, what is claimed."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import Centralized, NetworkGaussianMixture
from fedmixtures.metrics import median_interval
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import plain_statistics
from reproduction.config import BEYOND, from_toml, load, to_toml
from reproduction.kinds.claims import compared_cell, judged
from reproduction.results import Entry, Result
from reproduction.run import cells_of, run_experiments
from reproduction.tasks import compared, network_cost
from reproduction.tasks.ablations import PARTS
from reproduction.tasks.lies import LIES, Lying, shifted
from reproduction.tasks.situation import LIAR_ROWS, situation

BLOCKS = {
    "scenario": "shifted_blocks",
    "n_blocks": 2,
    "nodes_per_block": 3,
    "n_components": 2,
    "n_train": 50,
    "n_validation": 60,
}
GRAPH = {"kind": "stochastic_blocks", "block_sizes": [3, 3], "p_in": 1.0, "p_out": 0.5}


def settings(method="trust", graph=GRAPH, without_liars=False, options=None, **data):
    return {
        "data": {**BLOCKS, **data},
        "graph": graph,
        "n_components": 2,
        "start": {"n_init": 2, "reg_covar": 1e-3},
        "method": method,
        "options": options or {},
        "gtv": {},
        "n_rounds": 20,
        "without_liars": without_liars,
    }


@pytest.mark.parametrize(
    "name", [name for name in BEYOND if name not in ("real", "gaps", "release-price")]
)
def test_configurations_survive_a_round_trip_and_name_their_cells(name):
    experiment = load(name)
    assert experiment.name == name
    assert from_toml(to_toml(experiment)) == experiment
    assert len(cells_of(experiment)) > 0
    known = {row.name for row in experiment.rows}
    for claim in experiment.options.get("claims", []):
        assert {claim["row"], *claim["against"]} <= known
        assert all(experiment.problem(problem) for problem in claim["problems"])


def test_nodes_may_be_unequal():
    uneven = situation(settings(rows_between=[10, 500], components_between=[3, 7]), 1)
    rows = np.bincount(uneven.scenario.nodes)
    assert rows.min() >= 10
    assert rows.max() <= 500
    assert rows.std() > 0
    assert set(uneven.n_components) <= set(range(3, 8))
    assert len(set(uneven.n_components)) > 1
    other = situation(settings(rows_between=[10, 500]), 2)
    assert not np.array_equal(rows, np.bincount(other.scenario.nodes))


def test_without_liars_the_rest_is_as_it_was():
    whole = situation(settings(liars={"kind": "shifted", "count": 2}), 0)
    rest = whole.without_liars()
    kept = np.flatnonzero(whole.honest)
    assert len(kept) == 4
    assert (np.bincount(whole.scenario.nodes)[~whole.honest] == LIAR_ROWS).all()
    for number, node in enumerate(kept):
        np.testing.assert_array_equal(
            rest.scenario.X[rest.scenario.nodes == number],
            whole.scenario.X[whole.scenario.nodes == node],
        )
    np.testing.assert_array_equal(rest.blocks, whole.blocks[kept])
    edges = lambda one, names: {
        frozenset((names[a], names[b]))
        for a, b in zip(one.network.source.tolist(), one.network.target.tolist(), strict=True)
    }
    inside = {edge for edge in edges(whole, range(6)) if edge <= set(kept.tolist())}
    assert edges(rest, kept.tolist()) == inside


def test_the_oracle_pools_the_honest_rows_of_each_block():
    own = settings("block", graph={}, liars={"kind": "shifted", "count": 1}, options={"n_init": 3})
    one = situation(own, 0)
    (theta,) = compared.grouped_fits("block", own["options"], [one])
    for block in range(2):
        members = np.flatnonzero((one.blocks == block) & one.honest)
        chosen = np.isin(one.scenario.nodes, members)
        model = NetworkGaussianMixture(2, method=Centralized(n_init=3), random_state=0)
        model.fit(one.scenario.X[chosen], nodes=one.scenario.nodes[chosen])
        for node in members:
            np.testing.assert_allclose(
                np.sort(theta.at(int(node)).means, axis=0),
                np.sort(model.mixtures_[int(node)].means, axis=0),
                atol=1e-6,
            )


def test_shifted_statistics_are_those_of_shifted_rows():
    rng = np.random.default_rng(0)
    rows, by = rng.standard_normal((2, 30, 2)), rng.standard_normal(2)
    with double():
        parts = np.ones((2, 1)), np.zeros((2, 1, 2)), np.broadcast_to(np.eye(2), (2, 1, 2, 2))
        theta = Mixture(*map(jnp.asarray, parts))
        weigh = lambda x: jax.tree.map(
            np.asarray, plain_statistics(theta, jnp.asarray(x), jnp.ones((2, 30)))
        )
        found, expected = shifted(weigh(rows), by), weigh(rows + by)
    np.testing.assert_allclose(found.first, expected.first, atol=1e-10)
    np.testing.assert_allclose(found.second, expected.second, atol=1e-9)


def test_every_part_can_be_taken_out_among_liars_too():
    for name, options in PARTS.items():
        method = compared.build(
            settings(liars={"kind": "late", "count": 1}, options={"without": name})
        )
        assert isinstance(method, Lying)
        assert method.lie == "late"
        assert all(getattr(method, option) == value for option, value in options.items())
    assert not hasattr(compared.build(settings()), "lie")


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_honest_nodes_end_with_finite_mixtures_near_those_without_liars(lie):
    liars = {"kind": lie, "count": 1}
    (among,) = compared.compute([(settings(liars=liars), 0)])
    (without,) = compared.compute([(settings(liars=liars, without_liars=True), 0)])
    assert among["status"] == without["status"] == "completed"
    assert len(among["nodes"]) == len(without["nodes"]) == 5
    assert among["ll"] > without["ll"] - 0.1
    assert among["slack"] >= -1e-9


@pytest.mark.slow
def test_liars_lie_in_a_batch_with_others_as_they_do_alone():
    lies = [{"liars": {"kind": kind, "count": 1}} for kind in ("late", "nan")]
    runs = [(settings(**data), 0) for data in ({}, *lies)]
    alone = [next(compared.compute([run])) for run in runs]
    for together, own in zip(compared.compute(runs), alone, strict=True):
        np.testing.assert_allclose(together["nodes"], own["nodes"], atol=2e-5)
    assert alone[1]["nodes"] != alone[2]["nodes"]


def result_of(values, metric="ll"):
    experiment = replace(load("trust-sbm"), references=[])
    entries = [
        Entry("p_out=0", row, metric, tuple(v), median_interval(v), None, "")
        for row, v in values.items()
    ]
    return Result(experiment, (0, 1, 2), entries)


def test_a_claim_is_judged_seed_by_seed_against_the_best():
    values = {"trust": [1.0, 2.0, 3.0], "oracle": [0.9, 2.0, 3.1], "centralized": [0, 0, 0]}
    claim = {"point": 1, "row": "trust", "against": ["centralized", "oracle"]}
    found = judged(result_of(values), {**claim, "median_at_least": 0.0}, "p_out=0")
    assert found["against"] == "oracle"
    assert found["difference"][0] == 0.0
    assert found["worst"] == pytest.approx(-0.1)
    assert found["holds"]
    assert not judged(result_of(values), {**claim, "worst_at_least": -0.05}, "p_out=0")["holds"]
    error = {**claim, "metric": "err", "median_at_most": 0.05}
    found = judged(result_of(values, "err"), error, "p_out=0")
    assert found["against"] == "centralized"  # the smallest error is the best
    assert found["worst"] == 3.0
    assert not found["holds"]


def test_a_diverged_rival_is_never_the_best():
    values = {"trust": [1.0, 2.0, 3.0], "oracle": [None] * 3, "centralized": [0, 0, 0]}
    entries = result_of({k: v for k, v in values.items() if k != "oracle"}).entries
    lost = Entry("p_out=0", "oracle", "ll", (None,) * 3, median_interval([-np.inf] * 3), None, "")
    claim = {"point": 1, "row": "trust", "against": ["oracle", "centralized"]}
    result = replace(result_of({}), entries=[*entries, lost])
    assert judged(result, claim, "p_out=0")["against"] == "centralized"


@pytest.mark.slow
def test_from_configuration_to_tables(tmp_path):
    experiment = load("trust-sbm")
    problem = replace(
        experiment.problem("p_out=0.2"), data=BLOCKS, graph=GRAPH, n_components=2, at=None
    )
    rows = [experiment.row(name) for name in ("trust", "oracle", "local-prior")]
    claims = [c for c in experiment.options["claims"] if c["against"] == ["oracle"]]
    claims = [{**c, "problems": ["p_out=0.2"]} for c in claims]
    small = replace(
        experiment, problems=[problem], rows=rows, n_rounds=18, options={"claims": claims}
    )
    (folder,) = run_experiments([small], 2, 0, tmp_path)
    result = json.loads((folder / "result.json").read_text())
    entries = {(e["row"], e["metric"]): e for e in result["entries"]}
    trusting, oracle = entries["trust", "ll"], entries["oracle", "ll"]
    claim = result["extra"]["claims"][0]
    gaps = np.array(trusting["values"]) - np.array(oracle["values"])
    assert claim["difference"][0] == pytest.approx(np.median(gaps))
    assert claim["worst"] == pytest.approx(gaps.min())
    assert "| 1 | p_out = 0.2 | LL | block-pooled oracle |" in (folder / "table.md").read_text()


def test_methods_without_a_graph_share_their_cells_along_a_sweep():
    experiment = load("trust-sbm")
    sweep = [problem for problem in experiment.problems if problem.at is not None]
    cells = lambda name: {compared_cell(experiment, experiment.row(name), p) for p in sweep}
    assert len(cells("oracle")) == len(cells("local-prior")) == 1
    assert len(cells("trust")) == len(sweep) == 5


def test_cost_counts_bytes_and_compiles_in_the_first_of_two_solves():
    base = {"n_rows": 20, "k": 2, "d": 2, "n_blocks": 1, "n_rounds": 2, "n_nodes": 6, "degree": 2}
    (found,) = network_cost.compute([({**base, "method": "gtv-mmd"}, 0)])
    assert found["bytes"] == 8 * 2 * (1 + 2 + 4)
    assert 0 < found["seconds"] < found["first"]
