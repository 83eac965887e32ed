"""A model for people to read: the page, notebooks, words, progress."""

import numpy as np
import pytest

from fedmixtures import NetworkGaussianMixture
from fedmixtures.methods.base import Diagnostics, Trust


def test_the_page_of_a_model(case, make, fitted, tmp_path):
    path = fitted.report(tmp_path / "page.html", case.X, case.nodes)
    text = path.read_text()
    assert "One mixture for each of 3 nodes." in text
    assert "cannot say" in text
    assert "Give `held_out=(X_test, nodes_test)`" in text
    assert "--holdout" not in text
    rng = np.random.default_rng(3)
    held = case.X + rng.normal(0, 0.1, case.X.shape)
    judged = fitted.report(
        tmp_path / "judged.html", case.X, case.nodes, held_out=(held, case.nodes)
    )
    assert "A held-out row of the median node became" in judged.read_text()
    alone = make(graph="none").fit(case.X, nodes=case.nodes)
    page = alone.report(tmp_path / "alone.html", case.X, case.nodes, held_out=(held, case.nodes))
    assert "Nobody listened to anybody." in page.read_text()
    static = fitted.report(tmp_path / "static.html", case.X, case.nodes, static=True)
    assert "<script" not in static.read_text()


def test_notebooks_show_the_network_once_it_is_fitted(make, fitted):
    assert "<svg" not in make()._repr_html_().split("sk-top-container")[0]
    shown = fitted._repr_mimebundle_()["text/html"]
    assert shown.count("<circle") == 3
    assert "3 nodes · 2 edges · completed after 3 rounds" in shown
    assert "NetworkGaussianMixture" in shown  # scikit-learn's diagram follows


def test_labels_of_nodes_are_no_markup(case, make):
    names = np.array(["<b>x</b>", "b", "c"])[np.unique(case.nodes, return_inverse=True)[1]]
    model = make(graph="full", n_rounds=0).fit(case.X, nodes=names)
    assert "<b>x</b>" not in model._repr_html_()


def test_a_node_in_words(fitted):
    assert fitted.explain("b") == "Node 'b' has 2 components.\nIt listens to 'a' and 'c'."
    with pytest.raises(ValueError, match="there is no node 'z'"):
        fitted.explain("z")


def test_a_node_in_words_with_trust_and_evidence(case, fitted):
    import dataclasses

    edges = {
        "trusted": np.array([[True, True], [True, False]]),
        "gain": np.array([[0.5, 0.25], [0.1, -0.75]]),
    }
    diagnostics = Diagnostics({}, edges)
    solution = dataclasses.replace(fitted.solution_, diagnostics=diagnostics)
    model = NetworkGaussianMixture(2).adopt(solution, fitted.network_)
    assert isinstance(model.trust_, Trust)
    assert model.trust_.groups == [("a", "b"), ("c",)]
    assert model.explain("b").splitlines() == [
        "Node 'b' has 2 components.",
        "It trusts 'a'.",
        "It does not trust 'c'.",
        "  'a': gain 0.25",
        "  'c': gain 0.1",
        "Its group: 'a'.",
    ]
    assert "It trusts no neighbour." in model.explain("c")
    assert model.trust_.edges()[1] == {
        "source": "b",
        "target": "c",
        "trusted": False,
        "gain": (0.1, -0.75),
    }


def test_verbose_fits_tell_what_they_are_at(case, make, capsys):
    make().fit(case.X, nodes=case.nodes)
    assert capsys.readouterr().out == ""
    make(verbose=True).fit(case.X, nodes=case.nodes)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("120 rows of 3 nodes, 2 edges, by GTVMin")
    assert lines[-1].endswith("completed after 3 rounds")
    assert float(lines[0][1:8]) < 1  # the first sign of life


def test_the_default_method_has_a_page(case, make, tmp_path):
    model = make(method="trust").fit(case.X, nodes=case.nodes)
    assert "edges" in model.report(tmp_path / "page.html", case.X, case.nodes).read_text()
