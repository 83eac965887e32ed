"""scikit-learn's own demands: its checks, cloning, nested parameters, grids, pickles."""

import inspect
import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedmixtures import (
    KL,
    MMD,
    Euclidean,
    FeasibleSet,
    GTVMin,
    KMeansStart,
    NetworkGaussianMixture,
)


# What scikit-learn asks of an estimator does not depend on the method: with one that compiles next
# to nothing in `make test`, with those that compile a program for every shape in `make slow`.
@parametrize_with_checks([NetworkGaussianMixture(1, method="local")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:`n_clusters` is")  # the checks set it beside n_components
def test_scikit_learn_checks(estimator, check, monkeypatch):
    run_check(estimator, check, monkeypatch)


@pytest.mark.slow
@parametrize_with_checks(
    [NetworkGaussianMixture(1), NetworkGaussianMixture(1, method="gtv-mmd", n_rounds=3)]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:`n_clusters` is")  # the checks set it beside n_components
def test_scikit_learn_checks_with_methods_that_exchange(estimator, check, monkeypatch):
    run_check(estimator, check, monkeypatch)


def run_check(estimator, check, monkeypatch):
    # The constructor only stores; annotations, which tests check, are not to stop it.
    plain = inspect.unwrap(NetworkGaussianMixture.__init__)
    monkeypatch.setattr(NetworkGaussianMixture, "__init__", plain)
    check(estimator)


# parameters --------------------------------------------------------------------------------------


def test_parameters_of_a_method_by_name_are_seen_as_those_of_its_object():
    by_name = NetworkGaussianMixture(method="gtv-kl").get_params()
    by_object = NetworkGaussianMixture(method=GTVMin(KL())).get_params()
    assert by_name["method"] == "gtv-kl"
    for params in (by_name, by_object):
        assert params["method__alpha"] == 1.0
        assert params["method__discrepancy"] == KL()
        assert params["method__discrepancy__n_samples"] == 50
        assert params["init__n_init"] == 10
    assert "method__alpha" not in NetworkGaussianMixture(method="gtv-kl").get_params(deep=False)
    assert NetworkGaussianMixture().get_params()["method"] == "trust"


def test_nested_parameters_replace_frozen_objects():
    model = NetworkGaussianMixture(method="gtv-mmd")
    model.set_params(method__alpha=0.3, method__discrepancy__bandwidths=(1.0,), n_rounds=7)
    assert model.method == GTVMin(MMD(bandwidths=(1.0,)), alpha=0.3)
    assert model.n_rounds == 7
    model.set_params(init__n_init=3)
    assert model.init == KMeansStart(n_init=3)
    # whole objects go first, whatever the order of the keywords
    model.set_params(method__discrepancy__n_samples=5, method__discrepancy=KL(), method="gtv-kl")
    assert model.method == GTVMin(KL(n_samples=5))
    feasible = FeasibleSet(min_weight=0.05)
    model.set_params(method__feasible=feasible).set_params(method__feasible__min_weight=0.1)
    assert model.method.feasible == FeasibleSet(min_weight=0.1)


def test_setting_a_parameter_leaves_the_given_object_alone():
    given = GTVMin(Euclidean(), alpha=0.5)
    first = NetworkGaussianMixture(method=given)
    second = clone(first).set_params(method__alpha=9.0)
    assert (first.method.alpha, given.alpha, second.method.alpha) == (0.5, 0.5, 9.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"method__beta": 1},
            r"Invalid parameter 'beta' for `method` \(GTVMin\). Valid ones: .*discrepancy",
        ),
        (
            {"method__discrepancy__width": 1},
            r"'width' for `method__discrepancy` \(MMD\). Valid ones: bandwidths",
        ),
        ({"nothing": 1}, "Invalid parameter 'nothing'"),
        ({"graph__x": 1}, "Invalid parameter 'graph__x' for NetworkGaussianMixture"),
        ({"method__alpha": -1.0}, "`alpha` is -1.0. Give zero or a positive number"),
    ],
)
def test_impossible_parameters_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        NetworkGaussianMixture(method="gtv-mmd").set_params(**params)


def test_clone_is_equal_and_fits_the_same(case, make):
    model = make(method=GTVMin(MMD(), alpha=0.7))
    copy = clone(model)
    assert copy.method == model.method
    assert copy.get_params()["method__alpha"] == 0.7
    np.testing.assert_array_equal(
        copy.fit(case.X, nodes=case.nodes).means_, model.fit(case.X, nodes=case.nodes).means_
    )


def test_constructor_only_stores():
    """Nonsense is refused by fit, not before, and what is given is kept as it is."""
    graph = [("a", "b")]
    model = NetworkGaussianMixture(0, graph=graph, method="nonsense", n_rounds=-1)
    assert model.graph is graph
    assert (model.n_components, model.method, model.n_rounds) == (0, "nonsense", -1)


def test_pickle_keeps_everything(case, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(
        copy.predict(case.X, case.nodes), fitted.predict(case.X, case.nodes)
    )
    assert copy.mixtures_.keys() == fitted.mixtures_.keys()
    assert copy.network_ == fitted.network_
    assert copy.history_.objective.tolist() == fitted.history_.objective.tolist()


def test_grid_over_nested_parameters_with_routing_of_nodes(case, make):
    with sklearn.config_context(enable_metadata_routing=True):
        model = make().set_fit_request(nodes=True).set_score_request(nodes=True)
        folds = list(StratifiedKFold(2).split(case.X, case.nodes))
        grid = GridSearchCV(
            model,
            {"method": ["gtv-mmd", "gtv-euclidean"], "method__alpha": [0.1, 1]},
            cv=folds,
            error_score="raise",
        ).fit(case.X, nodes=case.nodes)
        assert len(grid.cv_results_["params"]) == 4
        best = grid.best_estimator_
        assert best.method.alpha == grid.best_params_["method__alpha"]
        assert set(best.mixtures_) == {"a", "b", "c"}
        train, test = folds[0]
        by_hand = clone(model).set_params(**grid.best_params_)
        by_hand.fit(case.X[train], nodes=case.nodes[train])
        assert grid.cv_results_["split0_test_score"][grid.best_index_] == pytest.approx(
            by_hand.score(case.X[test], nodes=case.nodes[test])
        )
