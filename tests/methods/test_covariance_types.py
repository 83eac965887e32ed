"""Covariance types: scikit-learn's numbers at one node, and every method keeps to its type."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fedmixtures import (
    DFMR,
    IFCA,
    KL,
    MMD,
    CColME,
    Centralized,
    ConsensusEM,
    Euclidean,
    FedEM,
    FedeRiCo,
    FedGEM,
    FedGenGMM,
    FedGrEM,
    FitWarning,
    GraphFedEM,
    GTVMin,
    Local,
    Mixture,
    NetworkGaussianMixture,
    ShapePrior,
    TrustThenPool,
    load,
    select_components,
    to_sklearn,
)
from fedmixtures.engine.options import used
from fedmixtures.estimators.resolve import resolve_method
from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.covariance_types import TYPES, is_of_type, n_parameters, of_type
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.m_step import m_step
from fedmixtures.mixture.moments import plain_statistics
from helpers import draw, mixture

KINDS = ["full", "tied", "diag", "spherical"]
EM_METHODS = [
    Local(n_init=2),
    Centralized(n_init=2, engine="jax"),
    FedGrEM(n_orders=5),
    ConsensusEM(align=True),
    FedEM(),
    FedGenGMM(n_init=2, engine="jax", samples_per_component=20),
    IFCA(n_groups=2, restarts=1),
    CColME(n_init=1, n_rounds=3),
    DFMR(n_init=1),
    FedGEM(n_init=1, n_rounds=3),
    GraphFedEM(n_init=1, n_rounds=3),
]


@pytest.mark.parametrize("engine", ["jax", "sklearn"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_node_is_scikit_learn_from_the_same_start(kind, engine):
    X = draw(mixture(4, k=3, d=3), 80)
    start = mixture(5, k=3, d=3)
    typed = to_sklearn(of_type(start, kind), kind)
    theirs = GaussianMixture(
        3,
        covariance_type=kind,
        weights_init=typed.weights_,
        means_init=typed.means_,
        precisions_init=typed.precisions_,
        tol=0.0,
        max_iter=30,
    )
    method = Local(engine=engine, tol=0.0, max_iter=30)
    model = NetworkGaussianMixture(3, method=method, covariance_type=kind, init={0: start})
    with pytest.warns(ConvergenceWarning):
        theirs.fit(X)
    with pytest.warns(FitWarning, match="not settled"):
        model.fit(X, nodes=np.zeros(80, int))
    ours = model.node(0)
    for name in ("weights_", "means_", "covariances_", "precisions_cholesky_", "precisions_"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-8)
    nodes = {"nodes": np.zeros(80, int)}
    np.testing.assert_allclose(model.score_samples(X, **nodes), theirs.score_samples(X), atol=1e-8)
    assert model.bic(X, **nodes) == pytest.approx(theirs.bic(X), abs=1e-6)
    assert model.aic(X, **nodes) == pytest.approx(theirs.aic(X), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_parameters_is_scikit_learns(kind):
    model = to_sklearn(of_type(mixture(0, k=3, d=4), kind), kind)
    assert n_parameters(kind, 3, 4) == model._n_parameters()


@pytest.mark.parametrize("prior", [None, ShapePrior(5.0, 2.0)], ids=["likelihood", "prior"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_no_covariance_of_the_type_is_better_than_the_m_steps(kind, prior):
    """Small moves within the type lower what the M-step maximises."""
    rng = np.random.default_rng(0)
    with double():
        theta, rows = Mixture.stack([mixture(1, 3, 3)]), draw(mixture(1, 3, 3), 50)
        s = plain_statistics(theta, jnp.asarray(rows[None]), jnp.ones((1, 50)))
        new = m_step(theta, s, 0.0, prior, kind)
    mass = np.asarray(s.mass)[0]
    shift = np.asarray(s.first)[0] / mass[:, None]
    within = np.asarray(s.second)[0] / mass[:, None, None] - shift[:, :, None] * shift[:, None]
    if prior is not None:
        average = np.einsum("k,kij->ij", mass / mass.sum(), within)
        within = (mass[:, None, None] * within + prior.strength * average) / (
            mass + prior.strength
        )[:, None, None]
        mass = mass + prior.strength

    def value(covariances):
        inverse = np.linalg.inv(covariances)
        return -mass @ (
            np.linalg.slogdet(covariances)[1] + np.einsum("kij,kji->k", inverse, within)
        )

    best = np.asarray(new.covariances)[0]
    for _ in range(20):
        move = rng.normal(size=(3, 3, 3))
        move = TYPES[kind].project(move + np.swapaxes(move, 1, 2), np.ones(3))
        assert value(best + 1e-3 * move) < value(best)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_projection_goes_to_the_nearest_point_of_type_and_bounds(kind):
    rng = np.random.default_rng(1)
    raw = rng.normal(size=(3, 4, 4)) * 2
    p = of_type(mixture(0, 3, 4), "full")
    covariances = raw + np.swapaxes(raw, 1, 2)
    given = traced(p.weights, p.means, covariances)
    project = jit(FeasibleSet(1e-3, 1e3, 0.5, 2.0, covariance_type=kind).project)
    with double():
        found = project(given).to_numpy()
        again = project(traced(*found.parts)).to_numpy()
    assert is_of_type(found, kind)
    np.testing.assert_allclose(again.covariances, found.covariances, atol=1e-12)
    distance = np.square(covariances - found.covariances).sum()
    for _ in range(50):
        other = rng.normal(size=(3, 4, 4))
        other = traced(p.weights, p.means, other @ np.swapaxes(other, 1, 2))
        with double():
            other = project(other).to_numpy().covariances
        # A projection onto a convex set: no member lies behind the tangent plane.
        towards = ((covariances - found.covariances) * (other - found.covariances)).sum()
        assert towards <= 1e-9 * distance


def traced(*parts):
    with double():
        return Mixture(*map(jnp.asarray, parts))


@pytest.mark.parametrize("method", EM_METHODS, ids=lambda m: type(m).__name__)
def test_every_em_method_keeps_to_its_type(method, alike):
    model = fit(alike, method, covariance_type="tied")
    assert all(is_of_type(mixture, "tied") for mixture in model.mixtures_.values())
    assert model.node(1).covariance_type == "tied"


def fit(case, method, **more):
    settings = used(resolve_method(method), n_rounds=3) | {"random_state": 7} | more
    settings = {"graph": case.network} | settings
    return NetworkGaussianMixture(3, method=method, **settings).fit(case.X, nodes=case.nodes)


def test_a_union_of_tied_mixtures_is_not_tied(alike):
    model = fit(alike, FedeRiCo(n_init=1, n_rounds=1), covariance_type="tied")
    assert model.node(1).covariance_type == "full"
    with pytest.raises(ValueError, match="'tied', but the mixture has other covariances"):
        to_sklearn(model.mixtures_[1], "tied")


COUPLINGS = [
    *((GTVMin(Euclidean(), alpha=0.1, n_local_steps=1), kind) for kind in KINDS[1:]),
    (GTVMin(MMD(), alpha=0.1, n_local_steps=1), "spherical"),
    (GTVMin(KL(n_samples=20), alpha=0.1), "diag"),
    (GTVMin(MMD(), alpha=0.1, n_local_steps=1, solver="em"), "tied"),
]


@pytest.mark.parametrize(("method", "kind"), COUPLINGS, ids=lambda part: str(part)[:40])
def test_couplings_descend_within_their_type(method, kind, alike):
    model = fit(alike, method, covariance_type=kind, n_rounds=8)
    assert all(is_of_type(mixture, kind) for mixture in model.mixtures_.values())
    objective = model.history_.objective
    if not method.discrepancy.random:
        assert (np.diff(objective) < 0).all()


@pytest.mark.parametrize("kind", ["tied", "diag"])
def test_alone_the_em_solver_ends_where_em_ends(kind, alike):
    start = fit(alike, "gtv-mmd", n_rounds=0).mixtures_
    coupled = GTVMin(MMD(), alpha=0.0, solver="em")
    ours = fit(alike, coupled, covariance_type=kind, init=start, n_rounds=100)
    local = Local(engine="jax", reg_covar=0.0, tol=1e-12, max_iter=3000)
    theirs = fit(alike, local, covariance_type=kind, init=start)
    np.testing.assert_allclose(ours.history_.fit[-1], theirs.history_.fit[-1], rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_trust_keep_to_their_type_in_the_users_units(kind, alike):
    X = alike.X * [1.0, 30.0]
    method = TrustThenPool(n_starts=1, pool_steps=(1, 1, 2))
    model = NetworkGaussianMixture(
        3, graph="full", method=method, covariance_type=kind, random_state=0
    ).fit(X, nodes=alike.nodes)
    levels = model.levels_
    for number, name in enumerate(levels.names):
        for node in range(6):
            assert is_of_type(levels.theta.at(number).at(node), kind), name
    joined = model.node(0, level="density").covariance_type
    assert joined == ("full" if kind == "tied" else kind)
    assert np.isfinite(model.score(X, nodes=alike.nodes))


def test_a_stored_model_remembers_its_type(alike, tmp_path):
    model = fit(alike, "local", covariance_type="diag")
    again = load(model.save(tmp_path / "model.safetensors"))
    assert again.node(2).covariance_type == "diag"
    assert again.bic(alike.X, nodes=alike.nodes) == model.bic(alike.X, nodes=alike.nodes)


def test_bic_prefers_the_type_that_made_the_rows():
    made = of_type(mixture(3, k=2, d=4, spread=4.0), "diag")
    X, nodes = draw(made, 120), np.repeat(["a", "b"], 60)
    bic = {
        kind: NetworkGaussianMixture(2, method="local", covariance_type=kind, random_state=0)
        .fit(X, nodes=nodes)
        .bic(X, nodes=nodes)
        for kind in KINDS
    }
    assert min(bic, key=bic.get) == "diag"
    chosen = {
        kind: select_components(
            X, nodes, candidates=(1, 2, 3), method=Local(covariance_type=kind)
        ).n_components
        for kind in ("full", "diag")
    }
    assert chosen["diag"] == {"a": 2, "b": 2}


def test_what_cannot_be_is_refused(alike):
    with pytest.raises(ValueError, match="`covariance_type` is 'diagonal'.*'diag'"):
        fit(alike, "local", covariance_type="diagonal")
    with pytest.raises(ValueError, match="`covariance_type` is 'ful'"):
        GTVMin(covariance_type="ful")
    with pytest.raises(ValueError, match="is 'diag', but that of `method` is 'tied'"):
        fit(alike, Local(covariance_type="tied"), covariance_type="diag")
