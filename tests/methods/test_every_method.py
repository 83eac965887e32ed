"""What holds for every registered method in the estimator's `method` slot."""

import numpy as np
import pytest

from fedmixtures import (
    DFMR,
    IFCA,
    CColME,
    Centralized,
    ConsensusEM,
    FedEM,
    FedeRiCo,
    FedGEM,
    FedGenGMM,
    FedGrEM,
    FedKMeans,
    GraphFedEM,
    KMeansStart,
    Local,
    NetworkGaussianMixture,
    ShapePrior,
    load,
)
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.options import in_rounds, used
from fedmixtures.engine.solve import solve
from fedmixtures.estimators.resolve import METHODS, resolve_method
from fedmixtures.graph.generate import ring
from fedmixtures.graph.network import complete
from fedmixtures.methods.base import OneShot
from fedmixtures.methods.programs import HubProgram, NodeProgram
from fedmixtures.methods.protocol import Protocol
from fedmixtures.methods.registry import name_of as name_of_method
from helpers import QUICK_TRUST

QUICK = {
    "local": Local(n_init=2),
    "centralized": Centralized(n_init=2, engine="jax"),
    "fedgrem": FedGrEM(n_orders=5),
    "fedgengmm": FedGenGMM(n_init=2, engine="jax", samples_per_component=20),
    "ifca": IFCA(n_groups=2),
    "c-colme": CColME(n_init=2),
    "dfmr": DFMR(n_init=2),
    "graphfed-em": GraphFedEM(n_init=2, n_rounds=5),
    "federico": FedeRiCo(n_init=2, n_rounds=3),
    "trust": QUICK_TRUST,
}
"""Settings with which a fit takes a second, or without which there is no method."""
FORMS = [
    Local(n_init=2, engine="jax"),
    FedKMeans(server=True),
    ConsensusEM(align=True),
    FedGEM(radius="half"),
    FedeRiCo(n_init=2, n_rounds=3, choice="node"),
]
"""Settings under which a method goes another way."""
EVERY = [QUICK.get(name) or METHODS[name]() for name in sorted(METHODS)] + FORMS
ONE_OF_EACH = [
    FedKMeans(),
    FedKMeans(server=True),
    FedGrEM(n_orders=5),
    ConsensusEM(align=True),
    FedEM(),
    IFCA(n_groups=2),
]
IN_ROUNDS = [method for method in EVERY if in_rounds(method)]


def name_of(method) -> str:
    changed = [f"{f}={v}" for f, v in vars(method).items() if v != getattr(type(method)(), f)]
    return f"{type(method).__name__}({', '.join(changed)})"


def fit(case, method, k=3, **options):
    settings = used(resolve_method(method), n_rounds=4) | {"random_state": 7} | options
    settings = {"graph": case.network} | settings
    return NetworkGaussianMixture(k, method=method, **settings).fit(case.X, nodes=case.nodes)


