import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from em_oracle import loss, matched, moments, sklearn_em
from fedmixtures import FedGrEM, KMeansStart, Mixture, NetworkGaussianMixture
from fedmixtures.methods.compared.fedgrem import shrunk
from fedmixtures.mixture.arithmetic import double


def fit(case, method, k=3, **options):
    settings = {"graph": case.network, "n_rounds": 4, "random_state": 7} | options
    return NetworkGaussianMixture(k, method=method, **settings).fit(case.X, nodes=case.nodes)


def plain_shrink(deviation, reach):
    length = np.linalg.norm(deviation)
    return max(0.0, 1 - reach / length) * deviation if length > 0 else deviation


def plain_centre(parts, rows, reach, refinements):
    centre = np.average(parts, axis=0, weights=rows)
    for _ in range(refinements):
        rest = [p - plain_shrink(p - centre, r) for p, r in zip(parts, reach, strict=True)]
        centre = np.average(rest, axis=0, weights=rows)
    return centre


def plain_round(thetas, w0, case, method, strength):
    """The equations of the module's docstring, node by node and component by component."""
    rows = case.data.counts
    stepped = []
    for theta, own, x in zip(thetas, w0, case.rows, strict=True):
        n, a, b = moments(theta, x)
        mu = theta.means
        about = b - np.einsum("ci,cj->cij", a, mu) - np.einsum("ci,cj->cij", mu, a)
        about += n[:, None, None] * np.einsum("ci,cj->cij", mu, mu)
        rate = method.eta / own / len(x)
        means = mu + rate[:, None] * (a - n[:, None] * mu)
        toward = about - n[:, None, None] * theta.covariances
        stepped.append(Mixture(n / len(x), means, theta.covariances + rate[:, None, None] * toward))
    reach = strength / np.sqrt(rows)
    new = [[np.empty_like(part) for part in theta.parts] for theta in stepped]
    for c in range(3):
        for name, at in (("means", 1), ("covariances", 2)):
            parts = np.array([getattr(theta, name)[c] for theta in stepped])
            centre = plain_centre(parts, rows, reach, method.inner_iterations)
            for i, part in enumerate(parts):
                new[i][at][c] = centre + plain_shrink(part - centre, reach[i])
    return [Mixture(theta.weights, *parts[1:]) for theta, parts in zip(stepped, new, strict=True)]


@pytest.mark.parametrize("inner_iterations", [1, 20])
def test_rounds_against_a_plain_loop(uneven, inner_iterations):
    method = FedGrEM(eta=0.4, C_lambda=0.5, kappa=0.3, inner_iterations=inner_iterations)
    start = fit(uneven, method, n_rounds=0).solution_.theta
    thetas = [start.at(i) for i in range(5)]
    w0, strength = np.maximum(start.weights, 0.02), 1.0
    for _ in range(4):
        strength = 0.3 * strength + 0.5 * np.sqrt(2 + np.log(5))
        thetas = plain_round(thetas, w0, uneven, method, strength)
    model = fit(uneven, method)
    for i, theta in enumerate(thetas):
        for ours, wanted in zip(model.solution_.theta.at(i).parts, theta.parts, strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-9)


def test_the_hub_solves_the_problem_it_states():
    rng = np.random.default_rng(0)
    parts, rows, strength = rng.standard_normal((5, 1, 2)), np.array([9, 16, 25, 36, 49.0]), 4.0
    with double():
        method = FedGrEM(inner_iterations=3000)
        reach = jnp.asarray(strength / np.sqrt(rows))
        centre = np.asarray(method._centre(jnp.asarray(parts), jnp.asarray(rows), reach))[0]

    def objective(flat):
        centre, delta = flat[:2], flat[2:].reshape(5, 2)
        fit = 0.5 * np.square(parts[:, 0] - centre - delta).sum(1)
        return (rows * (fit + strength / np.sqrt(rows) * np.linalg.norm(delta, axis=1))).sum()

    delta = np.array(
        [
            plain_shrink(p - centre, strength / r**0.5)
            for p, r in zip(parts[:, 0], rows, strict=True)
        ]
    )
    ours = objective(np.concatenate([centre, delta.ravel()]))
    found = minimize(objective, np.zeros(12), method="Powell", options={"ftol": 1e-13})
    assert 0 < (delta == 0).all(1).sum() < 5
    assert ours <= found.fun + 1e-8


