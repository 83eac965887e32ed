"""The two recipes of extension, run: a discrepancy and a method of one's own, by name."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.methods import registry
from fedmixtures.methods.base import Method, Outcome
from fedmixtures.methods.protocol import Protocol, Sum
from helpers import lines_of_code


class MeansApart(fm.AbstractDiscrepancy):
    """Squared distance of the mixtures' overall means."""

    scale: float = 1.0
    symmetric = True
    smooth = True

    def freeze(self, own, neighbour, key):
        return neighbour.weights @ neighbour.means

    def __call__(self, own, frozen):
        return self.scale * jnp.square(own.weights @ own.means - frozen).sum()


class OneForAll(Protocol):
    """A Gaussian of all rows, from three sums."""

    reg_covar: float = 1e-6

    def run(self, block):
        nodes = [block.data.of(i) for i in range(block.data.n_nodes)]
        total = yield Sum((block.data.total_weights(), np.stack([w @ x for x, w in nodes])))
        mean = total[1] / total[0][:, None]
        spread = [(w[:, None] * (x - m)).T @ (x - m) for (x, w), m in zip(nodes, mean, strict=True)]
        second = yield Sum(np.stack(spread))
        covariance = second / total[0][:, None, None] + self.reg_covar * np.eye(mean.shape[1])
        return Outcome(fm.Mixture(np.ones((len(mean), 1)), mean[:, None], covariance[:, None]))


@pytest.fixture
def names():
    """What is registered in a test is gone after it."""
    methods, discrepancies = dict(registry._methods), dict(registry._discrepancies)
    yield
    for kept, now in ((methods, registry._methods), (discrepancies, registry._discrepancies)):
        now.clear()
        now.update(kept)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 2)) + np.repeat([0, 3], 30)[:, None], np.repeat(["a", "b"], 30)


def test_a_discrepancy_of_ones_own_is_a_method_by_name(names, rows):
    X, nodes = rows
    fm.register_discrepancy("means", MeansApart)
    assert registry.registered_classes()["MeansApart"] is MeansApart
    fits = [
        fm.NetworkGaussianMixture(1, graph="full", method=method, n_rounds=3, random_state=0)
        for method in ("gtv-means", fm.GTVMin(MeansApart()), fm.GTVMin(MeansApart(), alpha=0.0))
    ]
    by_name, by_hand, alone = (fit.fit(X, nodes=nodes).means_ for fit in fits)
    np.testing.assert_array_equal(by_name, by_hand)
    gap = lambda means: np.abs(means[0] - means[1]).max()
    assert gap(by_name) < gap(alone)
    assert lines_of_code(MeansApart) <= 8  # what CONTRIBUTING.md says


def test_a_method_of_ones_own_by_name(names, rows):
    X, nodes = rows
    fm.register_method("one-for-all", OneForAll)
    model = fm.NetworkGaussianMixture(1, method="one-for-all").fit(X, nodes=nodes)
    np.testing.assert_allclose(model.means_[0, 0], X.mean(0), rtol=1e-12)
    np.testing.assert_array_equal(model.means_[0], model.means_[1])
    assert model.traffic_.kinds["sum"]["requests"] == 2
    assert model.set_params(method__reg_covar=0.1).method == OneForAll(0.1)
    assert lines_of_code(OneForAll) <= 10  # what CONTRIBUTING.md says


def test_names_are_given_once_and_to_the_right_things(names):
    fm.register_method("local", registry.METHODS["local"])  # the same again is no harm
    with pytest.raises(ValueError, match="'local', which names a method already"):
        fm.register_method("local", OneForAll)
    with pytest.raises(ValueError, match="'mmd', which names a discrepancy already"):
        fm.register_discrepancy("mmd", MeansApart)
    with pytest.raises(ValueError, match="Give what makes a Method"):
        fm.register_method("dictionary", dict)
    with pytest.raises(ValueError, match="Give a subclass of AbstractDiscrepancy"):
        fm.register_discrepancy("method", Method)


@pytest.mark.parametrize("name", registry.METHODS)
def test_every_method_says_what_it_is(name):
    method = registry.method_named(name)
    assert method.kind in ("neighbours", "hub", "one-shot", "protocol")
    assert method.program().kind == method.kind
