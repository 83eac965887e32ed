"""C-ColME, DFMR, FedGEM, GraphFed-EM, FedeRiCo: the central step of each by another route."""

import numpy as np
import pytest

from fedmixtures import (
    DFMR,
    CColME,
    FedeRiCo,
    FedGEM,
    GraphFedEM,
    Local,
    Mixture,
    NetworkGaussianMixture,
    ShapePrior,
)
from fedmixtures.graph.network import complete
from fedmixtures.methods.compared import averaging, dfmr, fedgem
from fedmixtures.methods.compared.pooling import moment_match


def fit(case, method, k=3, **options):
    settings = {"graph": case.network, "random_state": 7} | options
    return NetworkGaussianMixture(k, method=method, **settings).fit(case.X, nodes=case.nodes)


def random_mixture(seed, k=3, d=2):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(k, d, d))
    weights = rng.dirichlet(np.ones(k))
    return Mixture(weights, 3 * rng.normal(size=(k, d)), root @ root.swapaxes(1, 2) + np.eye(d))


def test_they_help_nodes_of_one_kind(alike):
    held_out = alike.scenario.X_validation, alike.scenario.nodes_validation
    score = lambda method: fit(alike, method, graph=complete(range(6))).score(
        held_out[0], nodes=held_out[1]
    )
    local = score(Local(engine="jax", prior=ShapePrior()))
    for kind in (CColME, DFMR, FedGEM, GraphFedEM, FedeRiCo):
        assert score(kind(prior=ShapePrior())) > local


# C-ColME


def test_the_half_width_covers_a_mean_at_any_time():
    """It is made for streams: the mean stays inside for all n at once, so the more for each."""
    rng = np.random.default_rng(0)
    gamma, sigma, runs = 0.2, 1.7, 2000
    n = np.arange(1, 101)
    means = np.cumsum(sigma * rng.normal(size=(runs, len(n))), axis=1) / n
    widths = averaging.half_widths(np.full((1, 100, 1), sigma), n[None] * 1.0, np.array([gamma]))
    outside = (np.abs(means) > widths[0, :, 0]).any(1).mean()
    assert outside < gamma
    by_hand = sigma * np.sqrt(2 / 10 * (1 + 1 / 10) * np.log(np.sqrt(11) / gamma))
    assert widths[0, 9, 0] == pytest.approx(by_hand)


def test_edges_between_groups_are_cut_and_the_rest_agrees_on_the_pooled_moments(blocks):
    model = fit(blocks, CColME(n_rounds=400))
    source, target = blocks.network.source, blocks.network.target
    same = blocks.blocks[source] == blocks.blocks[target]
    kept = model.diagnostics_.edges["kept"] if hasattr(model, "diagnostics_") else None
    if kept is not None:
        np.testing.assert_array_equal(kept.all(1), same)
    for block in range(2):
        members = [i for i in range(6) if blocks.blocks[i] == block]
        means = np.stack([np.sort(model.mixtures_[i].means, axis=0) for i in members])
        np.testing.assert_allclose(means, np.broadcast_to(means[:1], means.shape), atol=0.02)
        whole = np.concatenate([blocks.rows[i] for i in members])
        for i in members:
            mixture = model.mixtures_[i]
            np.testing.assert_allclose(mixture.weights @ mixture.means, whole.mean(0), atol=0.05)


def test_a_round_of_averaging_by_hand():
    rng = np.random.default_rng(1)
    own, mixed = _moments(rng, (2, 1)), _moments(rng, (2, 1))
    theirs = tuple(part[::-1] for part in mixed)  # the two hear each other
    found = averaging.averaged(own, mixed, theirs, np.full(2, 0.5), np.arange(2), 0.75)
    raw = lambda m: (m[0], m[0][..., None] * m[1], m[0][..., None, None] * (m[2] + _outer(m[1])))
    x, y = raw(own), raw(mixed)
    expected = [0.25 * b + 0.75 * (0.5 * c + 0.5 * c[::-1]) for b, c in zip(x, y, strict=True)]
    for ours, by_hand in zip(raw(found), expected, strict=True):
        np.testing.assert_allclose(ours, by_hand, atol=1e-12)


def _moments(rng, shape, d=2):
    root = rng.normal(size=(*shape, d, d))
    return rng.uniform(1, 5, shape), rng.normal(size=(*shape, d)), root @ root.swapaxes(-1, -2)


def _outer(v):
    return v[..., :, None] * v[..., None, :]


# DFMR


