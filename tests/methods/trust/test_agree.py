"""Tags, and taking over a mixture."""

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import Mixture, ShapePrior
from fedmixtures.methods.trust_then_pool.agree import agree, exceeds, largest
from fedmixtures.methods.trust_then_pool.settings import FitSettings
from fedmixtures.mixture.precision import double

SETTINGS = FitSettings(ShapePrior(), 1e-3, 2)
MEANS = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


def test_tags_compare_as_tuples_do():
    rng = np.random.default_rng(0)
    tags = rng.integers(3, size=(50, 6, 4)).astype(float)
    present = rng.random((50, 6)) < 0.7
    present[:, 0] = True
    found = np.asarray(largest(jnp.asarray(tags), jnp.asarray(present)))
    own = rng.integers(3, size=(50, 4)).astype(float)
    greater = np.asarray(exceeds(jnp.asarray(tags[:, 0]), jnp.asarray(own)))
    for node in range(50):
        candidates = [tuple(tags[node, s]) for s in range(6) if present[node, s]]
        assert present[node, found[node]]
        assert tuple(tags[node, found[node]]) == max(candidates)
        assert greater[node] == (tuple(tags[node, 0]) > tuple(own[node]))


def offer(means, order, tag, prior_odds=5.0):
    """One node with well separated rows is offered a mixture in another order."""
    rng = np.random.default_rng(1)
    rows = MEANS[rng.integers(3, size=(1, 60))] + rng.standard_normal((1, 60, 2))
    eye = np.broadcast_to(np.eye(2), (1, 3, 2, 2))
    with double():
        own = jax.tree.map(jnp.asarray, Mixture(np.full((1, 3), 1 / 3), MEANS[None], eye))
        offered = jax.tree.map(
            jnp.asarray, Mixture(np.full((1, 3), 1 / 3), means[order][None], eye)
        )
        held = jnp.asarray(own.at(0).log_density(rows[0]))[None]
        pool = jnp.asarray(rows), jnp.ones((1, 60))
        theta, new_tag = agree(
            own,
            jnp.asarray([[3.0, 60.0, 0.0, 0.5]]),
            offered,
            jnp.asarray([tag]),
            jnp.asarray([True]),
            pool,
            held,
            prior_odds,
            SETTINGS,
        )
    return np.asarray(theta.means)[0], np.asarray(new_tag)[0].tolist()


def test_a_larger_tag_brings_its_order_of_components():
    order = [2, 0, 1]
    means, tag = offer(MEANS, order, [3.0, 90.0, 0.0, 0.1])
    assert tag == [3.0, 90.0, 0.0, 0.1]
    assert (np.linalg.norm(means - MEANS[order], axis=1) < 1).all()


def test_a_smaller_tag_brings_nothing():
    means, tag = offer(MEANS, [2, 0, 1], [3.0, 50.0, 99.0, 0.9])
    assert tag == [3.0, 60.0, 0.0, 0.5]
    np.testing.assert_array_equal(means, MEANS)


def test_own_rows_can_refuse():
    far = MEANS + np.array([300.0, 0.0])  # out of reach: EM leaves all rows to one component
    means, tag = offer(far, [0, 1, 2], [3.0, 90.0, 0.0, 0.1])
    assert tag == [3.0, 60.0, 0.0, 0.5]
    np.testing.assert_array_equal(means, MEANS)
