"""The whole program: groups, conservation, fixed points, honest timing, and liars."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import Network, NetworkGaussianMixture, TrustThenPool, load
from fedmixtures.data import homogeneous, shifted_blocks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import build_layout
from fedmixtures.engine.run import rounds, runner
from fedmixtures.graph.generate import complete
from fedmixtures.init.kmeans import KMeansStart
from fedmixtures.methods.base import Outgoing
from fedmixtures.methods.trust_then_pool.moments import Moments, maximised, moments
from fedmixtures.methods.trust_then_pool.pool import pooled
from fedmixtures.methods.trust_then_pool.schedule import OPENING, Kind, kind_of
from fedmixtures.mixture.precision import double

QUICK = TrustThenPool(n_starts=2, agree_rounds=4)
FIRST_POOL = len(OPENING) + QUICK.agree_rounds
CAPACITY = 32
"""Rounds in a chunk: that of the estimator's run, so that both share one compiled program."""


class Run:
    """A run that can be looked at round by round: one block, states as they are."""

    def __init__(self, X, nodes, network, k, program=QUICK, block_size=None):
        self.data = NodeData.from_rows(X, nodes)
        with double():
            self.layout = build_layout(self.data, network, "float64", block_size, 0)
            self.groups = self.layout.groups
            self.program = runner.dynamic(program, "float64")
            counts = [k] * self.data.n_nodes
            theta = KMeansStart(1).mixtures(self.data, counts, 0, 1e-3)
            thetas = runner.scatter(theta, self.layout, "float64")
            self.states = rounds.start(self.program, self.groups, thetas)
        self.t = 0

    def go(self, n):
        with double():
            self.states, _ = rounds.run_rounds(
                self.program, self.groups, self.states, jnp.int32(self.t), jnp.int32(n), CAPACITY
            )
        self.t += n
        return self

    def of_nodes(self, pick):
        with double():
            return runner.gather(tuple(pick(state) for state in self.states), self.layout)

    def result(self):
        with double():
            return runner.gather(
                rounds.ask("result", self.program, self.groups, self.states), self.layout
            )


@pytest.fixture(scope="module")
def two_blocks():
    """Everyone knows their block and one node of the other: one shape, so few compilations."""
    scenario = shifted_blocks(2, 4, 3, n_train=40, shift_scale=8.0, seed=1001)
    inside = [(a + i, a + j) for a in (0, 4) for i in range(4) for j in range(i)]
    source, target = np.array([*inside, *((i, i + 4) for i in range(4))]).T
    return scenario, Network(tuple(range(8)), source, target, np.ones(len(source)))


def test_the_opening_comes_first_then_agreement_then_pooling_to_the_end():
    kinds = [Kind(int(kind_of(jnp.int32(t), 3))) for t in range(12)]
    assert kinds == [*OPENING, *[Kind.AGREE] * 3, *[Kind.POOL] * 4]


def test_groups_are_found_and_reported(two_blocks, tmp_path):
    scenario, network = two_blocks
    model = NetworkGaussianMixture(3, graph=network, method=QUICK, n_rounds=20, random_state=0).fit(
        scenario.X, nodes=scenario.nodes
    )
    trust = model.trust_
    assert trust.groups == [(0, 1, 2, 3), (4, 5, 6, 7)]
    across = scenario.blocks[trust.source] != scenario.blocks[trust.target]
    assert across.any()
    np.testing.assert_array_equal(trust.trusted, ~across)
    assert (trust.account.nodes["kept"] == 0).all()
    assert (trust.account.edges["p_value"][~across] >= 1e-3).all()
    assert len(trust.edges()) == network.n_edges
    loaded = load(model.save(tmp_path / "model.safetensors"))
    assert loaded.trust_.groups == trust.groups
    assert loaded.method == QUICK


def test_every_row_counts_once_in_every_pool_round(two_blocks):
    scenario, network = two_blocks
    run = Run(scenario.X, scenario.nodes, network, 3).go(FIRST_POOL)
    for _ in range(6):
        run.go(1)
        own = run.of_nodes(lambda state: state.own)
        flow = run.of_nodes(lambda state: state.slots.flow)
        total = jax.tree.map(lambda s, f: s + f.sum(1), own, flow)
        for block in (0, 1):
            members = scenario.blocks == block
            for pooled_part, part in zip(jax.tree.leaves(total), jax.tree.leaves(own), strict=True):
                np.testing.assert_allclose(
                    pooled_part[members].sum(0), part[members].sum(0), atol=1e-8
                )
            np.testing.assert_allclose(total.mass[members].sum(), 160.0)
    assert np.abs(flow.mass).max() > 0.1  # something did flow