def test_l2_distances_agree_with_a_sum_over_a_grid():
    a, b = random_mixture(0), random_mixture(1)
    axis = np.linspace(-25, 25, 701)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    gap = np.exp(a.log_density(grid)) - np.exp(b.log_density(grid))
    expected = np.sqrt(np.square(gap).sum() * (axis[1] - axis[0]) ** 2)
    found = dfmr.l2_distances(Mixture.stack([a, b]))
    assert found[0, 1] == pytest.approx(expected, rel=1e-6)
    assert found[0, 0] == pytest.approx(0, abs=1e-8)


def test_reduction_keeps_the_moments_and_never_raises_the_divergence():
    stack = Mixture.stack([random_mixture(i) for i in range(5)])
    rows = np.array([10.0, 20, 30, 5, 15])
    small = dfmr.reduced(stack, rows, 100)
    flat = lambda part: part.reshape(-1, *part.shape[2:])
    weights = flat(stack.weights * (rows / rows.sum())[:, None])
    one = lambda *parts: moment_match(*parts, np.zeros(len(parts[0]), int), 1)
    whole = one(weights, flat(stack.means), flat(stack.covariances))
    for ours, theirs in zip(one(*small.parts), whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    many = weights, flat(stack.means), flat(stack.covariances)
    costs = [dfmr.reduce_from(many, stack.at(0), turns)[1] for turns in range(1, 8)]
    assert (np.diff(costs) <= 1e-12).all()


def test_kl_of_gaussians_agrees_with_monte_carlo():
    a, c = random_mixture(2, k=1), random_mixture(3, k=1)
    x, _ = a.sample(200_000)
    ratio = a.log_density(x) - c.log_density(x)
    found = dfmr.gaussian_kl(a.means, a.covariances, c.means, c.covariances)[0, 0]
    assert abs(found - ratio.mean()) < 4 * ratio.std() / np.sqrt(len(x))


def test_forty_percent_of_failing_machines_are_left_out():
    """What the authors report: up to 40 % of machines may send anything."""
    rng = np.random.default_rng(0)
    true = random_mixture(4)
    noise = lambda: Mixture(
        true.weights, true.means + 0.1 * rng.normal(size=true.means.shape), true.covariances
    )
    good, bad = [noise() for _ in range(6)], [random_mixture(50 + i) for i in range(4)]
    stays = dfmr.central(dfmr.l2_distances(Mixture.stack(good + bad)), 0.1)
    assert len(stays) >= 4
    assert set(stays.tolist()) <= set(range(6))


# FedGEM


def test_no_move_within_the_ball_lowers_the_expected_likelihood_and_some_beyond_it_does():
    before, after = random_mixture(5), random_mixture(6)
    stack = lambda mixture: Mixture.stack([mixture])
    reach = FedGEM().reach(stack(before), stack(after))[0]
    rng = np.random.default_rng(0)
    for c in range(3):
        inverse = np.linalg.inv(after.covariances[c])
        q = lambda mean, c=c, inverse=inverse: (
            -(mean - after.means[c]) @ inverse @ (mean - after.means[c])
        )
        turns = rng.normal(size=(2000, 2))
        turns /= np.linalg.norm(turns, axis=1, keepdims=True)
        values = [q(after.means[c] + reach[c] * turn) for turn in turns]
        assert min(values) >= q(before.means[c]) - 1e-9
        beyond = [q(after.means[c] + 1.01 * reach[c] * turn) for turn in turns]
        assert min(beyond) < q(before.means[c])


def test_the_code_of_the_authors_has_half_the_squared_move():
    before, after = (Mixture.stack([random_mixture(i)]) for i in (5, 6))
    reach = FedGEM(radius="half").reach(before, after)
    moved = np.square(before.means - after.means).sum(-1)
    np.testing.assert_allclose(np.square(reach), moved / 2)


def test_balls_that_meet_are_one_group_with_one_component_of_each_node():
    means = np.array([[[0.0], [1.0]], [[0.4], [9.0]], [[0.2], [9.1]]])
    group = fedgem.grouped(means, np.full((3, 2), 0.5))
    assert group[0, 0] == group[1, 0] == group[2, 0]
    assert group[1, 1] == group[2, 1]
    assert group[0, 1] not in (group[0, 0], group[1, 1])  # near the first, but of the same node


def test_the_number_of_components_is_found_where_nodes_have_some_of_them_each():
    """The claim of the paper: K, which nobody was given, where clusters are apart."""
    rng = np.random.default_rng(2)
    centres = 20 * np.array([[0, 0], [1, 0], [0, 1], [1, 1], [2, 1]])
    X, nodes = [], []
    for node in range(6):
        for c in rng.choice(5, 3, replace=False) if node else (0, 1, 2):
            X.append(centres[c] + rng.normal(size=(40, 2)))
            nodes += [node] * 40
    present = {tuple(np.round(x.mean(0) / 20).astype(int)) for x in X}
    model = NetworkGaussianMixture(3, method=FedGEM(), random_state=0)
    model.fit(np.concatenate(X), nodes=nodes)
    found = {tuple(np.round(m, 6)) for one in model.mixtures_.values() for m in one.means}
    assert len(found) == len(present)


# GraphFed-EM


def test_a_blend_by_hand():
    own = Mixture.stack([random_mixture(i) for i in range(2)])
    theirs = Mixture.stack([random_mixture(i) for i in range(10, 12)])
    weight = np.random.default_rng(0).uniform(0.1, 2, (2, 3))
    here = np.zeros(2, int)  # both edges end at the first node: the second has no neighbour
    found = averaging.blended(own, theirs, weight, here, 0.3)
    for c in range(3):
        share = weight[:, c] / weight[:, c].sum()
        mean = 0.7 * own.means[0, c] + 0.3 * (share @ theirs.means[:, c])
        np.testing.assert_allclose(found.means[0, c], mean)
    for part, before in zip(found.parts, own.parts, strict=True):
        np.testing.assert_allclose(part[1], before[1])


def test_without_alpha_it_is_local_and_with_more_of_it_nodes_agree_more(blocks):
    """The authors: consensus within groups grows with alpha."""
    alone = fit(blocks, GraphFedEM(alpha=0.0, n_rounds=60))
    local = fit(blocks, Local(engine="jax", tol=1e-9, max_iter=500))
    for i in range(6):
        ours, theirs = (np.sort(m.mixtures_[i].means, axis=0) for m in (alone, local))
        np.testing.assert_allclose(ours, theirs, atol=1e-2)

    def disagreement(alpha):
        edges = [(i, j) for i in range(6) for j in range(i) if blocks.blocks[i] == blocks.blocks[j]]
        model = fit(blocks, GraphFedEM(alpha=alpha, n_rounds=20), graph=edges)
        means = np.stack([np.sort(model.mixtures_[i].means, axis=0) for i in range(6)])
        return sum(np.square(means[i] - means[j]).sum() for i, j in edges)

    assert disagreement(0.8) < disagreement(0.3) < disagreement(0.0)


# FedeRiCo


def test_weights_of_rows_never_lower_the_likelihood_and_those_of_nodes_are_bayes_rule():
    rng = np.random.default_rng(0)
    node = np.array([0, 1, 0, 0, 1])  # two nodes with three and two models
    density, counts = rng.normal(size=(5, 20)), np.ones((2, 20))
    share = 1 / np.bincount(node)[node]
    value = lambda s: [
        np.log((s[node == i, None] * np.exp(density[node == i])).sum(0)).sum() for i in (0, 1)
    ]
    before = np.array(value(share))
    for _ in range(50):
        share = averaging.weighed(share, density, counts, node, "row")
        assert (np.array(value(share)) >= before - 1e-12).all()
        before = np.array(value(share))
    np.testing.assert_allclose(np.bincount(node, share), 1)
    start = np.array([0.2, 0.4, 0.3, 0.5, 0.6])
    found = averaging.weighed(start, density, counts, node, "node")
    for i in (0, 1):
        by_hand = (start * np.exp(density.sum(-1)))[node == i]
        np.testing.assert_allclose(found[node == i], by_hand / by_hand.sum())


def test_the_result_is_the_weighed_density():
    models = Mixture.stack([random_mixture(i) for i in range(3)])
    share = np.array([0.5, 0.2, 0.3])
    joined = averaging.joined(models, share, np.zeros(3, int)).at(0)
    x = np.random.default_rng(0).normal(size=(10, 2))
    each = np.stack([np.exp(models.at(i).log_density(x)) for i in range(3)])
    np.testing.assert_allclose(np.exp(joined.log_density(x)), share @ each)


def test_judged_by_the_rows_it_was_fitted_to_every_node_stays_alone(blocks):
    """The reference behaviour: a local fit of few rows beats all others on these rows."""
    alone = fit(blocks, FedeRiCo(held_out_share=0.0, choice="node", n_rounds=2))
    local = fit(blocks, Local(engine="jax", tol=1e-9, max_iter=500))
    for i in range(6):
        ours, theirs = (np.sort(m.mixtures_[i].means, axis=0) for m in (alone, local))
        np.testing.assert_allclose(ours, theirs, atol=0.05)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="`alpha` is 2.0. Give a number from 0 to 1"):
        GraphFedEM(alpha=2.0)
    with pytest.raises(ValueError, match="`held_out_share` is 0.7"):
        FedeRiCo(held_out_share=0.7)
    with pytest.raises(ValueError, match="`delta`"):
        CColME(delta=0.0)
