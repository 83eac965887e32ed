"""The estimator: what it says about rows against scikit-learn, weights, starts, results."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

import reference
from fedmixtures import (
    KL,
    MMD,
    Euclidean,
    FeasibleSet,
    FitWarning,
    GTVMin,
    KMeansStart,
    Local,
    Mixture,
    NetworkGaussianMixture,
    from_sklearn,
    to_sklearn,
)
from helpers import assert_close, mixture

# against scikit-learn ----------------------------------------------------------------------------


def test_every_node_is_a_fitted_sklearn_mixture(case, fitted):
    X, nodes = case.X, case.nodes
    proba, labels = fitted.predict_proba(X, nodes), fitted.predict(X, nodes)
    density = fitted.score_samples(X, nodes)
    bic = aic = 0.0
    for label in "abc":
        mine, model = nodes == label, fitted.node(label)
        assert isinstance(model, GaussianMixture)
        np.testing.assert_allclose(density[mine], model.score_samples(X[mine]), rtol=1e-9)
        np.testing.assert_allclose(proba[mine], model.predict_proba(X[mine]), atol=1e-9)
        np.testing.assert_array_equal(labels[mine], model.predict(X[mine]))
        bic, aic = bic + model.bic(X[mine]), aic + model.aic(X[mine])
    assert fitted.bic(X, nodes) == pytest.approx(bic)
    assert fitted.aic(X, nodes) == pytest.approx(aic)
    assert fitted.score(X, nodes=nodes) == pytest.approx(density.mean())
    weights = np.arange(len(X))
    assert fitted.score(X, nodes=nodes, sample_weight=weights) == pytest.approx(
        np.average(density, weights=weights)
    )


def test_rows_of_some_nodes_in_any_order(case, fitted):
    picked = np.random.default_rng(0).permutation(np.flatnonzero(case.nodes != "b"))
    np.testing.assert_allclose(
        fitted.score_samples(case.X[picked], case.nodes[picked]),
        fitted.score_samples(case.X, case.nodes)[picked],
        rtol=1e-12,
    )


def test_without_labels_it_is_an_ordinary_mixture(case):
    model = NetworkGaussianMixture(2, n_rounds=200, random_state=0, method="gtv-mmd").fit(case.X)
    assert model.weights_.shape == (2,)
    assert model.means_.shape == (2, 2)
    by_em = GaussianMixture(2, random_state=0, n_init=3, tol=1e-6).fit(case.X)
    # both climb the same likelihood to the same top
    assert model.score(case.X) == pytest.approx(by_em.score(case.X), abs=1e-3)
    assert list(model.mixtures_) == [0]


def test_conversion_to_and_from_sklearn(case):
    p = mixture(3, 3, 2)
    assert_close(from_sklearn(to_sklearn(p)), p, 1e-12)
    for kind in ("full", "tied", "diag", "spherical"):
        model = GaussianMixture(2, covariance_type=kind, random_state=0).fit(case.X)
        converted = from_sklearn(model)
        np.testing.assert_allclose(
            converted.log_density(case.X), model.score_samples(case.X), rtol=1e-9
        )
    with pytest.raises(ValueError, match="`model` is not fitted. Call its `fit` first"):
        from_sklearn(GaussianMixture(2))


def test_samples_come_from_the_nodes_mixtures(fitted):
    x, c = fitted.sample(3000)
    assert x.shape == (9000, 2)
    again, _ = fitted.sample(3000)
    np.testing.assert_array_equal(x, again)
    only, only_c = fitted.sample(3000, nodes="b")
    np.testing.assert_array_equal(only, x[3000:6000])  # by label, not by position
    np.testing.assert_array_equal(only_c, c[3000:6000])
    p = fitted.mixtures_["b"]
    error = np.sqrt(p.weights[0] * p.weights[1] / 3000)
    assert abs((only_c == 0).mean() - p.weights[0]) < 4 * error
    for j in range(2):
        rows = only[only_c == j]
        error = np.sqrt(np.diagonal(p.covariances[j]) / len(rows))
        assert (np.abs(rows.mean(0) - p.means[j]) < 4 * error).all()


# results -----------------------------------------------------------------------------------------


def test_what_a_fit_leaves_behind(case, make):
    seen = []
    model = make(
        keep_node_history=True,
        on_round=seen.append,
        method=GTVMin(MMD(), n_local_steps=1, learning_rate=0.005),
    ).fit(case.X, nodes=case.nodes)
    assert model.nodes_.tolist() == ["a", "b", "c"]
    assert model.means_.shape == (3, 2, 2)
    assert (model.status_, model.n_iter_, model.converged_) == ("completed", 3, False)
    history = model.history_
    assert len(history) == 4
    np.testing.assert_allclose(history.objective, history.fit + history.pull)
    np.testing.assert_allclose(history.node_fit.sum(1), history.fit)
    # both ends of an edge report it, the objective counts it once
    np.testing.assert_allclose(history.node_pull.sum(1) / 2, history.pull)
    assert [record["round"] for record in seen] == [0, 1, 2, 3]
    assert seen[-1]["objective"] == history.objective[-1]
    assert model.certificate_.holds
    # a message is weights, means and covariances of two components in two features
    size = 2 * (1 + 2 + 4) * 8
    assert model.traffic_.sent == {"a": 3 * size, "b": 6 * size, "c": 3 * size}
    assert set(model.mixtures_) == {"a", "b", "c"}
    for i, label in enumerate("abc"):
        np.testing.assert_array_equal(model.mixtures_[label].means, model.means_[i])


def test_recorded_objective_is_that_of_the_returned_mixtures(case, fitted):
    thetas = [fitted.mixtures_[label].parts for label in "abc"]
    rows = [case.X[case.nodes == label] for label in "abc"]
    around = [{1: 1.0}, {0: 1.0, 2: 0.5}, {1: 0.5}]
    once = reference.objective(thetas, rows, around, 0.5, reference.mmd)
    assert fitted.history_.objective[-1] == pytest.approx(once, rel=1e-10)


def test_a_second_fit_starts_anew(case, make):
    model = make()
    first = model.fit(case.X, nodes=case.nodes).means_
    model.fit(case.X + 1, nodes=case.nodes)
    np.testing.assert_array_equal(model.fit(case.X, nodes=case.nodes).means_, first)


def test_random_states(case, make):
    fit = lambda seed: make(method=GTVMin(KL(5)), random_state=seed).fit(case.X, nodes=case.nodes)
    np.testing.assert_array_equal(fit(1).means_, fit(1).means_)
    assert np.abs(fit(1).means_ - fit(2).means_).max() > 1e-6
    np.testing.assert_array_equal(
        fit(np.random.RandomState(3)).means_, fit(np.random.RandomState(3)).means_
    )


def test_float32(case, make, fitted):
    single = make(dtype="float32").fit(case.X, nodes=case.nodes)
    np.testing.assert_allclose(single.means_, fitted.means_, atol=1e-4)
    assert single.means_.dtype == np.float64  # results are float64 either way
    after = make().fit(case.X, nodes=case.nodes)
    np.testing.assert_array_equal(after.means_, fitted.means_)


@pytest.mark.parametrize("method", ["gtv-mmd", "gtv-kl", "gtv-euclidean"])
def test_methods_by_name(case, make, method):
    model = make(method=method).fit(case.X, nodes=case.nodes)
    assert model.status_ == "completed"
    assert model.history_.fit[-1] < model.history_.fit[0] + 0.5
    if method != "gtv-kl":  # whose points change from round to round
        assert model.history_.objective[-1] < model.history_.objective[0]


def test_converged_is_standing_still(case, make):
    """Relative change of every node's parameters in the last round, worked out from two fits."""
    model = make(method="fedem", n_rounds=300, tol=1e-3).fit(case.X, nodes=case.nodes)
    assert model.converged_
    assert 0 < model.n_iter_ < 300
    assert len(model.history_) == model.n_iter_ + 1
    before = make(method="fedem", n_rounds=model.n_iter_ - 1, tol=0).fit(case.X, nodes=case.nodes)
    for label in "abc":
        old, new = (
            np.concatenate([np.ravel(part) for part in m.mixtures_[label].parts])
            for m in (before, model)
        )
        assert np.linalg.norm(new - old) <= 1e-3 * np.linalg.norm(new)
    few = make(method="fedem", n_rounds=2, tol=1e-3).fit(case.X, nodes=case.nodes)
    assert (few.status_, few.converged_) == ("completed", False)
    everything = make(method="fedem", n_rounds=40, tol=0).fit(case.X, nodes=case.nodes)
    assert everything.n_iter_ == 40


