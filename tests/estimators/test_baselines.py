"""What a fit is compared with: as careful as the fit itself."""

import numpy as np

from fedmixtures import FedEM, GTVMin, Local, NetworkGaussianMixture, ShapePrior, TrustThenPool
from fedmixtures.estimators.resolve import all_rows_pooled, own_data_only
from fedmixtures.estimators.solutions import own_level


def test_own_data_only_gets_the_methods_prior_and_ridge():
    rows = np.random.default_rng(0).normal(size=(50, 2))
    strong = ShapePrior(strength=30.0)
    own = own_data_only(FedEM(prior=strong, reg_covar=0.5), rows)
    assert (own.prior, own.reg_covar) == (strong, 0.5)
    assert all_rows_pooled(FedEM(reg_covar=0.5), rows).reg_covar == 0.5
    assert own_data_only(TrustThenPool(), rows).prior == ShapePrior()
    assert own_data_only(GTVMin(alpha=3.0), rows) == GTVMin(alpha=0.0)


def test_the_level_own_is_the_baseline_where_there_is_one():
    rng = np.random.default_rng(0)
    X, nodes = rng.normal(size=(120, 2)), np.repeat(["a", "b", "c"], 40)
    model = NetworkGaussianMixture(2, graph="full", random_state=0).fit(X, nodes=nodes)
    own = NetworkGaussianMixture(2).adopt(own_level(model.solution_), model.network_)
    for label in "abc":
        mine = nodes == label
        wanted = model.node(label, level="own").score_samples(X[mine])
        np.testing.assert_allclose(own.score_samples(X[mine], nodes[mine]), wanted, rtol=1e-9)
    plain = NetworkGaussianMixture(2, method="local", random_state=0).fit(X, nodes=nodes)
    assert own_level(plain.solution_) is None


def test_the_baseline_does_not_collapse_where_rows_are_few():
    """Forty rows in twelve features, four components: maximum likelihood fits spikes."""
    rng = np.random.default_rng(0)
    X, held = rng.normal(size=(120, 12)), rng.normal(size=(600, 12))
    nodes, of_held = np.repeat(["a", "b", "c"], 40), np.repeat(["a", "b", "c"], 200)
    score = lambda method: (
        NetworkGaussianMixture(4, method=method, random_state=0)
        .fit(X, nodes=nodes)
        .score(held, nodes=of_held)
    )
    truth = -6 * (1 + np.log(2 * np.pi))
    assert score(Local()) < truth - 300
    assert score(own_data_only(FedEM(), X)) > truth - 30
