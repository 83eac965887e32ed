"""One small network that most tests of the estimator share, so that programs compile once."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedmixtures import NetworkGaussianMixture
from fedmixtures.engine.options import used
from fedmixtures.estimators.resolve import resolve_method
from fedmixtures.methods.registry import METHODS


@pytest.fixture(scope="session")
def case():
    """Three nodes of forty rows, two components each, on a path a - b - c."""
    rng = np.random.default_rng(0)
    parts = [rng.normal((-3, 0), 0.6, (60, 2)), rng.normal((3, 1), 0.9, (60, 2))]
    X = rng.permutation(np.concatenate(parts))
    nodes = np.repeat(["a", "b", "c"], 40)
    return SimpleNamespace(X=X, nodes=nodes, graph=[("a", "b"), ("b", "c", 0.5)])


def estimator(case, **options):
    """An unfitted estimator for it."""
    method = options.get("method", "gtv-mmd")
    settings = {"graph": case.graph, "method": method, "random_state": 0}
    if not isinstance(method, str) or method in METHODS:  # else it is to be refused
        settings |= used(resolve_method(method), n_rounds=3)
    return NetworkGaussianMixture(2, **{**settings, **options})


@pytest.fixture(scope="session")
def fitted(case):
    """Fitted once; not to be changed."""
    return estimator(case).fit(case.X, nodes=case.nodes)


@pytest.fixture
def make(case):
    """`make(**options)`: an unfitted estimator for the shared network."""
    return lambda **options: estimator(case, **options)