def test_one_shot_fits_have_converged_where_em_settled(case, make):
    assert make(method="local").fit(case.X, nodes=case.nodes).converged_
    with pytest.warns(FitWarning, match="EM had not settled"):
        hasty = make(method=Local(max_iter=1, tol=0.0)).fit(case.X, nodes=case.nodes)
    assert not hasty.converged_


def test_ctrl_c_is_raised_unless_the_last_round_is_to_be_kept(case, make):
    def stop(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(on_round=stop, report_every=1).fit(case.X, nodes=case.nodes)
    model = make(on_round=stop, report_every=1, keep_interrupted=True)
    with pytest.warns(FitWarning, match="interrupted; returning round 2 of 3"):
        model.fit(case.X, nodes=case.nodes)
    assert (model.status_, model.converged_) == ("interrupted", False)


# weights and order -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gtv-mmd", GTVMin(KL(n_samples=5))], ids=["mmd", "kl"])
def test_weight_two_is_twice_and_zero_is_absent(case, make, method):
    """Through everything: k-means start, bounds from the rows, likelihood."""
    weights = np.array([0, 1, 2, 1])[np.arange(len(case.X)) % 4]
    times = weights.astype(int)
    weighted = make(method=method).fit(case.X, nodes=case.nodes, sample_weight=weights)
    repeated = make(method=method).fit(
        np.repeat(case.X, times, axis=0), nodes=np.repeat(case.nodes, times)
    )
    np.testing.assert_allclose(weighted.means_, repeated.means_, atol=1e-10)
    np.testing.assert_allclose(weighted.covariances_, repeated.covariances_, atol=1e-10)
    np.testing.assert_allclose(weighted.history_.objective, repeated.history_.objective, rtol=1e-10)
    np.testing.assert_array_equal(weighted.labels_, repeated.predict(case.X, case.nodes))


def test_order_of_rows_does_not_matter(case, make, fitted):
    order = np.random.default_rng(1).permutation(len(case.X))
    model = make().fit(case.X[order], nodes=case.nodes[order])
    np.testing.assert_allclose(model.means_, fitted.means_, atol=1e-10)


def test_names_of_nodes_may_be_anything_hashable(case, make, fitted):
    names = {"a": 7, "b": ("ward", 2), "c": "c"}
    nodes = [names[label] for label in case.nodes]
    graph = [(names[a], names[b], *w) for a, b, *w in case.graph]
    model = make(graph=graph).fit(case.X, nodes=nodes)
    assert set(model.mixtures_) == {7, ("ward", 2), "c"}
    np.testing.assert_allclose(model.mixtures_["c"].means, fitted.mixtures_["c"].means, atol=1e-9)
    assert model.node(("ward", 2)).means_.shape == (2, 2)
    np.testing.assert_allclose(
        model.score_samples(case.X, nodes), fitted.score_samples(case.X, case.nodes), rtol=1e-8
    )


# starts ------------------------------------------------------------------------------------------


def test_start_from_given_mixtures(case, make):
    start = {label: mixture(i, 2, 2) for i, label in enumerate("abc")}
    model = make(init=start, n_rounds=0, method=GTVMin(feasible=FeasibleSet())).fit(
        case.X, nodes=case.nodes
    )
    for label in "abc":
        found = model.mixtures_[label]
        order = [int(np.argmin(abs(found.weights - weight))) for weight in start[label].weights]
        assert_close(found.relabel(order), start[label], 1e-12)  # numbered as at the others


def test_columns_of_very_different_scales_keep_their_start(case, make):
    """The default bounds move nothing, and say nothing."""
    scale = np.array([1e-3, 1e4])
    wide = make(n_rounds=0).fit(case.X * scale, nodes=case.nodes)
    reg_covar = FeasibleSet.around(case.X * scale, 2).min_variance
    for label in "abc":
        rows = case.X[case.nodes == label] * scale
        labels = wide.predict(rows, nodes=np.full(len(rows), label))
        mine = wide.mixtures_[label]
        for j in range(2):
            expected = np.cov(rows[labels == j].T, bias=True) + reg_covar * np.eye(2)
            # k-means on such columns sees the second alone; its clusters are still the start
            relative = np.abs(mine.covariances[j] - expected) / np.sqrt(
                np.outer(np.diag(expected), np.diag(expected))
            )
            assert relative.max() < 0.5
        assert mine.covariances[:, 0, 0].max() < 1e-4  # the small column was not flattened


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"max_variance": 0.1}, "max_variance=0.1 at node 'a', 'b' and 'c'"),
        ({"max_mean_norm": 1.0}, "max_mean_norm=1 at node 'a', 'b' and 'c'"),
        ({"min_weight": 0.5}, "min_weight=0.5 at node"),
        ({"min_variance": 5.0}, None),
    ],
)
def test_a_start_outside_given_bounds_is_moved_with_a_warning(case, make, bounds, text):
    model = make(n_rounds=0, method=GTVMin(feasible=FeasibleSet(**bounds)))
    if text is None:  # the ridge of the start is the smallest variance: nothing to move
        model.fit(case.X, nodes=case.nodes)
        return
    with pytest.warns(FitWarning, match="the start lies outside the feasible set.*" + text):
        model.fit(case.X, nodes=case.nodes)


