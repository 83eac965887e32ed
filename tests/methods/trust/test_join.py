"""Step 9: which components are one cluster, from sums of products of memberships."""

import numpy as np
import pytest

from fedmixtures import NetworkGaussianMixture, TrustThenPool
from fedmixtures.graph.network import Network
from fedmixtures.methods.trust_then_pool.join import ALIKE, joined


def _table(members, count=None):
    members = np.asarray(members, float)
    return np.einsum("rk,rl->kl", members, members)[None]


UNSURE = [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
"""Two components that half of their rows cannot tell apart, and one that is for itself."""
GROUP = np.zeros(1, np.int64)


def test_what_rows_cannot_tell_apart_is_one_cluster():
    table = _table(UNSURE)
    share = table[0, 0, 1] / table[0, 0].sum()
    assert share == pytest.approx(0.25)
    assert share > ALIKE
    found = joined(table, table, GROUP, "auto")
    assert found.cluster.tolist() == [[0, 0, 1]]  # the largest first
    assert found.unsure[0] == pytest.approx([0.0, 0.0])


def test_a_number_is_kept():
    table = _table(UNSURE)
    assert joined(table, table, GROUP, 3).cluster.max() == 2
    assert joined(table, table, GROUP, 2).cluster.tolist() == [[0, 0, 1]]
    assert joined(table, table, GROUP, 1).cluster.tolist() == [[0, 0, 0]]


def test_how_unsure_memberships_are_is_the_mean_of_their_variances():
    members = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0]])
    table = _table(members)
    found = joined(table, table, GROUP, 2)
    order = np.argsort(found.cluster[0])
    np.testing.assert_allclose(found.unsure[0], (members * (1 - members)).mean(0)[order])


def test_joining_goes_on_with_what_was_joined():
    # 0 and 1 overlap, 1 and 2 overlap: a chain becomes one
    chain = [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    table = _table(chain)
    assert joined(table, table, GROUP, "auto").cluster.tolist() == [[0, 0, 0, 1]]


def test_the_order_of_components_changes_names_alone():
    table, order = _table(UNSURE), np.array([2, 0, 1])
    turned = table[:, order][:, :, order]
    one, other = (joined(t, t, GROUP, "auto").cluster[0] for t in (table, turned))
    assert one[order].tolist() == other.tolist()


def test_networks_are_joined_each_by_its_own_total():
    one, other = _table(UNSURE), _table(np.eye(3).repeat([3, 2, 1], axis=0))
    own = np.concatenate([one, one, other])
    total = np.concatenate([2 * one, 2 * one, other])
    found = joined(own, total, np.array([7, 7, 3]), "auto")
    assert found.cluster.tolist() == [[0, 0, 1], [0, 0, 1], [0, 1, 2]]


def test_components_that_no_row_speaks_for_make_no_cluster():
    table = _table([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    found = joined(table, table, GROUP, "auto")
    assert found.cluster.tolist() == [[0, 1, 0]]
    broken = np.full_like(table, np.nan)
    assert joined(broken, broken, GROUP, "auto").cluster.tolist() == [[0, 0, 0]]


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="`n_clusters`"):
        TrustThenPool(n_clusters=0)
    with pytest.raises(ValueError, match="level personal"):
        TrustThenPool(n_clusters="auto", levels=("own",))


@pytest.mark.filterwarnings("ignore:.*no edge.*")
def test_levels_that_all_share_need_no_folds_of_own_fits():
    """What a number of components is worth costs a fraction of a fit, and is the same."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 2)) + 5 * rng.integers(2, size=(90, 1))
    nodes = np.repeat(["a", "b", "c"], 30)
    found = [
        NetworkGaussianMixture(2, method=TrustThenPool(levels=levels), graph=graph, random_state=0)
        .fit(X, nodes=nodes)
        .levels_.evidence[:, 0]
        for levels in (("personal",), ("personal", "own"))
        for graph in ("full", Network.from_edges([("a", "b")], ["a", "b", "c"]))
    ]
    np.testing.assert_allclose(found[0], found[2], atol=1e-9)
    np.testing.assert_allclose(found[1], found[3], atol=1e-9)  # c is alone, and judged by itself
