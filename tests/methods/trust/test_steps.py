"""Each step of levels of trust against a plain computation, and what has to hold for any rows."""

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import fedmixtures as fm
from fedmixtures.data import shifted_blocks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import node_block, protocol_block
from fedmixtures.engine.run.protocols import InProcess, run_protocol
from fedmixtures.fits import em
from fedmixtures.fits import rows as rows_module
from fedmixtures.fits.batches import ALL
from fedmixtures.fits.checked import sound
from fedmixtures.fits.tiles import tile_size
from fedmixtures.fits.units import Units
from fedmixtures.graph.network import as_network
from fedmixtures.kernels.dispatch import rows_at_once
from fedmixtures.methods.protocol import Groups, requests_of
from fedmixtures.methods.trust_then_pool import weigh
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.listen import gains, nearest
from fedmixtures.methods.trust_then_pool.nodes import Nodes, common_units
from fedmixtures.methods.trust_then_pool.own import Level, Received, own_level, released
from fedmixtures.methods.trust_then_pool.personal import Personal
from fedmixtures.methods.trust_then_pool.pool import Pooling, pooled_level
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.m_step import PseudoData
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, sigma_points

pytestmark = pytest.mark.rounding
K = 2
OPTIONS = fm.TrustThenPool(n_starts=2)


@pytest.fixture(scope="module")
def data():
    scenario = shifted_blocks(n_blocks=2, nodes_per_block=3, n_components=K, n_train=40, seed=3)
    return NodeData.from_rows(scenario.X, scenario.nodes)


def a_block(data, graph="full"):
    network = as_network(graph, data.labels).aligned(data.labels)
    return protocol_block(data, network, [K] * data.n_nodes, 0)


@pytest.fixture(scope="module")
def nodes(data):
    with double():
        block = a_block(data)
        return Nodes(block, drive(common_units(block), InProcess(block)), OPTIONS)


@pytest.fixture(scope="module")
def own(nodes):
    with double():
        return own_level(nodes)


@pytest.fixture(autouse=True)
def in_double():
    with double():
        yield


def drive(generator, engine):
    answer = None
    while True:
        try:
            answer = engine(generator.send(answer))
        except StopIteration as end:
            return end.value


def rows_of(nodes, i):
    """Rows of a node in common units, their counts and folds, from the tiles."""
    here = nodes.node_of == i
    count = nodes.count[here].reshape(-1)
    x = np.asarray(nodes.table.tiles.x)[: nodes.table.row_tiles][here].reshape(len(count), -1)
    return x[count > 0], count[count > 0], nodes.fold[here].reshape(-1)[count > 0]


def plain_step(theta, x, count, nu, reg_covar):
    """One MAP step of one mixture, written out."""
    dense = [w * multivariate_normal(m, c).pdf(x) for w, m, c in zip(*theta.parts, strict=True)]
    share = np.stack(dense) / np.sum(dense, 0) * count
    mass = share.sum(1)
    means = share @ x / mass[:, None]
    spread = np.stack(
        [(s[:, None] * (x - m)).T @ (x - m) for s, m in zip(share, means, strict=True)]
    )
    common = spread.sum(0) / mass.sum()
    covariances = (spread + nu * common) / (mass + nu)[:, None, None] + reg_covar * np.eye(
        x.shape[1]
    )
    return Mixture((mass + 1) / (mass + 1).sum(), means, covariances)