def test_the_warning_names_the_node_that_was_moved(case, make):
    start = {label: mixture(i, 2, 2) for i, label in enumerate("abc")}
    start["b"] = Mixture([0.5, 0.5], [[0.0, 0.0], [1.0, 1.0]], [np.eye(2) * 1e-5, np.eye(2)])
    with pytest.warns(FitWarning, match=r"min_variance=0.01 at node 'b'\. Widen"):
        make(init=start, method=GTVMin(feasible=FeasibleSet()), n_rounds=0).fit(
            case.X, nodes=case.nodes
        )


# unequal components ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gtv-mmd", "gtv-kl"])
def test_unequal_numbers_of_components(case, method):
    counts = {"a": 1, "b": 3, "c": 2}
    model = NetworkGaussianMixture(
        counts, graph=case.graph, method=method, n_rounds=3, random_state=0
    ).fit(case.X, nodes=case.nodes)
    assert {label: m.n_components for label, m in model.mixtures_.items()} == counts
    assert model.node("a").means_.shape == (1, 2)
    proba = model.predict_proba(case.X, case.nodes)
    assert proba.shape == (120, 3)
    assert not proba[case.nodes == "a", 1:].any()
    np.testing.assert_allclose(proba.sum(1), 1)
    assert set(model.predict(case.X[case.nodes == "c"], case.nodes[case.nodes == "c"])) <= {0, 1}
    d = 2
    free = {label: k * (1 + d + 3) - 1 for label, k in counts.items()}
    log_density = model.score_samples(case.X, case.nodes).sum()
    assert model.aic(case.X, case.nodes) == pytest.approx(-2 * log_density + 2 * sum(free.values()))