def test_at_rest_all_nodes_of_a_group_hold_a_fixed_point_of_pooled_em(two_blocks):
    scenario, network = two_blocks
    run = Run(scenario.X, scenario.nodes, network, 3).go(FIRST_POOL)
    for _ in range(25):
        run.go(CAPACITY)
    own = run.of_nodes(lambda state: state.own)
    flow = run.of_nodes(lambda state: state.slots.flow)
    theta = run.of_nodes(lambda state: state.theta)
    mean = jax.tree.map(lambda s, f: s + f.sum(1), own, flow)
    for block in (0, 1):
        members = np.flatnonzero(scenario.blocks == block)
        for part in jax.tree.leaves(mean):
            same = np.broadcast_to(part[members[:1]], part[members].shape)
            np.testing.assert_allclose(part[members], same, atol=1e-6)
        with double():
            first = jax.tree.map(lambda p, i=members[0]: jnp.asarray(p[i])[None], theta)
            rows = jnp.asarray(scenario.X[np.isin(scenario.nodes, members)])[None]
            total = moments(first, rows, jnp.ones(rows.shape[:2]))
            again = maximised(first, total, jnp.asarray([160.0]), QUICK.ridge, QUICK.prior)
        for a, b in zip(again.parts, theta.parts, strict=True):
            np.testing.assert_allclose(np.asarray(a)[0], b[members[0]], atol=1e-6)


def test_trust_needs_both_bits_and_a_round_to_travel(two_blocks):
    scenario, network = two_blocks
    run = Run(scenario.X, scenario.nodes, network, 3).go(1)
    assert run.of_nodes(lambda state: state.slots.listens).any()
    assert not run.of_nodes(lambda state: state.slots.trusted).any()  # nobody has heard a bit yet
    run.go(1)
    assert run.of_nodes(lambda state: state.slots.trusted).any()


@pytest.mark.slow
def test_a_node_alone_computes_what_it_computes_in_a_block(two_blocks):
    scenario, network = two_blocks
    together = Run(scenario.X, scenario.nodes, network, 3).go(FIRST_POOL + 3).result()
    alone = Run(scenario.X, scenario.nodes, network, 3, block_size=1).go(FIRST_POOL + 3).result()
    for a, b in zip(together.parts, alone.parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


class Lying(TrustThenPool):
    """Nodes of 43 rows send NaN in every letter, those of 41 act as infinite mass when pooling."""

    def outgoing(self, state, weight):
        said = super().outgoing(state, weight)
        bit, letter = said.per_slot
        rows = state.fits.rows
        pooling = kind_of(state.round[0], self.agree_rounds) == Kind.POOL
        far = eqx.tree_at(
            lambda s: s.first, state.own, state.own.first + 3 * state.own.mass[..., None]
        )

        def told(part, lie):
            of = lambda liar: liar.reshape(-1, *(1,) * (part.ndim - 1))
            part = jnp.where(of((rows == 41) & pooling), lie[:, None], part)
            return jnp.where(of(rows == 43), jnp.nan, part)

        return Outgoing(said.broadcast, (bit, jax.tree.map(told, letter, far)))


@pytest.mark.slow
def test_honest_nodes_do_not_lose_by_a_liar():
    scenario = homogeneous(n_nodes=4, n_components=2, rows_per_node=[43, 42, 42, 42], seed=1005)
    values = {}
    for rows in (42, 41, 43):  # honest, lies once trusted, NaN: one program for all three
        kept = np.arange(len(scenario.X)) >= 43 - rows
        run = Run(
            scenario.X[kept],
            scenario.nodes[kept],
            complete(range(4)),
            2,
            Lying(n_starts=2, agree_rounds=4),
        ).go(FIRST_POOL + 12)
        trusted = run.of_nodes(lambda state: state.slots.trusted)
        assert trusted[1:].all() == (rows != 43)
        theta = run.result().to_numpy()
        assert all(np.isfinite(part).all() for part in theta.parts)
        values[rows] = np.array(
            [
                theta.at(i)
                .log_density(scenario.X_validation[scenario.nodes_validation == i])
                .mean()
                for i in range(1, 4)
            ]
        )
    assert (values[41] > values[42] - 0.1).all()
    assert (values[43] > values[42] - 0.1).all()


def test_nodes_without_neighbours_and_tiny_nodes_get_a_mixture():
    rows = [2, 3, 30, 30]
    scenario = homogeneous(n_nodes=4, n_components=2, rows_per_node=rows, seed=1006)
    network = Network((0, 1, 2, 3), np.array([2]), np.array([3]), np.ones(1))
    model = NetworkGaussianMixture(2, graph=network, method=QUICK, n_rounds=12, random_state=0).fit(
        scenario.X, nodes=scenario.nodes
    )
    assert model.status_ == "completed"
    assert len(model.mixtures_[0].weights) == 1  # two rows afford one component
    assert np.isfinite(model.score(scenario.X_validation, nodes=scenario.nodes_validation))
    assert len(model.trust_.groups) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_folds": 1}, "`n_folds` is 1. Give a whole number of at least 2"),
        ({"ridge": 0.0}, "`ridge` is 0.0. Give a positive number"),
        ({"level": -1.0}, "`level` is -1.0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        TrustThenPool(**settings)


def test_pooled_adds_what_flows_in():
    own = Moments(jnp.ones((1, 2)), jnp.ones((1, 2, 1)), jnp.ones((1, 2, 1, 1)))
    flow = jax.tree.map(lambda part: jnp.stack([part, -3 * part], axis=1), own)
    np.testing.assert_allclose(pooled(own, flow).mass, -1.0)
