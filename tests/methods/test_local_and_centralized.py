import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from em_oracle import numbers, sklearn_em
from fedmixtures import Centralized, FitWarning, Local, Mixture, NetworkGaussianMixture, ShapePrior
from fedmixtures.init import node_seed


def fit(case, method, k=3, **options):
    model = NetworkGaussianMixture(k, graph=case.network, method=method, random_state=7, **options)
    return model.fit(case.X, nodes=case.nodes)


def by_rows(rows):
    return rows[np.lexsort(rows.T[::-1])]


def test_local_is_scikit_learn_at_every_node(alike):
    model = fit(alike, "local")
    for label, rows in enumerate(alike.rows):
        wanted = GaussianMixture(3, n_init=5, random_state=node_seed(7, label)).fit(by_rows(rows))
        np.testing.assert_allclose(model.mixtures_[label].means, wanted.means_, atol=1e-9)
        np.testing.assert_allclose(
            model.mixtures_[label].covariances, wanted.covariances_, atol=1e-9
        )


def test_centralized_is_scikit_learn_on_all_rows(alike):
    model = fit(alike, "centralized")
    wanted = GaussianMixture(3, n_init=5, random_state=7).fit(by_rows(alike.X))
    np.testing.assert_allclose(model.means_, np.tile(wanted.means_, (6, 1, 1)), atol=1e-9)
    assert model.score(alike.X, nodes=alike.nodes) == pytest.approx(wanted.score(alike.X))


@pytest.mark.parametrize("method", [Local, Centralized])
def test_both_engines_agree(method, uneven):
    ours, theirs = (fit(uneven, method(n_init=1, engine=engine)) for engine in ("jax", "sklearn"))
    np.testing.assert_allclose(ours.means_, theirs.means_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ours.weights_, theirs.weights_, rtol=0, atol=1e-8)


def test_both_engines_agree_from_a_given_start(alike, shared_start):
    for engine in ("jax", "sklearn"):
        model = fit(alike, Local(engine=engine, tol=1e-4), init=shared_start)
        for label, rows in enumerate(alike.rows):
            wanted = sklearn_em(rows, shared_start[label], 100, tol=1e-4)
            np.testing.assert_allclose(model.mixtures_[label].means, wanted.means, atol=1e-8)


def test_the_best_of_several_starts_is_kept(alike):
    one, ten = (fit(alike, Local(n_init=n, engine="jax")) for n in (1, 10))
    assert (ten.history_.node_fit <= one.history_.node_fit + 1e-12).all()


def test_batches_of_nodes_do_not_change_a_fit(alike, monkeypatch):
    together = fit(alike, Local(engine="jax"))
    monkeypatch.setattr("fedmixtures.methods.compared.baselines.BATCH_CELLS", 1)
    np.testing.assert_allclose(fit(alike, Local(engine="jax")).means_, together.means_, atol=1e-9)


def test_local_takes_a_number_of_components_per_node(alike):
    k = dict.fromkeys(range(6), 3) | {4: 1}
    for engine in ("jax", "sklearn"):
        model = fit(alike, Local(engine=engine), k=k)
        rows = alike.rows[4]
        np.testing.assert_allclose(model.mixtures_[4].means, rows.mean(0)[None], atol=1e-9)
        covariance = np.cov(rows.T, bias=True) + 1e-6 * np.eye(2)
        np.testing.assert_allclose(model.mixtures_[4].covariances[0], covariance, atol=1e-9)


def test_who_sends_what(alike):
    local, central = fit(alike, "local").traffic_, fit(alike, "centralized").traffic_
    assert (local.total, local.recipients) == (0, "nobody")
    assert central.sent == dict.fromkeys(range(6), 40 * 2 * 8)
    assert central.received == dict.fromkeys(range(6), numbers(3, 2) * 8)
    assert central.recipients == "hub"


def test_local_overfits_where_centralized_does_not(alike):
    """What the paper says of Local: far better on its own rows than on new ones."""
    s = alike.scenario
    gap = {}
    for name in ("local", "centralized"):
        model = fit(alike, name)
        train = model.score(alike.X, nodes=alike.nodes)
        gap[name] = train - model.score(s.X_validation, nodes=s.nodes_validation)
    assert gap["local"] > 0.3 > abs(gap["centralized"])


def test_rows_that_do_not_count_in_whole_numbers_need_jax(alike):
    weight = np.full(len(alike.X), 0.5)
    model = NetworkGaussianMixture(3, method="local", random_state=0)
    with pytest.raises(ValueError, match="has fractions at 0.*engine='jax'"):
        model.fit(alike.X, nodes=alike.nodes, sample_weight=weight)
    model.set_params(method__engine="jax").fit(alike.X, nodes=alike.nodes, sample_weight=weight)
    assert model.status_ == "completed"


def test_a_fit_that_had_not_settled_says_so(alike):
    for engine in ("jax", "sklearn"):
        with pytest.warns(FitWarning, match="max_iter=2 steps at 0, 1, 2, 3, 4 and 1 more"):
            fit(alike, Local(max_iter=2, tol=0.0, engine=engine))


def test_clear_errors(alike):
    with pytest.raises(ValueError, match="`prior` is given.*engine='jax'"):
        Local(prior=ShapePrior())
    few = alike.nodes != 2
    few[np.flatnonzero(~few)[:2]] = True
    model = NetworkGaussianMixture(3, method="local")
    with pytest.warns(FitWarning, match="node 2 has fewer distinct rows than n_components"):
        model.fit(alike.X[few], nodes=alike.nodes[few])
    assert model.mixtures_[2].n_components == 2
    start = {0: Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])}
    with pytest.raises(ValueError, match="`init` names no mixture"):
        fit(alike, "local", k=1, init=start)