def test_without_shrinkage_nodes_are_alone(alike):
    method = FedGrEM(C_lambda=0.0, kappa=0.0, eta=0.5)
    start = {i: KMeansStart().mixtures(alike.data, [3] * 6, 0, 1e-6).at(i) for i in range(6)}
    together = fit(alike, method, init=start)
    alone = NetworkGaussianMixture(3, method=method, init={0: start[2]}, n_rounds=4)
    alone.fit(alike.rows[2])
    order = matched(alone.means_, together.means_[2])
    np.testing.assert_allclose(together.means_[2][order], alone.means_, atol=1e-9)


def test_one_node_ends_where_em_ends(alike):
    rows = alike.rows[0]
    model = NetworkGaussianMixture(3, method=FedGrEM(eta=0.5), n_rounds=600, random_state=7).fit(
        rows
    )
    found = model.mixtures_[0]
    after = sklearn_em(rows, found, 1)
    np.testing.assert_allclose(after.means, found.means, atol=1e-4)
    assert loss(after, rows) == pytest.approx(loss(found, rows), abs=1e-5)
    assert (np.diff(model.history_.fit) < 1e-9).all()


def test_one_component_is_the_sample_mean_and_covariance(alike):
    model = fit(alike, FedGrEM(eta=0.5, C_lambda=0.0, kappa=0.0), k=1, n_rounds=80)
    for i, rows in enumerate(alike.rows):
        np.testing.assert_allclose(model.means_[i, 0], rows.mean(0), atol=1e-9)
        np.testing.assert_allclose(model.covariances_[i, 0], np.cov(rows.T, bias=True), atol=1e-6)


def test_strong_shrinkage_gives_one_set_of_components(alike):
    model = fit(alike, FedGrEM(C_lambda=100.0))
    np.testing.assert_allclose(model.means_, np.tile(model.means_[:1], (6, 1, 1)), atol=1e-10)
    assert np.ptp(model.weights_, axis=0).max() > 0.01


def test_one_outlier_moves_the_others_no_further_however_far_it_is():
    """The robustness the method is about: an outlier pulls with bounded force."""
    with double():
        method = FedGrEM(inner_iterations=500)
        rows, reach = jnp.full(6, 50.0), jnp.full(6, 0.5)
        near = 0.1 * np.random.default_rng(1).standard_normal((6, 1, 2))
        centres = []
        for distance in (10.0, 20.0):
            parts = jnp.asarray(near).at[5, 0].set(jnp.array([distance, 0.0]))
            centres.append(np.asarray(method._centre(parts, rows, reach)))
    np.testing.assert_allclose(centres[0], centres[1], atol=1e-2)
    assert np.linalg.norm(centres[1]) < 0.5


def test_shrinking_is_soft_thresholding_of_whole_matrices():
    with double():
        given = jnp.array([[[[3.0, 0.0], [0.0, 4.0]]], [[[0.3, 0.0], [0.0, 0.4]]]])
        result = np.asarray(shrunk(given, jnp.array([1.0, 1.0])))
    np.testing.assert_allclose(result[0, 0], [[2.4, 0.0], [0.0, 3.2]])
    np.testing.assert_array_equal(result[1], 0)


def test_a_shared_start_is_the_same_everywhere(alike):
    start = fit(alike, FedGrEM(init="shared"), n_rounds=0).solution_.theta
    np.testing.assert_array_equal(start.means, np.tile(start.means[:1], (6, 1, 1)))
    np.testing.assert_allclose(start.weights, 1 / 3)


def test_components_without_rows_take_no_step(alike):
    far = Mixture(
        np.full(3, 1 / 3), np.array([[0, 0], [1e3, 0], [0, 1e3]]), np.tile(np.eye(2), (3, 1, 1))
    )
    model = fit(alike, FedGrEM(), init=dict.fromkeys(range(6), far), n_rounds=2)
    for i in range(6):
        distance = np.linalg.norm(model.means_[i][:, None] - far.means[1:][None], axis=-1)
        np.testing.assert_allclose(distance.min(0), 0, atol=1e-9)


def test_messages_hold_no_weights(alike):
    traffic = fit(alike, FedGrEM()).traffic_
    assert traffic.message_bytes == 3 * (2 + 4) * 8
    assert traffic.setup == dict.fromkeys(range(6), (3 * 2 + 1) * 8)
    assert traffic.received == dict.fromkeys(range(6), 3 * 8 + 4 * (3 * (2 + 4) * 8 + 8))


def test_clear_errors():
    with pytest.raises(ValueError, match="`eta` is 0"):
        FedGrEM(eta=0.0)
    with pytest.raises(ValueError, match="`kappa` is 1. Give a number below 1"):
        FedGrEM(kappa=1.0)
    with pytest.raises(ValueError, match="`inner_iterations` is 0"):
        FedGrEM(inner_iterations=0)
