"""Steps of EM's kind for couplings, and the prior in their local loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import (
    KL,
    MMD,
    Euclidean,
    FitWarning,
    GTVMin,
    Local,
    Mixture,
    NetworkGaussianMixture,
    ShapePrior,
)
from fedmixtures.engine.options import used
from fedmixtures.estimators.resolve import resolve_method
from fedmixtures.methods.em_steps import Pseudorows, descend, em_direction, loss_of_statistics
from fedmixtures.methods.programs import NodeRows
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.m_step import m_step
from fedmixtures.mixture.moments import plain_statistics

PRIOR = ShapePrior(5.0, 2.0)


@pytest.fixture
def state():
    """Two nodes of twenty rows, with mixtures that are not yet fitted."""
    rng = np.random.default_rng(0)
    with double():
        rows = jnp.asarray(rng.normal(size=(2, 20, 3)) * [1.0, 0.1, 5.0])
        means = jnp.asarray(rng.normal(size=(2, 2, 3)) * [1.0, 0.1, 5.0])
        spread = jnp.broadcast_to(jnp.diag(jnp.array([1.0, 0.02, 30.0])), (2, 2, 3, 3))
        theta = Mixture(jnp.full((2, 2), 0.5), means, spread)
        data = NodeRows(rows, jnp.full((2, 20), 1 / 20), jnp.full(2, 20.0))
        yield theta, data


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_without_neighbours_a_step_of_length_one_is_em(state, prior):
    theta, data = state
    s = plain_statistics(theta, data.rows, data.row_weights)
    rows = None if prior is None else Pseudorows.of(s, data, prior)
    _, gradient = loss_of_statistics(theta, s, rows)
    step = em_direction(theta, gradient, s, rows)
    counted = jax.tree.map(lambda part: 20 * part, s)
    expected = m_step(theta, counted, 0.0, prior)
    np.testing.assert_allclose(theta.weights - step.weights, expected.weights, atol=1e-12)
    np.testing.assert_allclose(theta.means - step.means, expected.means, atol=1e-12)
    # Covariances are about the old means here, about the new ones in the M-step.
    nu = 0.0 if prior is None else prior.strength
    shift = expected.means - theta.means
    moved = shift[..., :, None] * shift[..., None, :] * counted.mass[..., None, None]
    moved = moved / (counted.mass + nu)[..., None, None]
    found = theta.covariances - step.covariances - moved
    np.testing.assert_allclose(found, expected.covariances, rtol=1e-9, atol=1e-12)


def test_the_penalty_is_the_divergence_and_its_gradient_the_derivative(state):
    theta, data = state
    s = plain_statistics(theta, data.rows, data.row_weights)
    rows = Pseudorows.of(s, data, PRIOR)
    value, gradient = rows.loss(theta)

    def by_hand(theta):
        total = 0.0
        for n in range(2):
            for c in range(2):
                cov, s0 = theta.covariances[n, c], rows.shape[n]
                ratio = jnp.linalg.solve(cov, s0)
                kl = 0.5 * (jnp.trace(ratio) - 3 - jnp.log(jnp.linalg.det(ratio)))
                total += PRIOR.strength / 20 * kl
                total -= PRIOR.extra_mass / 20 * jnp.log(theta.weights[n, c])
        return total

    # The constants of the divergence are left out.
    constant = 0.5 * PRIOR.strength / 20 * 2 * (jnp.log(jnp.linalg.det(rows.shape)) + 3).sum()
    assert float(value.sum() - constant) == pytest.approx(float(by_hand(theta)), rel=1e-10)
    derived = jax.grad(by_hand)(theta)
    for ours, theirs in zip(gradient.parts, derived.parts, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


def test_a_step_is_halved_until_it_does_not_climb(state):
    theta, _ = state
    uphill = jax.tree.map(lambda part: -jnp.ones_like(part), theta)
    value = lambda at: (at.means[:, 0, 0] - 3.0) ** 2
    start = value(theta)
    rate = jnp.array([64.0, 1e-3])
    found, taken = descend(theta, uphill, start, rate, value, lambda at: at)
    assert (value(found) <= start).all()
    assert taken[0] < 64
    assert taken[1] == 1e-3
    nowhere = lambda at: jnp.full(2, jnp.nan)
    stayed, _ = descend(theta, uphill, start, rate, nowhere, lambda at: at)
    np.testing.assert_array_equal(stayed.means, theta.means)


def fit(case, method, **options):
    settings = used(resolve_method(method), n_rounds=60) | {"random_state": 7} | options
    settings = {"graph": case.network} | settings
    return NetworkGaussianMixture(3, method=method, **settings).fit(case.X, nodes=case.nodes)


def test_alone_and_with_a_prior_it_ends_where_local_ends(alike):
    start = fit(alike, "gtv-mmd", n_rounds=0).mixtures_
    method = GTVMin(MMD(), alpha=0.0, solver="em", prior=ShapePrior())
    ours = fit(alike, method, init=start)
    settings = {"engine": "jax", "prior": ShapePrior(), "reg_covar": 0.0, "tol": 1e-12}
    local = fit(alike, Local(**settings, max_iter=2000), init=start)
    for node, mixture in local.mixtures_.items():
        for a, b in zip(ours.mixtures_[node].parts, mixture.parts, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("discrepancy", [MMD(), Euclidean()], ids=lambda d: type(d).__name__)
def test_thin_components_do_not_throw_it_off(alike, discrepancy):
    """Where one feature is thin a plain step of the same data climbs, or is given up."""
    X = alike.X * [1.0, 0.02]
    settings = {"graph": alike.network, "random_state": 7, "n_rounds": 20}
    method = GTVMin(discrepancy, alpha=0.1, solver="em", prior=ShapePrior())
    model = NetworkGaussianMixture(3, method=method, **settings).fit(X, nodes=alike.nodes)
    objective = model.history_.objective
    assert model.status_ == "completed"
    assert objective[-1] < objective[0]
    assert (np.diff(objective) < 1e-6 * np.abs(objective[:-1]) + 0.05).all()
    local = Local(engine="jax", prior=ShapePrior())
    alone = NetworkGaussianMixture(3, method=local, random_state=7).fit(X, nodes=alike.nodes)
    held_out = alike.scenario.X_validation * [1.0, 0.02], alike.scenario.nodes_validation
    ours, theirs = (m.score(held_out[0], nodes=held_out[1]) for m in (model, alone))
    assert ours > theirs - 0.05


def test_drawn_points_work_too(alike):
    model = fit(alike, GTVMin(KL(), alpha=0.1, solver="em", prior=ShapePrior()), n_rounds=5)
    assert model.status_ == "completed"


def test_a_prior_holds_for_plain_steps_as_well(alike):
    spread = lambda model: np.log(np.linalg.eigvalsh(model.covariances_)).std()
    with_prior, without = (fit(alike, GTVMin(alpha=0.1, prior=p)) for p in (ShapePrior(50.0), None))
    assert spread(with_prior) < spread(without)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="`prior` is 3. Give a ShapePrior or None"):
        GTVMin.__check_init__(_Loose(prior=3))


class _Loose:
    """Settings past the type checker that is on in tests."""

    discrepancy, feasible, solver = MMD(), None, "em"

    def __init__(self, **values):
        vars(self).update(values)


def test_steps_that_climb_are_told(alike):
    X = alike.X * [1.0, 0.05]
    model = NetworkGaussianMixture(3, graph=alike.network, method="gtv-mmd", random_state=7)
    with pytest.warns(FitWarning, match="rose from .* to .*solver='em'"):
        model.fit(X, nodes=alike.nodes)
