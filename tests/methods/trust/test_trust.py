"""The gate: substitute and harmless."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from fedmixtures import Mixture, ShapePrior
from fedmixtures.methods.trust_then_pool import trust
from fedmixtures.methods.trust_then_pool.local import fold_of_rows, local_fits, out_of_fold
from fedmixtures.methods.trust_then_pool.settings import FitSettings
from fedmixtures.methods.trust_then_pool.trust import OwnRows, gate, substitute
from fedmixtures.mixture.precision import double

SETTINGS = FitSettings(ShapePrior(), 1e-3, 3)
harmless = jax.jit(partial(trust.harmless, settings=SETTINGS))
MEANS = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


@cache
def own_rows(weights=(1 / 3, 1 / 3, 1 / 3), m=60, seed=0) -> OwnRows:
    rng = np.random.default_rng(seed)
    rows = MEANS[rng.choice(3, size=(1, m), p=weights)] + rng.standard_normal((1, m, 2))
    rows, counts = jnp.asarray(rows), jnp.ones((1, m))
    key = jax.vmap(jr.key)(jnp.asarray([seed]))
    fold = fold_of_rows(key, counts, 5)
    _, models = local_fits(key, mixture(), rows, counts, fold, 5, SETTINGS)
    return OwnRows(rows, counts, fold, models, out_of_fold(models, rows, fold))


def mixture(means=MEANS, weights=(1 / 3, 1 / 3, 1 / 3)) -> Mixture:
    eye = np.broadcast_to(np.eye(2), (1, 3, 2, 2))
    return jax.tree.map(jnp.asarray, Mixture(np.array([weights]), np.array([means]), eye))


def test_substitute_is_the_mean_gain_on_own_rows():
    with double():
        own, theta = own_rows(), mixture()
        mean, error = substitute(theta, own)
        difference = theta.at(0).log_density(own.rows[0]) - np.asarray(own.alone)[0]
    mean, error = np.asarray(mean), np.asarray(error)
    np.testing.assert_allclose(mean[0], difference.mean())
    np.testing.assert_allclose(error[0], difference.std() / np.sqrt(60))
    assert mean[0] > 0  # the truth explains unseen rows better than a fit to 48 of them


def test_a_far_neighbour_passes_neither_test():
    with double():
        own = own_rows()
        far = mixture(MEANS + np.array([5.0, -5.0]))
        for mean, error in (
            substitute(far, own),
            harmless(far, jnp.asarray([60.0]), own),
        ):
            assert mean[0] + error[0] < 0


def test_a_neighbour_of_another_mix_is_no_substitute_but_harmless():
    with double():
        own = own_rows(weights=(0.6, 0.3, 0.1), m=80)
        other = mixture(weights=(0.1, 0.3, 0.6))
        mean, error = substitute(other, own)
        assert mean[0] + error[0] < 0
        mean, error = harmless(other, jnp.asarray([80.0]), own)
        assert mean[0] + error[0] > 0


@pytest.mark.parametrize("rows", [600.0, 6e9])
def test_a_claim_of_many_rows_is_capped(rows):
    with double():
        own, other = own_rows(), mixture(MEANS + 1.0)
        capped = harmless(other, jnp.asarray([600.0]), own)
        found = harmless(other, jnp.asarray([rows]), own)
    np.testing.assert_allclose(found, capped)


def test_the_gate_tries_substitutes_first_and_harm_where_there_is_none():
    with double():
        own = own_rows()
        slots = [mixture(), mixture(MEANS + 5.0), mixture(), mixture(MEANS + 1.0)]
        rows, present = [60.0, 30.0, 60.0, 20.0], jnp.asarray([[True, True, False, True]])
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *slots)
        found = np.asarray(gate(stacked, jnp.asarray([rows]), present, own, 1.0, SETTINGS))
        for slot, held in ((0, False), (1, True), (2, False), (3, True)):
            first = np.concatenate(substitute(slots[slot], own))
            assert (first.sum() > 0) == (not held)
            second = harmless(slots[slot], jnp.asarray([rows[slot]]), own)
            second = np.concatenate(second) if held else np.zeros(2)
            np.testing.assert_allclose(found[0, slot], [*first, *second], rtol=1e-9)