SMALL_STEPS = GTVMin(Euclidean(), learning_rate=1e-4)  # two rows make spikes
METHODS_OF_ROUNDS = ["gtv-mmd", SMALL_STEPS, "fedem", "fedkmeans", "consensus-em", "fedgrem"]


@pytest.mark.filterwarnings("ignore:the objective rose")  # components without a width
@pytest.mark.parametrize(
    "method", [*METHODS_OF_ROUNDS, "local", "centralized", "fedgengmm", "trust"]
)
def test_a_node_with_few_distinct_rows_gets_few_components(case, make, method):
    """Three copies of two rows: no method refuses the others for that."""
    few = np.repeat([[0.0, 0.0], [1.0, 2.0]], 3, axis=0)
    X, nodes = np.concatenate([case.X, few]), np.append(case.nodes, ["d"] * 6)
    graph = [*case.graph, ("c", "d")]
    model = make(graph=graph, method=method).set_params(n_components=3)
    with pytest.warns(FitWarning, match="node 'd' has fewer distinct rows than n_components"):
        model.fit(X, nodes=nodes)
    level = "own" if model.levels_ is not None else None
    assert model.node("a", level).n_components == 3
    assert np.isfinite(model.score_samples(X, nodes)).all()
    if method in ("gtv-mmd", "local"):
        assert model.mixtures_["d"].n_components == 2


