"""Nodes that were never fitted: scored by what the network knows, or made a node of it."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.data import shifted_blocks
from fedmixtures.engine.solution import FitWarning, Solution, Traffic
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Levels
from helpers import mixture

A, B, EVERYONE = (mixture(seed, k=2, d=2) for seed in (1, 2, 3))
X = np.array([[0.5, 1.0], [1.0, -1.0], [0.0, 0.2]])
NEW = "'c', which the model was not fitted on"


def model_of(levels=None, rows=(3.0, 1.0)):
    solution = Solution.collected({"a": A, "b": B}, 0, Traffic(0, {"a": 0, "b": 0}))
    network = Network(("a", "b"), np.array([0]), np.array([1]), np.ones(1))
    solution = replace(solution, levels=levels, rows=None if rows is None else np.array(rows))
    return fm.NetworkGaussianMixture(2, method="local").adopt(solution, network)


def test_without_levels_a_newcomer_is_all_nodes_by_their_rows():
    model = model_of()
    with pytest.warns(FitWarning, match=NEW):
        found = model.score_samples(X, nodes=["c", "a", "c"])
    expected = np.log(0.75 * np.exp(A.log_density(X)) + 0.25 * np.exp(B.log_density(X)))
    np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]])
    assert found[1] == pytest.approx(A.log_density(X)[1])
    with pytest.warns(FitWarning, match=NEW):
        share = model.predict_proba(X, nodes=["c"] * 3)
    joint = [
        s * np.exp(p.log_density(X))[:, None] * p.responsibilities(X)
        for s, p in ((0.75, A), (0.25, B))
    ]
    np.testing.assert_allclose(share, sum(joint) / sum(joint).sum(1, keepdims=True))
    with pytest.warns(FitWarning, match=NEW):
        equal = model_of(rows=None).score_samples(X, nodes=["c"] * 3)
    both = np.exp(A.log_density(X)) + np.exp(B.log_density(X))
    np.testing.assert_allclose(equal, np.log(both / 2))


def test_with_levels_a_newcomer_is_everyone(tmp_path):
    stacked = [fm.Mixture.stack(pair) for pair in ((A, B), (EVERYONE, EVERYONE))]
    of_two = np.full((2, 2), 0.5)
    levels = Levels(
        ("own", "everyone"), fm.Mixture.stack(stacked), of_two, of_two, np.zeros(2, int), of_two
    )
    model_of(levels).save(tmp_path / "model.safetensors")
    model = fm.load(tmp_path / "model.safetensors")
    with pytest.warns(FitWarning, match=NEW):
        found = model.score_samples(X, nodes=["c"] * 3)
    np.testing.assert_allclose(found, EVERYONE.log_density(X))
    with pytest.warns(FitWarning, match=NEW):
        filled = model.impute(np.array([[np.nan, np.nan]]), nodes=["c"])
    np.testing.assert_allclose(filled, [EVERYONE.weights @ EVERYONE.means])
    with pytest.warns(FitWarning), pytest.raises(ValueError, match="not fitted on"):
        model.bic(X, nodes=["c"] * 3)


@pytest.fixture(scope="module")
def joined():
    """A network without its node 5, that node adapted, and the rows that judge."""
    s = shifted_blocks(n_blocks=2, nodes_per_block=3, n_components=2, n_train=60, seed=5)
    method = fm.TrustThenPool(n_starts=2, pool_steps=(2, 3, 3))
    model = fm.NetworkGaussianMixture(2, graph="full", method=method, random_state=0)
    others = s.nodes != 5
    model.fit(s.X[others], nodes=s.nodes[others])
    before = model.solution_
    few = np.flatnonzero(~others)[:15]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model.adapt(s.X[few], node=5)
    own = s.nodes_validation == 5
    return model, before, (s.X_validation[own], s.nodes_validation[own])


def test_an_adapted_node_has_levels_and_beats_both_its_own_fit_and_everyone(joined):
    model, before, (rows, nodes) = joined
    assert model.levels_.weights[-1].sum() == pytest.approx(1)
    weighed = model.score_samples(rows, nodes).mean()
    own, everyone = (model.node(5, level).score(rows) for level in ("own", "everyone"))
    assert weighed > own
    assert weighed > everyone - 0.02
    assert model.levels_.names[model.levels_.weights[-1].argmax()] != "own"
    assert "5" in model.explain(5)


def test_no_other_node_changes_and_the_network_is_stored_whole(joined, tmp_path):
    model, before, (rows, nodes) = joined
    for old, new in zip(before.theta.parts, model.solution_.theta.parts, strict=True):
        np.testing.assert_array_equal(old, new[:-1])
    for old, new in zip(before.levels.theta.parts, model.levels_.theta.parts, strict=True):
        np.testing.assert_array_equal(old, new[:, :-1])
    assert model.network_.neighbours(5) == ()
    assert model.trust_.groups[-1] == (5,)
    model.save(tmp_path / "model.safetensors")
    again = fm.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(
        again.score_samples(rows, nodes), model.score_samples(rows, nodes)
    )


def test_other_methods_fit_a_newcomer_to_its_own_rows():
    s = shifted_blocks(n_blocks=2, nodes_per_block=3, n_components=2, n_train=60, seed=5)
    own = s.nodes == 0
    model = model_of().adapt(s.X[own], node="c")
    assert list(model.nodes_) == ["a", "b", "c"]
    density = model.score(s.X[own], nodes=["c"] * own.sum())
    assert density > model.score(s.X[own], nodes=["a"] * own.sum())
    np.testing.assert_array_equal(model.means_[:2], np.stack([A.means, B.means]))
    with pytest.raises(ValueError, match="`node` is 'c', which is a node already"):
        model.adapt(s.X[own], node="c")
    alone = fm.NetworkGaussianMixture(2, method="local").fit(s.X[own])
    with pytest.raises(ValueError, match="fitted without `nodes`"):
        alone.adapt(s.X[own], node="c")
