import numpy as np
import pytest

from em_oracle import from_moments, log_joint, moments, numbers, sklearn_em
from fedmixtures import Centralized, FedEM, Mixture, NetworkGaussianMixture
from fedmixtures.data import shifted_blocks


def fit(case, method, **options):
    settings = {"graph": case.network, "n_rounds": 4, "random_state": 7} | options
    return NetworkGaussianMixture(3, method=method, **settings).fit(case.X, nodes=case.nodes)


@pytest.fixture(scope="module")
def start(alike):
    return fit(alike, FedEM(), n_rounds=0).solution_.theta


def test_the_start_is_one_for_all(alike, start):
    """k-means of local centres, equal weights, mean covariance."""
    assert np.unique(start.weights) == pytest.approx([1 / 3])
    for part in start.parts:
        np.testing.assert_array_equal(part, np.broadcast_to(part[:1], part.shape))
    assert np.ptp(start.covariances, axis=1).max() == 0


def test_rounds_against_a_plain_loop(alike, start):
    thetas = [start.at(i) for i in range(6)]
    for _ in range(4):
        sums = [moments(theta, rows) for theta, rows in zip(thetas, alike.rows, strict=True)]
        shared = from_moments(*(sum(parts) for parts in zip(*sums, strict=True)))
        thetas = [Mixture(n / n.sum(), shared.means, shared.covariances) for n, *_ in sums]
    model = fit(alike, FedEM())
    for i, theta in enumerate(thetas):
        np.testing.assert_allclose(model.means_[i], theta.means, atol=1e-9)
        np.testing.assert_allclose(model.covariances_[i], theta.covariances, atol=1e-9)
        np.testing.assert_allclose(model.weights_[i], theta.weights, atol=1e-9)


def test_one_node_is_ordinary_em(alike):
    rows = alike.rows[0]
    settings = {"method": "fedem", "random_state": 7}
    start = NetworkGaussianMixture(3, n_rounds=0, **settings).fit(rows).solution_.theta.at(0)
    model = NetworkGaussianMixture(3, n_rounds=25, **settings).fit(rows)
    wanted = sklearn_em(rows, start, 25)
    np.testing.assert_allclose(model.means_, wanted.means, atol=1e-7)
    np.testing.assert_allclose(model.covariances_, wanted.covariances, atol=1e-7)
    np.testing.assert_allclose(model.weights_, wanted.weights, atol=1e-7)


def test_the_likelihood_of_all_rows_never_falls(uneven, blocks):
    for case in (uneven, blocks):
        model = fit(case, FedEM(reg_covar=0.0), n_rounds=60, keep_node_history=True)
        total = model.history_.node_fit @ case.data.counts
        assert (np.diff(total) <= 1e-9 * abs(total[0])).all()
        assert total[0] - total[-1] > 1


def test_personal_weights_are_what_it_is_made_for():
    """Marfoq: nodes whose data mix the same components in their own proportions."""
    s = shifted_blocks(4, 1, n_components=3, n_train=150, differ="weights", seed=2)
    score = {}
    for name, method in {"fedem": FedEM(), "one": Centralized(engine="jax")}.items():
        model = NetworkGaussianMixture(3, graph="full", method=method, random_state=0)
        model.fit(s.X, nodes=s.nodes)
        score[name] = model.score(s.X_validation, nodes=s.nodes_validation)
        if name == "fedem":
            np.testing.assert_array_equal(model.means_[0], model.means_[3])
            assert np.abs(model.weights_[0] - model.weights_[3]).max() > 0.1
    assert score["fedem"] > score["one"] + 0.02


def test_a_component_that_fades_at_a_node_is_kept(blocks):
    model = fit(blocks, FedEM(), n_rounds=60)
    assert (model.weights_ > 0).all()
    assert model.weights_.min() < 1e-6
    density = log_joint(model.mixtures_[0], blocks.rows[0])
    assert np.isfinite(density).all()


def test_a_component_nobody_uses_stays(alike):
    import jax.numpy as jnp

    from fedmixtures.mixture.arithmetic import double

    with double():
        before = Mixture(
            jnp.full(2, 0.5), jnp.arange(4.0).reshape(2, 2), jnp.tile(jnp.eye(2), (2, 1, 1))
        )
        mass = jnp.array([[3.0, 0.0], [2.0, 0.0]])
        message = mass, jnp.zeros((2, 2, 2)), jnp.ones((2, 2, 1, 1)) * jnp.eye(2)[None, None]
        (means, covariances), _ = FedEM().hub(message, jnp.array([3.0, 2.0]), before)
    np.testing.assert_array_equal(means, before.means)
    np.testing.assert_array_equal(covariances[1], np.eye(2))
    np.testing.assert_allclose(covariances[0], (2 / 5 + 1e-6) * np.eye(2))


def test_messages(alike):
    traffic = fit(alike, FedEM()).traffic_
    assert traffic.message_bytes == numbers(3, 2) * 8
    components = 3 * (2 + 4) * 8
    assert traffic.setup == dict.fromkeys(range(6), components)
    assert traffic.sent == dict.fromkeys(range(6), components + 4 * numbers(3, 2) * 8)
    assert traffic.received == dict.fromkeys(range(6), components + 4 * components)
