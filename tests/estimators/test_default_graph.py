"""Who may listen to whom where no graph is given."""

import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators import default_graph as module
from fedmixtures.estimators.default_graph import default_graph
from fedmixtures.estimators.resolve import resolve_method


@pytest.fixture(scope="module")
def table():
    """60 nodes of 2 to 12 rows in four far groups, with gaps: no five nearest join the groups."""
    rng = np.random.default_rng(4)
    nodes = np.repeat([f"n{i:02d}" for i in range(60)], rng.integers(2, 13, size=60))
    group = np.repeat(np.arange(60) % 4, np.unique(nodes, return_counts=True)[1])
    X = 1e3 + 50.0 * group[:, None] + rng.normal(size=(len(nodes), 3)) * [1.0, 5.0, 0.1]
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, nodes, np.arange(60) % 4


def edges(network):
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    return {frozenset((network.labels[a], network.labels[b])) for a, b in ends}


def test_everybody_may_listen_to_everybody_of_some_hundreds(table, capsys):
    X, nodes, _ = table
    few = np.isin(nodes, np.unique(nodes)[:5])
    model = fm.NetworkGaussianMixture(1, random_state=0, verbose=True).fit(X[few], nodes=nodes[few])
    assert model.network_.n_edges == 10
    assert "no graph given: everybody may listen to everybody" in capsys.readouterr().out
    alone = fm.NetworkGaussianMixture(1, graph="none", random_state=0)
    assert alone.fit(X[few], nodes=nodes[few]).network_.n_edges == 0


def test_beyond_them_the_most_alike_are_joined_and_all_connected(table, monkeypatch):
    X, nodes, group = table
    monkeypatch.setattr(module, "EVERYBODY", 10)
    monkeypatch.setattr(module, "NEAREST", 4)
    network = default_graph(NodeData.from_rows(X, nodes), resolve_method("trust"))
    assert len(network.components()) == 1
    between = group[network.source] != group[network.target]
    assert 3 <= between.sum() <= 4  # as few as join four groups
    assert network.n_edges <= 60 * 4 + 4


def test_couplings_get_few_at_any_number_of_nodes(table):
    X, nodes, _ = table
    network = default_graph(NodeData.from_rows(X, nodes), resolve_method("gtv-mmd"))
    assert 60 * 5 / 2 <= network.n_edges <= 60 * 5 + 4
    assert len(network.components()) == 1


@pytest.mark.rounding
def test_neither_order_nor_rounding_nor_units_change_it(table):
    X, nodes, _ = table
    method = resolve_method("gtv-mmd")
    found = edges(default_graph(NodeData.from_rows(X, nodes), method))
    order = np.random.default_rng(0).permutation(len(X))
    assert edges(default_graph(NodeData.from_rows(X[order], nodes[order]), method)) == found
    other = X * [1e3, 1.0, 1e-2] + 7.0
    assert edges(default_graph(NodeData.from_rows(other, nodes), method)) == found
