"""What users get wrong, and what they are told: argument, what came, what to do."""

import numpy as np
import pytest

from fedmixtures import KL, MMD, FeasibleSet, GTVMin, KMeansStart, NetworkGaussianMixture
from helpers import mixture, stack


def refused(case, message, *, X=None, nodes=None, sample_weight=None, **options):
    model = NetworkGaussianMixture(
        2, graph=case.graph, method="gtv-mmd", n_rounds=3, random_state=0
    )
    model.set_params(**options)  # stores whatever comes, as the constructor does
    X = case.X if X is None else X
    nodes = case.nodes if nodes is None else nodes
    with pytest.raises(ValueError, match=message):
        model.fit(X, nodes=nodes, sample_weight=sample_weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "`n_components` is 0. Give a whole number of at least 1"),
        ({"n_components": 2.0}, r"`n_components` is 2\.0. Give a whole number"),
        ({"n_components": {"a": 2, "b": 2}}, "`n_components` names no number for node 'c'"),
        ({"n_components": {"a": 2, "b": 2, "c": 0}}, r"`n_components\['c'\]` is 0"),
        ({"n_rounds": -1}, "`n_rounds` is -1. Give a whole number of at least 0"),
        ({"dtype": "float16"}, "`dtype` is 'float16'. Choose from float64, float32"),
        ({"report_every": 0}, "`report_every` is 0. Give a whole number of at least 1"),
        ({"method": "gtv-mdm"}, r"`method` is 'gtv-mdm'. Choose from .* Did you mean 'gtv-mmd'\?"),
        ({"method": 3}, r"`method` is 3. Give one of .*, or an object such as GTVMin\(MMD\(\)"),
        ({"init": "kmean"}, "is 'kmean'. Choose from kmeans, local. Did you mean 'kmeans'"),
        ({"init": 3}, r"`init` is 3. Give 'kmeans', 'local', KMeansStart\(...\), Local\("),
        ({"random_state": "x"}, "cannot be used to seed"),
        ({"graph": "knn:x"}, "`graph` is 'knn:x'. Write 'knn' or, say, 'knn:5'"),
        ({"graph": "star"}, "`graph` is 'star'"),
        ({"graph": [("a", "b"), ("b", "d")]}, r"edge \('b', 'd'\) names 'd', not among"),
        ({"graph": [("a", "a")]}, r"edge \('a', 'a'\) is a self-loop"),
        ({"graph": np.eye(4)}, r"matrix of shape \(4, 4\), but there are 3 nodes"),
    ],
)
def test_settings(case, options, message):
    refused(case, message, **options)


def test_graph_and_data_must_have_the_same_nodes(case):
    import networkx

    small = networkx.Graph([("a", "b")])
    refused(case, "'c' holds data but is not in `graph`. Add it .isolated nodes", graph=small)
    large = networkx.Graph([("a", "b"), ("b", "c"), ("c", "h13"), ("a", "h14")])
    refused(case, "'h13' and 'h14' are in `graph` but hold no data. Remove them", graph=large)


def test_labels(case):
    refused(
        case, "`nodes` has 119 labels but X has 120 rows. Give one node label", nodes=case.nodes[1:]
    )
    nodes = case.nodes.astype(object)
    nodes[[4, 7]] = None
    refused(case, "`nodes` is missing for 2 rows, the first is row 4", nodes=nodes)
    nodes[[4, 7]] = "a"
    nodes[[5, 9]] = ""
    refused(case, r"`nodes` is empty \(''\) for 2 rows, the first is row 5", nodes=nodes)
    refused(case, "`nodes` is the column name 'site', but X is a ndarray without", nodes="site")
    refused(case, r"`nodes` has shape \(120, 2\)", nodes=np.zeros((120, 2)))


