import numpy as np
import pytest

from em_oracle import numbers
from fedmixtures import Centralized, FedGenGMM, Local, NetworkGaussianMixture


def fit(case, method, k=3, **options):
    settings = {"graph": case.network, "random_state": 7} | options
    return NetworkGaussianMixture(k, method=method, **settings).fit(case.X, nodes=case.nodes)


def test_synthetic_rows_have_the_moments_of_the_union(uneven):
    local = fit(uneven, Local(n_init=1))
    mixtures = [local.mixtures_[i] for i in range(5)]
    method = FedGenGMM(samples_per_component=5_000)
    rows = method.synthetic_rows(mixtures, uneven.data, seed=0)
    assert rows.shape == (5_000 * 15, 2)
    share = uneven.data.counts / uneven.data.counts.sum()
    weights = np.concatenate([s * m.weights for s, m in zip(share, mixtures, strict=True)])
    means = np.concatenate([m.means for m in mixtures])
    covariances = np.concatenate([m.covariances for m in mixtures])
    mean = weights @ means
    second = np.einsum("c,cij->ij", weights, covariances + means[:, :, None] * means[:, None, :])
    standard_error = rows.std(0) / np.sqrt(len(rows))
    assert (np.abs(rows.mean(0) - mean) < 4 * standard_error).all()
    products = rows[:, :, None] * rows[:, None, :]
    error = products.std(0) / np.sqrt(len(rows))
    assert (np.abs(products.mean(0) - second) < 4 * error).all()


def test_one_node_with_many_samples_gets_its_own_mixture_back(alike):
    rows = alike.rows[0]
    own = rows.mean(0), np.cov(rows.T, bias=True)
    n = 20_000
    method = FedGenGMM(samples_per_component=n, n_init=1)
    model = NetworkGaussianMixture(1, method=method, random_state=0).fit(rows)
    assert (np.abs(model.means_[0] - own[0]) < 4 * np.sqrt(np.diag(own[1]) / n)).all()
    variances = np.diag(own[1])
    spread = np.sqrt((np.outer(variances, variances) + own[1] ** 2) / n)
    assert (np.abs(model.covariances_[0] - own[1]) < 4 * spread + 2e-6).all()


def test_one_exchange_comes_close_to_pooling_the_rows(alike):
    """The claim of its paper, on alike nodes."""
    s = alike.scenario
    model = fit(alike, FedGenGMM())
    pooled = fit(alike, Centralized())
    validation = s.X_validation, s.nodes_validation
    ours, theirs = (m.score(validation[0], nodes=validation[1]) for m in (model, pooled))
    assert ours > theirs - 0.05
    np.testing.assert_array_equal(model.means_, np.tile(model.means_[:1], (6, 1, 1)))


def test_rounds_play_no_part(alike):
    method = FedGenGMM(n_init=1, samples_per_component=20)
    assert len(fit(alike, method).history_) == 1
    with pytest.raises(ValueError, match="`n_rounds` is 30, but FedGenGMM has no rounds"):
        fit(alike, method, n_rounds=30)


def test_nodes_may_have_their_own_numbers_of_components(alike):
    k = dict.fromkeys(range(6), 3) | {1: 2}
    model = fit(alike, FedGenGMM(n_init=1, samples_per_component=20), k=k)
    assert model.mixtures_[1].n_components == 3
    assert model.traffic_.sent[1] == (numbers(2, 2) + 1) * 8


def test_messages(alike):
    traffic = fit(alike, FedGenGMM(n_init=1, samples_per_component=20)).traffic_
    assert traffic.sent == dict.fromkeys(range(6), (numbers(3, 2) + 1) * 8)
    assert traffic.received == dict.fromkeys(range(6), numbers(3, 2) * 8)
    assert (traffic.recipients, traffic.n_rounds) == ("hub", 0)


def test_clear_errors():
    with pytest.raises(ValueError, match="`samples_per_component` is 0"):
        FedGenGMM(samples_per_component=0)
    with pytest.raises(ValueError, match="`n_init` is 0"):
        FedGenGMM(n_init=0)
