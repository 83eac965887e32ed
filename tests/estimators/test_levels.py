"""A node's density as a weighted sum of several: scoring, single nodes, samples, files."""

import dataclasses

import numpy as np
import pytest

import fedmixtures
from fedmixtures import Mixture, NetworkGaussianMixture
from fedmixtures.methods.base import Levels
from helpers import mixture


@pytest.fixture
def levelled(fitted):
    """The shared model with three more levels: own, everyone, and one that nobody relies on."""
    each = [[mixture(10 * level + i, 2, 2) for i in range(3)] for level in range(3)]
    stacks = [Mixture.stack(nodes) for nodes in each]
    theta = Mixture(*(np.stack(parts) for parts in zip(*(s.parts for s in stacks), strict=True)))
    weights = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    nothing = np.zeros((3, 3))
    levels = Levels(
        ("own", "everyone", "nobody"), theta, weights, nothing, np.zeros(3, int), np.zeros((3, 4))
    )
    solution = dataclasses.replace(fitted.solution_, levels=levels)
    model = NetworkGaussianMixture(2, random_state=0).adopt(solution, fitted.network_)
    return model, each, weights


def test_the_density_is_the_weighed_sum(case, levelled):
    model, each, weights = levelled
    found = model.score_samples(case.X, case.nodes)
    for i, label in enumerate("abc"):
        mine = case.nodes == label
        terms = [
            weights[i, level] * np.exp(each[level][i].log_density(case.X[mine])) for level in (0, 1)
        ]
        np.testing.assert_allclose(found[mine], np.log(sum(terms)), rtol=1e-10)
        whole = model.node(label, level="density")
        np.testing.assert_allclose(whole.score_samples(case.X[mine]), found[mine], rtol=1e-9)
    assert model.score(case.X, nodes=case.nodes) == pytest.approx(found.mean())


def test_clusters_stay_those_of_the_mixture(case, levelled, fitted):
    model, _, _ = levelled
    np.testing.assert_array_equal(
        model.predict(case.X, case.nodes), fitted.predict(case.X, case.nodes)
    )
    np.testing.assert_array_equal(
        model.predict_proba(case.X, case.nodes), fitted.predict_proba(case.X, case.nodes)
    )
    assert model.bic(case.X, case.nodes) == fitted.bic(case.X, case.nodes)


def test_single_levels_of_a_node(levelled, fitted):
    model, each, _ = levelled
    np.testing.assert_allclose(model.node("b", level="everyone").means_, each[1][1].means)
    np.testing.assert_array_equal(model.node("b").means_, fitted.node("b").means_)
    assert model.node("a", level="density").n_components == 4  # the level of weight zero is absent
    with pytest.raises(
        ValueError, match="`level` is 'every'. Choose from own, everyone, nobody, density"
    ):
        model.node("b", level="every")
    assert fitted.node("b", level="density").n_components == 2
    with pytest.raises(ValueError, match="`level` is 'own'. Choose from density"):
        fitted.node("b", level="own")


def test_samples_come_from_the_density(levelled):
    model, each, weights = levelled
    x, components = model.sample(4000, nodes="a")
    mean = sum(w * one[0].weights @ one[0].means for w, one in zip(weights[0], each, strict=True))
    assert np.abs(x.mean(0) - mean).max() < 5 * x.std(0).max() / np.sqrt(4000)
    np.testing.assert_array_equal(components, model.predict(x, nodes=np.full(4000, "a")))


def test_levels_are_saved_and_change_units(case, levelled, tmp_path):
    model, _, _ = levelled
    loaded = fedmixtures.load(model.save(tmp_path))
    np.testing.assert_array_equal(
        loaded.score_samples(case.X, case.nodes), model.score_samples(case.X, case.nodes)
    )
    assert loaded.levels_.names == ("own", "everyone", "nobody")
    np.testing.assert_array_equal(loaded.levels_.prequential, model.levels_.prequential)
    double = lambda theta: Mixture(theta.weights, 2 * theta.means, 4 * theta.covariances)
    wide = NetworkGaussianMixture(2).adopt(model.solution_.changed(double), model.network_)
    np.testing.assert_allclose(
        wide.score_samples(2 * case.X, case.nodes),
        model.score_samples(case.X, case.nodes) - 2 * np.log(2),
        rtol=1e-9,
    )
