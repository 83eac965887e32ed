"""Methods and discrepancies of one's own between silos: known at both ends and to the gate."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import fedmixtures as fm
from federated import SITES, WIDE_OPEN, Sites, a_job, engine_solution, site_rows
from fedmixtures.federation.explain import explain
from fedmixtures.federation.job import JobError
from fedmixtures.federation.node.crossing import LEAVES
from fedmixtures.federation.node.release import RULES
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.methods import registry
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import Protocol, Sum

ROWS = site_rows((60, 60, 60, 60))


class MeansApart(fm.AbstractDiscrepancy):
    """Squared distance of the mixtures' overall means."""

    symmetric = True
    smooth = True

    def freeze(self, own, neighbour, key):
        return neighbour.weights @ neighbour.means

    def __call__(self, own, frozen):
        return jnp.square(own.weights @ own.means - frozen).sum()


class OneForAll(Protocol):
    """A Gaussian of all rows, from three sums."""

    sends: ClassVar[tuple[type, ...]] = (Sum,)

    def run(self, block):
        nodes = [block.data.of(i) for i in range(block.data.n_nodes)]
        total = yield Sum((block.data.total_weights(), np.stack([w @ x for x, w in nodes])))
        mean = total[1] / total[0][:, None]
        spread = [(w[:, None] * (x - m)).T @ (x - m) for (x, w), m in zip(nodes, mean, strict=True)]
        covariance = (yield Sum(np.stack(spread))) / total[0][:, None, None]
        return Outcome(fm.Mixture(np.ones((len(mean), 1)), mean[:, None], covariance[:, None]))


class Mute(OneForAll):
    """It does not say what it sends."""

    sends: ClassVar[tuple[type, ...]] = ()


class Loud(OneForAll):
    """It sends rows, for which there is no rule."""

    sends: ClassVar[tuple[type, ...]] = (Sum, np.ndarray)


class Sly(OneForAll):
    """It sends what it does not say."""

    sends: ClassVar[tuple[type, ...]] = (fm.methods.protocol.Connect,)


@pytest.fixture
def names():
    """What is registered in a test is gone after it."""
    methods, discrepancies = dict(registry._methods), dict(registry._discrepancies)
    yield
    for kept, now in ((methods, registry._methods), (discrepancies, registry._discrepancies)):
        now.clear()
        now.update(kept)


def test_a_method_of_ones_own_crosses_with_the_engine_s_numbers(names, tmp_path):
    fm.register_method("one-for-all", OneForAll)
    job = a_job(OneForAll(), n_components=dict.fromkeys(SITES, 1))
    sites = Sites(tmp_path, ROWS, gate=WIDE_OPEN, methods=("one-for-all",))
    sites.run(job)
    alone = engine_solution(job, ROWS, block_size=None)
    for name, found in sites.results(job).items():
        for one, other in zip(found.parts, alone.mixture(name).parts, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)  # sums are in steps of 2^-24
    page = " ".join(explain(job, sites.nodes["cork"].config).split())
    assert "What its part of sums of statistics over at least three sites." in page
    assert "bit to each neighbour" not in page


def test_a_discrepancy_of_ones_own_crosses_with_the_engine_s_numbers(names, tmp_path):
    fm.register_discrepancy("means", MeansApart)
    job = a_job(fm.GTVMin(MeansApart(), alpha=0.05, feasible=fm.FeasibleSet()), n_rounds=3)
    sites = Sites(tmp_path, ROWS, methods=("gtv-means",))
    sites.run(job)
    alone = engine_solution(job, ROWS, block_size=1)
    for name, found in sites.results(job).items():
        np.testing.assert_allclose(found.means, alone.mixture(name).means, atol=1e-9)


def test_one_that_a_site_lacks_is_refused_there_before_anything_starts(names, tmp_path):
    fm.register_method("one-for-all", OneForAll)
    job = a_job(OneForAll(), n_components=dict.fromkeys(SITES, 1))
    del registry._methods["one-for-all"]  # as at a site that has not installed the package
    sites = Sites(tmp_path, ROWS)
    with pytest.raises(
        NodeRefused, match="needs 'OneForAll', which nothing that is installed here registers"
    ):
        sites.run(job)
    assert not list(tmp_path.glob("*/test-*"))


def test_one_that_a_site_does_not_allow_is_refused_there(names, tmp_path):
    fm.register_method("one-for-all", OneForAll)
    job = a_job(OneForAll(), n_components=dict.fromkeys(SITES, 1))
    with pytest.raises(NodeRefused, match="'one-for-all' is not among those allowed: trust"):
        Sites(tmp_path, ROWS, methods=("trust",)).run(job)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Mute, "Mute does not run between silos: it does not say what its nodes send"),
        (Loud, "it sends 'ndarray', for which the release gate has no rule"),
    ],
)
def test_one_without_a_rule_at_the_gate_is_refused_to_the_researcher(names, kind, why):
    fm.register_method("mine", kind)
    with pytest.raises(JobError, match=why):
        a_job(kind(), n_components=dict.fromkeys(SITES, 1))


def test_what_a_method_does_not_say_it_cannot_send(names, tmp_path):
    fm.register_method("sly", Sly)
    job = a_job(Sly(), n_components=dict.fromkeys(SITES, 1))
    with pytest.raises(NodeRefused, match="sends a Sum, which it does not say"):
        Sites(tmp_path, ROWS).run(job)


def test_a_job_cannot_pass_a_protocol_off_as_rounds_between_neighbours(names, tmp_path):
    from dataclasses import replace

    job = replace(a_job(fm.TrustThenPool()), kind="neighbours")
    with pytest.raises(NodeRefused, match="of a method that is of another kind"):
        Sites(tmp_path, ROWS).run(job)


def test_whatever_methods_may_send_has_a_rule_at_the_gate():
    assert set(LEAVES.values()) <= set(RULES)


def test_installed_packages_register_by_an_entry_point(names, monkeypatch):
    """A site's process is started by its carrier: nobody can register anything in it by hand."""

    class Plugin(EntryPoint):
        def load(self):
            fm.register_method("one-for-all", OneForAll)

    found = [Plugin("mine", "mine", registry.PLUGINS)]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    registry._load_plugins.cache_clear()
    assert isinstance(registry.method_named("one-for-all"), OneForAll)
    registry._load_plugins.cache_clear()