def test_rows(case):
    X = case.X.copy()
    X[5, 1] = np.nan
    nan = r"X contains NaN at row 5, column 1, node 'a' \(1 such values in all\)"
    refused(case, nan, X=X, method="fedkmeans")
    X[5, 1], X[90, 0] = 0.0, np.inf
    refused(case, r"X contains infinity \(inf\) at row 90, column 0, node 'c'", X=X)


def test_a_text_column_is_named(case):
    import pandas

    frame = pandas.DataFrame(case.X, columns=["age", "dose"])
    frame["sex"] = np.where(case.X[:, 0] > 0, "m", "f")
    first = frame["sex"][0]
    refused(case, f"column 'sex' of X holds the text '{first}' at row 0. Features must be", X=frame)
    refused(case, "column 2 of X holds the text", X=frame.to_numpy())
    frame = frame.drop(columns="sex").astype(object)
    frame.loc[7, "dose"] = "high"
    refused(case, "column 'dose' of X holds the text 'high' at row 7", X=frame)


def test_sample_weights(case):
    n = len(case.X)
    refused(case, r"`sample_weight` has shape \(3,\) but X has 120 rows", sample_weight=[1, 2, 3])
    bad = np.ones(n)
    bad[8] = -1
    refused(case, "`sample_weight` is -1 at row 8. Give finite weights", sample_weight=bad)
    none_of_b = (case.nodes != "b").astype(float)
    message = "`sample_weight` is zero for every row of node 'b'. Drop the node or give it"
    refused(case, message, sample_weight=none_of_b)


def test_given_starts(case):
    two = mixture(0, 2, 2)
    refused(case, "`init` names no mixture for node 'c'", init={"a": two, "b": two})
    wrong = {"a": two, "b": two, "c": mixture(0, 3, 2)}
    refused(
        case, r"`init\['c'\]` has means of shape \(3, 2\) but the node needs \(2, 2\)", init=wrong
    )
    stacked = {"a": two, "b": two, "c": stack(0, 2, 2, 2)}
    refused(case, r"`init\['c'\]` has means of shape \(2, 2, 2\)", init=stacked)
    refused(case, r"`init\['b'\]` is 5. Give a Mixture", init={"a": two, "b": 5, "c": two})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GTVMin(alpha=-0.5), "`alpha` is -0.5. Give zero or a positive number"),
        (lambda: GTVMin(alpha=float("nan")), "`alpha` is nan"),
        (lambda: GTVMin(n_local_steps=0), "`n_local_steps` is 0. Give a whole number"),
        (lambda: GTVMin(learning_rate=0.0), "`learning_rate` is 0.0. Give a positive number"),
        (
            lambda: GTVMin(KL(), learning_rate="auto"),
            "`learning_rate` is 'auto', but KL draws new points every round",
        ),
        (lambda: KMeansStart(n_init=0), "`n_init` is 0"),
        (
            lambda: KMeansStart(reg_covar=-1.0),
            "`reg_covar` is -1.0. Give zero or a positive number",
        ),
    ],
)
def test_objects(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_floors_of_weights_must_fit(case):
    method = GTVMin(MMD(), feasible=FeasibleSet(min_weight=0.6))
    refused(case, "`min_weight`=0.6 times n_components=2 exceeds 1. Lower", method=method)


def test_prediction(case, fitted):
    with pytest.raises(ValueError, match="`nodes` is missing. The model was fitted with it"):
        fitted.predict(case.X)
    with pytest.raises(ValueError, match="there is no node 'z'. Known nodes are 'a', 'b' and 'c'"):
        fitted.node("z")
    with pytest.raises(ValueError, match="`n_samples` is 0. Give a whole number of at least 1"):
        fitted.sample(0)
    with pytest.raises(ValueError, match="X has 3 features"):
        fitted.predict(np.zeros((2, 3)), nodes=["a", "b"])
    alone = NetworkGaussianMixture(2, method="local", random_state=0).fit(case.X)
    with pytest.raises(ValueError, match="`nodes` was given, but the model was fitted without"):
        alone.predict(case.X, nodes=case.nodes)