def test_units_are_those_of_all_rows(data):
    block = a_block(data)
    units = drive(common_units(block), InProcess(block))
    np.testing.assert_allclose(units.centre, data.rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(units.scale, data.rows.std(0), rtol=1e-12)
    theta = Mixture(np.ones((1, 1)), np.zeros((1, 1, 2)), np.eye(2)[None, None])
    back = units.users(theta)
    np.testing.assert_allclose(back.means[0, 0], data.rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(np.diag(back.covariances[0, 0]), data.rows.var(0), rtol=1e-12)


def test_a_constant_column_keeps_its_unit():
    rows = np.column_stack([np.arange(20.0), np.full(20, 1e6 / 3)])
    block = a_block(NodeData.from_rows(rows, np.arange(20) % 2))
    assert drive(common_units(block), InProcess(block)).scale[1] == 1.0


def test_folds_deal_out_distinct_rows_evenly_and_equal_rows_together():
    rows = np.repeat(np.random.default_rng(0).normal(size=(33, 2)), 3, axis=0)
    block = a_block(NodeData.from_rows(rows, np.zeros(99, int)))
    nodes = Nodes(block, Units(np.zeros(2), np.ones(2)), OPTIONS)
    _, count, fold = rows_of(nodes, 0)
    assert (count == 3).all()
    assert sorted(np.bincount(fold)) == [6, 6, 7, 7, 7]


def test_one_step_of_the_batch_is_the_m_step_written_out(nodes, own):
    entries = nodes.table.of_rows(np.array([4, 1]), np.array([ALL, 2]))
    start = jax.tree.map(lambda part: part[[4, 1]], own.fit)
    found = nodes.fit(entries, start, 3.0, 1, tolerance=0.0)
    for place, (node, leave) in enumerate([(4, ALL), (1, 2)]):
        x, count, fold = rows_of(nodes, node)
        expected = plain_step(start.at(place), x[fold != leave], count[fold != leave], 3.0, 1e-3)
        for one, other in zip(found.theta.at(place).parts, expected.parts, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
        assert found.own.mass[place].sum() == pytest.approx((fold != leave).sum())


def test_pseudo_data_count_as_rows_do(nodes, own):
    """EM with another node's sums as pseudo-data is EM of both nodes' rows, one step on."""
    theta = jax.tree.map(lambda part: part[[0]], own.fit)
    sums = nodes.fit(nodes.table.of_rows(np.array([3]), np.array([ALL])), theta, 1.0, 0).own
    others = em.as_pseudo_data(theta, sums)
    entries = nodes.table.of_rows(np.array([0]), np.array([ALL]))
    found = nodes.fit(
        entries, theta, 2.0, 1, pseudo_data=others, extra_mass=others.mass + 1.0, tolerance=0.0
    ).theta.at(0)
    x, count, _ = (
        np.concatenate(p) for p in zip(rows_of(nodes, 0), rows_of(nodes, 3), strict=True)
    )
    expected = plain_step(theta.at(0), x, count, 2.0, 1e-3)
    for one, other in zip(found.parts, expected.parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_out_of_fold_densities_are_of_the_model_without_the_fold(nodes, own):
    x, _, fold = rows_of(nodes, 2)
    here = nodes.node_of == 2
    found = own.out_of_fold[here].reshape(-1)[nodes.count[here].reshape(-1) > 0]
    expected = np.array(
        [own.folds.at((2, f)).log_density(row[None])[0] for row, f in zip(x, fold, strict=True)]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_fit_is_the_same_in_any_batch(nodes):
    node, leave = np.array([0, 5, 3]), np.array([ALL, 1, 4])
    present = np.ones((3, K), bool)
    keys = nodes.keys(node, 9)
    whole = nodes.fresh(nodes.table.of_rows(node, leave), 8.0, 5, keys, present).theta
    for i in range(3):
        entries = nodes.table.of_rows(node[[i]], leave[[i]])
        alone = nodes.fresh(entries, 8.0, 5, keys[[i]], present[[i]]).theta
        for one, other in zip(alone.parts, whole.parts, strict=True):
            np.testing.assert_allclose(one[0], other[i], rtol=1e-9, atol=1e-12)


def test_more_rows_than_a_tile_and_than_a_call_are_one_fit():
    rng = np.random.default_rng(1)
    big = rng.normal(size=(rows_at_once(2) + 1000, 2))
    rows = np.concatenate([big, rng.normal(size=(20, 2))])
    labels = np.repeat([0, 1], [len(big), 20])
    block = a_block(NodeData.from_rows(rows, labels))
    nodes = Nodes(block, Units(np.zeros(2), np.ones(2)), fm.TrustThenPool(n_folds=3))
    centres = np.array([[[-1.0, 0], [1, 0]]] * 2)
    theta = Mixture(np.full((2, K), 0.5), centres, np.tile(np.eye(2), (2, K, 1, 1)))
    entries = nodes.table.of_rows(np.array([0, 1]), np.array([ALL, ALL]))
    found = nodes.fit(entries, theta, 8.0, 1, tolerance=0.0).theta
    for i, own_rows in enumerate((big, rows[len(big) :])):
        expected = plain_step(theta.at(i), own_rows, np.ones(len(own_rows)), 8.0, 1e-3)
        np.testing.assert_allclose(found.at(i).means, expected.means, rtol=1e-9)


def test_tiles_suit_the_rows():
    assert tile_size(np.full(15, 50), 25, 2) == 32
    assert tile_size(np.full(15, 500), 25, 2) == 64
    assert tile_size(np.full(30, 200), 68, 8) == 128


def test_centres_are_rows_and_differ(nodes):
    entries = nodes.table.of_rows(np.arange(6), np.full(6, ALL))
    found = em.seeded(nodes.table.tiles, entries, nodes.keys(np.arange(6), 1), np.ones((6, K)), 2)
    for i in range(6):
        x, *_ = rows_of(nodes, i)
        distance = np.abs(found.means[i][:, None] - x[None]).sum(-1)
        assert (distance.min(1) < 1e-12).all()
        assert len(set(distance.argmin(1))) == K


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_fit_under_two_orders_of_components_is_the_first(dtype):
    """Their scores differ in the last bits at most; a better fit is taken all the same."""
    k, bit = 3, 4 * np.finfo(dtype).eps
    theta = Mixture(
        np.full((2, k), 1 / k), np.arange(2.0 * k).reshape(2, k, 1), np.ones((2, k, 1, 1))
    )
    mass = np.full((2, k), 15.0)

    def fit(number, factor):
        parts = [part.astype(dtype) for part in theta.parts]
        sums = np.array([-97.0, -97.0]) * factor, mass, mass[..., None], mass[..., None, None]
        own = Statistics(*(part.astype(dtype) for part in sums))
        return em.Fit(Mixture(parts[0], parts[1] + number, parts[2]), own, np.zeros(2, dtype))

    better = np.array([1 - bit, 1 - 1e-4])
    found = em.best_of([fit(0, np.ones(2)), fit(100, better), fit(200, better * (1 - bit))])
    np.testing.assert_array_equal(found.means[:, 0, 0], [0.0, 103.0])


def test_starts_are_made_of_releases_alone(data, nodes, own):
    """Other rows, the same releases: what leaders offer is the same, and says what it is."""
    rows = data.rows + np.random.default_rng(0).normal(size=data.rows.shape)
    other = a_block(NodeData(data.labels, rows, data.row_weights, data.offsets, data.source_index))
    with_others = Nodes(other, Units(np.zeros(2), np.ones(2)), OPTIONS)
    n, release = nodes.n, released(nodes, own)
    groups = Groups(np.zeros(n, int), np.full(n, n), np.arange(n))
    offers = []
    for these in (nodes, with_others):
        received = Received(these, release)
        live = np.ones(len(received.receiver), bool)
        asked = pooled_level(
            these,
            own,
            received,
            groups,
            live,
            Pooling(np.array([8.0]), np.array([1e-3]), (1, 1, 1), 3),
        )
        offers.append(next(asked))
    assert all(offer.spread == 0 for offer in offers)
    for one, two in zip(offers[0].share.parts, offers[1].share.parts, strict=True):
        np.testing.assert_array_equal(one, two)
        assert np.abs(one).max() > 0


def everyone(nodes, own, **more):
    received = Received(nodes, released(nodes, own))
    n = nodes.n
    groups = Groups(np.zeros(n, int), np.full(n, n), np.arange(n))
    live = np.ones(len(received.receiver), bool)
    steps = more.get("steps", (1, 1, 2))
    strengths = np.array(more.get("strengths", [8.0]))
    ridges = np.array(more.get("ridges", [1e-3]))
    level = pooled_level(nodes, own, received, groups, live, Pooling(strengths, ridges, steps, 3))
    return drive(level, InProcess(nodes.block))[:2]


def test_pooled_em_is_em_of_all_rows(nodes, own):
    before, after = (everyone(nodes, own, steps=steps)[1] for steps in ((1, 1, 2), (1, 1, 3)))
    parts = [rows_of(nodes, i) for i in range(nodes.n)]
    x, count = (np.concatenate([p[j] for p in parts]) for j in (0, 1))
    expected = plain_step(before.theta.at(0), x, count, 8.0, 1e-3)
    for i in range(nodes.n):
        np.testing.assert_allclose(after.theta.at(i).means, expected.means, rtol=1e-8)
        np.testing.assert_allclose(after.theta.at(i).covariances, expected.covariances, rtol=1e-8)


def test_a_fold_is_left_out_of_the_pool_at_home(nodes, own):
    """The model that judges a fold is one M-step of everybody's rows but that fold's."""
    level, pooled = everyone(nodes, own)
    parts = [rows_of(nodes, i) for i in range(nodes.n)]
    node, fold = 4, 1
    kept = [p[2] != fold if i == node else np.ones(len(p[0]), bool) for i, p in enumerate(parts)]
    x = np.concatenate([p[0][k] for p, k in zip(parts, kept, strict=True)])
    expected = plain_step(pooled.theta.at(0), x, np.ones(len(x)), 8.0, 1e-3)
    here = nodes.node_of == node
    found = level.out_of_fold[here].reshape(-1)[nodes.count[here].reshape(-1) > 0]
    rows, _, folds = parts[node]
    np.testing.assert_allclose(
        found[folds == fold], expected.log_density(rows[folds == fold]), rtol=1e-7
    )


@pytest.mark.parametrize("other", [0.1, 1e4])
def test_the_strength_is_the_one_that_foretells_best(nodes, own, other):
    """Rows of equal shapes: the stronger prior, whichever comes first."""
    steps, score = (0, 3, 0), lambda level: (level.out_of_fold * nodes.count).sum()
    level, pooled = everyone(nodes, own, strengths=[8.0, other], steps=steps)
    alone, _ = everyone(nodes, own, strengths=[8.0], steps=steps)
    assert (pooled.shrinkage.nu == max(8.0, other)).all()
    assert (score(level) > score(alone) + 1e-6) == (other > 8.0)


@pytest.mark.parametrize("apart", [1.0, 3e-3])
def test_little_is_added_to_covariances_where_columns_nearly_agree(apart):
    """And no less than usual where they do not: there it makes no difference worth a choice."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(160, 2))
    rows[:, 1] = rows[:, 0] + apart * rng.normal(size=160)
    fits = {}
    for ridges in ((1.0,), (1.0, 1e-3)):
        method = fm.TrustThenPool(n_starts=1, pool_steps=(2, 2, 2), ridges=ridges)
        model = fm.NetworkGaussianMixture(1, method=method, random_state=0)
        fits[ridges] = model.fit(rows[:120], nodes=np.arange(120) % 4)
    few, many = fits.values()
    nodes = np.arange(40) % 4
    gain = many.score(rows[120:], nodes=nodes) - few.score(rows[120:], nodes=nodes)
    told = many.diagnostics_.nodes["reg_covar"]
    if apart == 1.0:
        assert (told == 1e-3).all()
        assert gain == 0
    else:
        np.testing.assert_allclose(told, 1e-6)
        assert gain > 0.5
    newcomer = many.adapt(rows[120:], "new")  # takes the same
    np.testing.assert_allclose(newcomer.diagnostics_.nodes["reg_covar"][-1], told[0])


def test_near_learns_from_the_neighbours_that_gain_most():
    receiver = np.repeat([0, 1], [40, 3])
    rng = np.random.default_rng(0)
    gain, flags = rng.normal(size=43), rng.random(43) < 0.8
    kept = np.asarray(nearest(flags, gain, receiver))
    first = np.flatnonzero(flags[:40])
    assert set(np.flatnonzero(kept[:40])) == set(first[np.argsort(-gain[first])[: C.nearest]])
    np.testing.assert_array_equal(kept[40:], flags[40:])


def test_the_gain_of_an_edge_is_that_of_a_step_with_its_points(nodes, own):
    """Of fits without a fold, to its rows: one EM step on own rows and the points of a release."""
    received = Received(nodes, released(nodes, own))
    nothing = PseudoData(0.0 * own.fit.weights, own.fit.means, own.fit.covariances)
    worse = Level(own.fit, own.out_of_fold - 1.0, own.fit, own.folds)
    held = em.Shrinkage(np.full(nodes.n, 8.0), np.full(nodes.n, 1e-3))
    alone = Personal(worse, nothing, own.fit.weights, held)
    found = gains(nodes, own, alone, received)
    for edge in (0, 7):
        node, sender = received.receiver[edge], received.sender[edge]
        x, count, fold = rows_of(nodes, node)
        points, weights = map(np.asarray, sigma_points(received.theta.at(sender)))
        weights = min(received.rows[sender], 10 * count.sum()) * weights.reshape(-1)
        gain = np.zeros(5)
        for f in range(5):
            before, kept = own.folds.at((node, f)), fold != f
            rows = np.concatenate([x[kept], points.reshape(-1, 2)])
            after = plain_step(before, rows, np.concatenate([count[kept], weights]), 8.0, 1e-3)
            more = after.log_density(x[~kept]) - before.log_density(x[~kept])
            gain[f] = count[~kept] @ more
        assert found.mean[edge] == pytest.approx(gain.sum() / count.sum(), abs=1e-9)
        np.testing.assert_allclose(found.without[:, edge], gain.sum() - gain, atol=1e-8)


def test_a_fold_without_rows_is_judged_by_none():
    """Two nodes of two rows beside one of forty: three of their folds are empty."""
    rng = np.random.default_rng(1)
    data = NodeData.from_rows(rng.normal(size=(44, 2)), [0] * 2 + [1] * 2 + [2] * 40)
    block = a_block(data)
    nodes = Nodes(block, drive(common_units(block), InProcess(block)), OPTIONS)
    held_out = nodes.held_out()
    assert held_out.line.tolist() == [[0, 1, -1, -1, -1], [2, 3, -1, -1, -1], [4, 5, 6, 7, 8]]
    own = own_level(nodes)
    theta = jax.tree.map(lambda part: part[held_out.node, held_out.fold], own.folds)
    found = held_out.gains(np.arange(9), theta, np.zeros_like(held_out.tiled(own.out_of_fold)))
    expected = [
        (own.out_of_fold * nodes.count)[(nodes.fold == f) & (nodes.node_of == i)[:, None]].sum()
        for i, f in zip(held_out.node, held_out.fold, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_bad_totals_are_seen():
    good = Statistics(np.zeros(1), np.ones((1, 2)), np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)))
    assert sound(good).all()
    for part, value in (("mass", -1.0), ("first", np.nan), ("first", 1.7e308), ("second", -1.0)):
        bad = {n: np.array(getattr(good, n)) for n in ("log_likelihood", "mass", "first", "second")}
        bad[part][0, 0] = value
        assert not sound(Statistics(**bad)).any(), part


def test_the_bound_is_what_foretelling_row_by_row_gives(nodes):
    rng = np.random.default_rng(2)
    density = rng.normal(-3, 2, size=(3, *nodes.count.shape))
    found = weigh.prequential(nodes, weigh.evidence(nodes, list(density)))
    here = nodes.node_of == 1
    count = nodes.count[here].reshape(-1)
    own = density[:, here].reshape(3, -1)[:, count > 0]
    weights, loss = np.full(3, 1 / 3), 0.0
    for row in rng.permutation(own.shape[1]):  # in any order
        chance = weights @ np.exp(own[:, row])
        loss -= np.log(chance)
        weights = weights * np.exp(own[:, row]) / chance
    assert found[1, 0] == pytest.approx(loss)
    np.testing.assert_allclose(found[1, 1:], -own.sum(1))
    assert (found[:, :1] <= found[:, 1:] + np.log(3) + 1e-9).all()


def test_weights_prefer_the_level_that_foretells_and_forgive_nonsense(nodes):
    density = [np.full(nodes.count.shape, v) for v in (-5.0, -2.0, np.nan)]
    group = np.zeros(nodes.n, int)
    found = drive(weigh.weights(nodes, density, group), InProcess(nodes.block))
    assert (found[:, 1] > 0.95).all()
    np.testing.assert_allclose(found.sum(1), 1)


def outcome(X, labels, graph="full", method=None, **options):
    data = NodeData.from_rows(X, labels)
    network = as_network(graph, data.labels).aligned(data.labels)
    method = method or fm.TrustThenPool(n_starts=2, pool_steps=(1, 3, 4))
    return fm.solve(method, data, network, n_components=K, **options)


@pytest.fixture(scope="module")
def scenario():
    return shifted_blocks(n_blocks=2, nodes_per_block=3, n_components=K, n_train=40, seed=3)


@pytest.fixture(scope="module")
def solution(scenario):
    return outcome(scenario.X, scenario.nodes)


def test_blocks_are_found_and_weighed(solution):
    group = solution.diagnostics.nodes["group"]
    assert len(set(group[:3])) == len(set(group[3:])) == 1
    assert group[0] != group[3]
    edges = solution.diagnostics.edges
    assert not (edges["cut"] & edges["trusted"]).any()
    levels = solution.levels
    np.testing.assert_allclose(levels.weights.sum(1), 1)
    shared = levels.weights[:, [levels.names.index(n) for n in ("group", "near")]].sum(1)
    assert (shared > 0.5).all()
    assert (levels.prequential[:, :1] <= levels.prequential[:, 1:] + np.log(5) + 1e-6).all()


def test_scale_and_offset_change_nothing(scenario, solution):
    factor, offset = np.array([1e-6, 1e6]), np.array([1e6, -3.0])
    moved = outcome(scenario.X * factor + offset, scenario.nodes)
    np.testing.assert_allclose(moved.levels.weights, solution.levels.weights, atol=1e-3)
    means = (moved.theta.means - offset) / factor
    np.testing.assert_allclose(means[..., 1], solution.theta.means[..., 1], rtol=1e-6, atol=1e-6)


def test_single_precision_is_near_double(scenario, solution):
    single = outcome(scenario.X, scenario.nodes, dtype="float32")
    rows, nodes = scenario.X_validation, scenario.nodes_validation
    score = lambda s: np.mean(
        [
            s.levels.density.at(i).log_density(rows[nodes == v]).mean()
            for i, v in enumerate(s.labels)
        ]
    )
    assert score(single) == pytest.approx(score(solution), abs=1e-3)


def test_the_order_of_nodes_and_rows_changes_nothing(scenario, solution):
    order = np.random.default_rng(0).permutation(len(scenario.X))
    labels = np.array([f"n{v}" for v in scenario.nodes])
    one, other = (outcome(scenario.X[o], labels[o]) for o in (slice(None), order))
    np.testing.assert_allclose(one.theta.means, other.theta.means, rtol=1e-9)
    np.testing.assert_allclose(one.levels.weights, other.levels.weights, rtol=1e-6, atol=1e-9)


def test_nodes_apart_end_as_a_block_of_all(scenario):
    """As silos run it: a generator per node, in step; replies are cut out of the whole."""
    data = NodeData.from_rows(scenario.X, scenario.nodes)
    block = a_block(data)
    method = fm.TrustThenPool(n_starts=1, n_folds=3, pool_steps=(1, 1, 1), strengths=(1.0,))
    engine = InProcess(block)
    whole = run_protocol(method, block, InProcess(block))
    talks = []
    for i, label in enumerate(data.labels):
        edges = block.receiver == i
        neighbours = {
            data.labels[j]: w for j, w in zip(block.sender[edges], block.weight[edges], strict=True)
        }
        alone = node_block(label, *data.of(i), neighbours, K)[0]
        talks.append(requests_of(method.run(alone)))
    requests, ends = [next(talk) for talk in talks], []
    while not ends:
        join = lambda *parts: np.concatenate([np.asarray(p) for p in parts])
        values = [list(vars(r).values()) for r in requests]
        joined = [
            column[0] if isinstance(column[0], float | None) else jax.tree.map(join, *column)
            for column in zip(*values, strict=True)
        ]
        replies = engine(type(requests[0])(*joined))
        for i, talk in enumerate(talks):
            kind = type(requests[i]).__name__
            edges = np.flatnonzero(block.receiver == i)
            index = {
                "Whereabouts": None, "Broadcast": [i, *block.sender[edges]], "PerNeighbour": edges,
                "Sum": [i], "Connect": [i],
            }[kind]  # fmt: skip
            part = replies
            if index is not None:
                part = jax.tree.map(lambda p, index=index: np.asarray(p)[index], replies)
            try:
                requests[i] = talk.send(part)
            except StopIteration as end:
                ends.append(end.value)
    for i, end in enumerate(ends):
        np.testing.assert_allclose(end.theta.means[0], whole.theta.means[i], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(end.levels.weights[0], whole.levels.weights[i], atol=1e-6)


def test_part_by_part_is_all_at_once(data, monkeypatch):
    """Nodes of different numbers of tiles."""
    labels = np.repeat(data.labels, np.diff(data.offsets))
    kept = np.flatnonzero((labels % 2 == 0) | (np.arange(len(labels)) % 2 == 0))
    whole = outcome(data.rows[kept], labels[kept])
    monkeypatch.setattr(rows_module, "nodes_at_once", lambda: 4)
    found = outcome(data.rows[kept], labels[kept])
    for one, other in zip(found.theta.parts, whole.theta.parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.levels.weights, whole.levels.weights, rtol=1e-9)


def test_a_node_alone_has_its_own_level_only():
    X = np.random.default_rng(0).normal(size=(60, 2))
    alone = outcome(X, np.zeros(60, int), graph=None)
    own = alone.levels.theta.means[0, 0]
    for level in range(5):
        np.testing.assert_allclose(alone.levels.theta.means[level, 0], own, atol=0.2)
    assert alone.traffic.total == 0


def test_few_rows_cap_components_and_say_so():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(40, 2)), np.zeros((3, 2)), rng.normal(size=(40, 2))])
    labels = np.repeat(["a", "few", "c"], [40, 3, 40])
    with pytest.warns(fm.FitWarning, match="'few'"):
        found = outcome(X, labels)
    assert np.isfinite(found.levels.density.at(1).log_density(X[:5])).all()


def test_unknown_levels_are_refused():
    with pytest.raises(ValueError, match="`levels` is .* Give some of own, near"):
        fm.TrustThenPool(levels=("owned",))


def test_groups_too_small_to_pool_are_each_alone(scenario):
    method = fm.TrustThenPool(n_starts=1, pool_steps=(1, 1, 2), smallest_group=4)
    found = outcome(scenario.X, scenario.nodes, method=method)
    assert (found.diagnostics.nodes["size"] == 1).all()
    group, own = (found.levels.names.index(name) for name in ("group", "own"))
    means = found.levels.theta.means
    np.testing.assert_array_equal(means[group], means[own])


def test_a_node_of_few_rows_does_not_hold_the_others_down(scenario):
    """Whoever leads: everyone's mixture has as many components as anyone."""
    few = scenario.nodes == 0
    kept = ~few | (np.cumsum(few) <= 1)
    with pytest.warns(fm.FitWarning):
        found = outcome(scenario.X[kept], scenario.nodes[kept])
    everyone = found.levels.names.index("everyone")
    assert (found.levels.theta.weights[everyone] > 0).all()