@pytest.mark.filterwarnings("ignore:the objective rose")  # components without a width
def test_rows_that_repeat_are_found_among_many(case, make):
    X = case.X.copy()
    X[case.nodes == "b"] = np.tile(X[case.nodes == "b"][:2], (20, 1))
    with pytest.warns(FitWarning, match="node 'b' has fewer distinct rows"):
        model = make().set_params(n_components=3).fit(X, nodes=case.nodes)
    assert [model.mixtures_[label].n_components for label in "abc"] == [3, 2, 3]


def test_filling_up_with_copies_leaves_the_density_alone():
    from fedmixtures.engine.start import filled

    p = mixture(3, 2, 2)
    q = filled(Mixture.stack([p, mixture(4, 5, 2)]), [5, 5]).at(0)
    x = np.random.default_rng(0).normal(size=(20, 2))
    assert (q.weights > 0).all()
    np.testing.assert_allclose(q.log_density(x), p.log_density(x), rtol=1e-12)


def test_columns_of_one_value_or_few_are_named(case, make):
    X = np.column_stack([case.X, np.full(len(case.X), 7.0)])
    with pytest.warns(FitWarning, match="column 2 is 7 in every row: it cannot tell rows apart"):
        make(n_rounds=0).fit(X, nodes=case.nodes)
    X[:, 2] = np.where(case.nodes == "b", 1.0, case.X[:, 0])
    with pytest.warns(FitWarning, match="column 2 has a single value at node 'b': it cannot"):
        make(n_rounds=0).fit(X, nodes=case.nodes)
    X[:, 2] = np.arange(len(X)) % 3
    X[::7, 2] = np.nan
    with pytest.warns(FitWarning, match=r"few values in 2 \(3\): a Gaussian density"):
        make(n_rounds=0).fit(X, nodes=case.nodes)


def test_euclidean_refuses_unequal_numbers_of_components(case):
    model = NetworkGaussianMixture(
        {"a": 1, "b": 3, "c": 2}, graph=case.graph, method="gtv-euclidean"
    )
    message = (
        "Euclidean matches components one to one, but the numbers of components differ: "
        "1, 2 and 3. Use one n_components for all nodes, or KL or MMD, which compare densities."
    )
    with pytest.raises(ValueError, match=message):
        model.fit(case.X, nodes=case.nodes)


# graphs ------------------------------------------------------------------------------------------


def test_graphs_by_name(case, make):
    full = make(graph="full", n_rounds=1).fit(case.X, nodes=case.nodes)
    assert full.network_.n_edges == 3
    assert make(graph="knn:5", n_rounds=1).fit(case.X, nodes=case.nodes).network_.n_edges == 3
    nearest = make(graph="knn:1", n_rounds=1).fit(case.X, nodes=case.nodes)
    assert 2 <= nearest.network_.n_edges <= 3
    assert make(graph="none", n_rounds=1).fit(case.X, nodes=case.nodes).network_.n_edges == 0


def test_kmeans_start_object(case, make):
    model = make(init=KMeansStart(n_init=1, reg_covar=0.5), n_rounds=0).fit(
        case.X, nodes=case.nodes
    )
    assert np.linalg.eigvalsh(model.covariances_).min() > 0.5