def assert_same(a, b, tolerance=0.0):
    assert list(a.mixtures_) == list(b.mixtures_) or set(a.mixtures_) == set(b.mixtures_)
    for label, mixture in a.mixtures_.items():
        for ours, theirs in zip(mixture.parts, b.mixtures_[label].parts, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_every_registered_method_is_walked():
    assert {"trust", "gtv-mmd", "local", "fedem", "c-colme"} < set(METHODS)
    names = {name_of_method(method) for method in EVERY}
    assert names == set(METHODS)


@pytest.mark.parametrize("method", EVERY, ids=name_of)
def test_the_same_seed_gives_the_same_numbers_and_a_fit_that_can_be_stored(method, alike, tmp_path):
    model, again = fit(alike, method), fit(alike, method)
    assert model.status_ == "completed"
    np.testing.assert_allclose(model.weights_.sum(1), 1.0, atol=1e-9)
    assert (min(model.traffic_.sent.values()) > 0) != isinstance(method, Local)
    assert_same(model, again)
    assert np.isfinite(model.score(alike.X, nodes=alike.nodes))
    loaded = load(model.save(tmp_path / "m.safetensors"))
    assert_same(model, loaded)
    assert loaded.method == method
    assert loaded.traffic_ == model.traffic_


@pytest.mark.parametrize("method", EVERY, ids=name_of)
def test_the_order_of_nodes_changes_nothing(method, alike):
    # Labels that cannot be sorted keep the order they come in, so the order really differs.
    names = np.array([0, "b", (2,), "d", 4, "f"], dtype=object)
    edges = [(names[i], names[(i + 1) % 6]) for i in range(6)]

    def run(order):
        rows = np.concatenate([np.flatnonzero(alike.nodes == i) for i in order])
        few = used(method, n_rounds=4)
        model = NetworkGaussianMixture(3, graph=edges, method=method, random_state=7, **few)
        return model.fit(alike.X[rows], nodes=names[alike.nodes[rows]])

    forth, back = run(range(6)), run([3, 1, 5, 0, 4, 2])
    assert [*forth.mixtures_] != [*back.mixtures_]
    assert_same(forth, back, 1e-8)


@pytest.mark.parametrize("method", [Local(n_init=2, engine="jax"), *ONE_OF_EACH], ids=name_of)
def test_weight_two_is_the_row_twice_and_sizes_may_differ(method, uneven):
    weight = 1 + (np.isin(uneven.nodes, [0, 2, 4]) & (np.arange(len(uneven.X)) % 3 == 0))
    start = {i: _start(uneven) for i in range(5)}
    settings = {"graph": uneven.network, "method": method, "random_state": 0}
    settings |= used(method, n_rounds=3)
    model = NetworkGaussianMixture(3, init=start, **settings)
    weighted = model.fit(uneven.X, nodes=uneven.nodes, sample_weight=weight)
    twice = NetworkGaussianMixture(3, init=start, **settings)
    twice.fit(np.repeat(uneven.X, weight, axis=0), nodes=np.repeat(uneven.nodes, weight))
    assert_same(weighted, twice, 1e-8)


def _start(case):
    from fedmixtures import Mixture

    return Mixture(np.full(3, 1 / 3), case.truth[0] + 0.4, np.tile(np.eye(2), (3, 1, 1)))


@pytest.mark.parametrize("method", IN_ROUNDS, ids=name_of)
def test_the_round_budget_is_kept(method, alike):
    model = fit(alike, method, n_rounds=3)
    assert len(model.history_) == 4
    sent = model.traffic_
    assert sent.n_rounds == 3
    to = 2 if sent.recipients == "neighbours" else 1  # everybody has two neighbours on a ring
    assert [sent.per_round(label) for label in range(6)] == [to * sent.message_bytes] * 6
    assert sent.sent[0] == sent.setup[0] + 3 * sent.per_round(0)


def test_without_rounds_the_start_is_the_result(alike):
    for method in (FedEM(), ConsensusEM()):
        model = fit(alike, method, n_rounds=0)
        assert len(model.history_) == 1
        assert model.traffic_.sent == model.traffic_.setup
    start = KMeansStart().mixtures(alike.data, [3] * 6, 7, 1e-6)
    np.testing.assert_allclose(model.means_, start.means)


@pytest.mark.parametrize("method", ONE_OF_EACH, ids=name_of)
def test_a_block_of_one_gives_what_the_batch_gives(method, alike):
    theta = KMeansStart().mixtures(alike.data, [3] * 6, 0, 1e-6)
    batched, alone = (
        solve(method, alike.data, alike.network, theta, n_rounds=4, block_size=size)
        for size in (None, 1)
    )
    for a, b in zip(batched.theta.parts, alone.theta.parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
    assert batched.traffic == alone.traffic


@pytest.mark.parametrize("method", [ConsensusEM(), IFCA(n_groups=2)], ids=name_of)
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(method, alike, tmp_path):
    path = tmp_path / "checkpoint"
    whole = fit(alike, method, n_rounds=6, report_every=2)
    fit(alike, method, n_rounds=4, checkpoint=path, report_every=2)
    model = NetworkGaussianMixture(
        3, graph=alike.network, method=method, n_rounds=6, random_state=7, report_every=2
    )
    assert_same(whole, model.fit(alike.X, nodes=alike.nodes, resume=path))
    np.testing.assert_array_equal(whole.history_.fit, model.history_.fit)


@pytest.mark.parametrize(
    "method", [FedKMeans(), FedGrEM(n_orders=5), ConsensusEM(align=True), FedEM()], ids=name_of
)
def test_single_precision_agrees_with_double(method, alike):
    double, single = fit(alike, method), fit(alike, method, dtype="float32")
    assert_same(double, single, 5e-3)
    assert 2 * single.traffic_.message_bytes == pytest.approx(double.traffic_.message_bytes, abs=12)


@pytest.mark.parametrize("method", EVERY, ids=name_of)
def test_what_a_method_says_about_itself(method):
    hard = isinstance(method, FedKMeans)
    assert method.has_likelihood is not hard
    assert method.moves_rows is isinstance(method, Centralized)
    assert isinstance(method.program(), (NodeProgram, HubProgram, OneShot, Protocol))


@pytest.mark.parametrize(
    "method",
    [FedKMeans(), FedGrEM(), ConsensusEM(), FedEM(), IFCA(n_groups=2), Centralized()],
    ids=name_of,
)
def test_unequal_numbers_of_components_are_refused(method, alike):
    k = dict.fromkeys(range(6), 3) | {2: 4}
    with pytest.raises(ValueError, match=rf"differs.*from 3 to 4.*{type(method).__name__}"):
        fit(alike, method, k=k)


@pytest.mark.parametrize(
    "method",
    [
        Local(engine="jax", prior=ShapePrior()),
        FedGenGMM(engine="jax", prior=ShapePrior()),
        FedGrEM(prior=ShapePrior()),
        ConsensusEM(prior=ShapePrior()),
        FedEM(prior=ShapePrior()),
        IFCA(n_groups=2, prior=ShapePrior()),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_prior_makes_shapes_more_alike(method, alike):
    from dataclasses import replace

    def spread(model):
        spectrum = np.linalg.eigvalsh(model.covariances_)
        return np.log(spectrum).std()

    with_prior, without = fit(alike, method), fit(alike, replace(method, prior=None))
    assert spread(with_prior) < spread(without)


def test_nested_parameters_reach_every_method(alike):
    model = NetworkGaussianMixture(3, graph=alike.network, method="ifca", n_rounds=1)
    model.set_params(method__n_groups=2, method__restarts=1)
    assert model.method == IFCA(n_groups=2, restarts=1)
    assert model.fit(alike.X, nodes=alike.nodes).status_ == "completed"
    model = NetworkGaussianMixture(3, method="fedgrem").set_params(method__eta=0.3)
    assert model.get_params()["method__eta"] == 0.3
    with pytest.raises(ValueError, match="Invalid parameter 'alpha'"):
        model.set_params(method__alpha=1.0)


def test_one_shot_methods_need_to_know_the_number_of_components(alike):
    data = NodeData.from_rows(alike.X, alike.nodes)
    with pytest.raises(ValueError, match="`n_components` is missing"):
        solve("local", data, ring(6))


def test_hub_methods_do_not_look_at_the_graph(alike):
    for method in (FedEM(), FedGrEM(n_orders=5), IFCA(n_groups=2), FedKMeans(server=True)):
        assert_same(fit(alike, method), fit(alike, method, graph=complete(range(6))))
        assert fit(alike, method).traffic_.recipients == "hub"
