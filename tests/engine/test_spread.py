"""The default method over several devices: what one device finds."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import protocol_block
from fedmixtures.engine.layout.parts import parts_of
from fedmixtures.engine.run.in_process import InProcess
from fedmixtures.engine.run.spread import BetweenParts
from fedmixtures.engine.solve import solve
from fedmixtures.graph.generate import stochastic_blocks
from fedmixtures.graph.network import complete
from fedmixtures.methods.protocol import Broadcast, Connect, PerNeighbour, Sum, Walk
from fedmixtures.methods.trust_then_pool.program import TrustThenPool

N = 18
METHOD = TrustThenPool(n_clusters="auto")


@pytest.fixture(scope="module")
def problem():
    """Three hidden groups of nodes of 12 to 60 rows, with two or three components each."""
    rng = np.random.default_rng(0)
    counts = rng.integers(12, 60, N)
    nodes = np.repeat(np.arange(N), counts)
    centres = 4 * rng.normal(size=(3, 3, 2))
    X = centres[nodes // 6, rng.integers(0, 3, len(nodes))] + rng.normal(size=(len(nodes), 2))
    network = stochastic_blocks([6] * 3, 0.8, 0.2, seed=0)
    return NodeData.from_rows(X, nodes), network, rng.integers(2, 4, N).tolist()


@pytest.fixture(scope="module")
def one(problem):
    return fitted(problem)


def fitted(problem, n=1, **options):
    data, network, k = problem
    devices = jax.devices()[:n] if n > 1 else ()
    return solve(METHOD, data, network, n_components=k, seed=1, devices=devices, **options)


def agree(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def two(problem):
    return fitted(problem, 2)


def test_the_numbers_and_groups_are_those_of_one_device(one, two):
    assert (one.shards, two.shards.n_devices) == (None, 2)
    same(two, one)


def same(several, one):
    agree(several.theta.parts, one.theta.parts)
    for name in ("weights", "evidence", "clusters", "prequential"):
        agree(getattr(several.levels, name), getattr(one.levels, name))
    agree(several.levels.theta.parts, one.levels.theta.parts)
    np.testing.assert_array_equal(several.joined.cluster, one.joined.cluster)
    agree(several.joined.unsure, one.joined.unsure)
    nodes, edges = several.diagnostics.nodes, several.diagnostics.edges
    assert len(np.unique(nodes["group"])) > 1
    for name in ("group", "size"):
        np.testing.assert_array_equal(nodes[name], one.diagnostics.nodes[name])
    for name in ("trusted", "listens", "cut"):
        np.testing.assert_array_equal(edges[name], one.diagnostics.edges[name])
    agree(edges["gain"], one.diagnostics.edges["gain"])
    assert several.traffic == one.traffic


def test_a_part_has_its_own_rows_and_hears_its_neighbours_alone(problem):
    data, network, k = problem
    block = protocol_block(data, network, k)
    parts, shards = parts_of(block, network, 3)
    np.testing.assert_array_equal(np.sort(np.concatenate([p.nodes for p in parts])), np.arange(N))
    assert sum(len(part.heard) for part in parts) == shards.halo_nodes > 0
    for part in parts:
        np.testing.assert_array_equal(part.block.data.counts, data.counts[part.nodes])
        for i, node in enumerate(part.nodes):
            np.testing.assert_array_equal(part.block.data.of(i)[0], data.of(int(node))[0])
        there = part.lines[part.block.sender]
        np.testing.assert_array_equal(there, block.sender[part.edges])
        assert set(part.heard) == set(there) - set(part.nodes)
    with_room = {part.block.most_components for part in parts}
    assert with_room == {3}


def test_every_request_is_answered_as_in_one_block(problem):
    data, network, k = problem
    block = protocol_block(data, network, k)
    parts, _ = parts_of(block, network, 3)
    whole, rng = InProcess(block), np.random.default_rng(0)
    several = BetweenParts(block, parts, jax.devices()[:3])
    ask = lambda of: several.together([of(part) for part in parts])
    by_node, by_edge = rng.normal(size=(N, 2)), rng.normal(size=len(block.receiver))
    live, group = rng.random(len(by_edge)) < 0.7, rng.integers(0, 4, N)
    replies = {
        Broadcast: (whole(Broadcast(by_node)), ask(lambda p: Broadcast(by_node[p.nodes])), "lines"),
        PerNeighbour: (
            whole(PerNeighbour(by_edge)),
            ask(lambda p: PerNeighbour(by_edge[p.edges])),
            "edges",
        ),
        Walk: (whole(Walk(live)), ask(lambda p: Walk(live[p.edges])), "edges"),
        Sum: (
            whole(Sum(by_node, group)),
            ask(lambda p: Sum(by_node[p.nodes], group[p.nodes])),
            "nodes",
        ),
    }
    for expected, found, lines in replies.values():
        for part, reply in zip(parts, found, strict=True):
            np.testing.assert_array_equal(reply, expected[getattr(part, lines)])
    everybody = whole(Sum(by_node))
    for reply in ask(lambda p: Sum(by_node[p.nodes])):
        np.testing.assert_array_equal(reply, everybody[: len(reply)])
    expected, found = whole(Connect(live)), ask(lambda p: Connect(live[p.edges]))
    for part, reply in zip(parts, found, strict=True):
        for a, b in zip(reply, expected, strict=True):
            np.testing.assert_array_equal(a, b[part.nodes])
    assert several.traffic() == whole.traffic()
    with pytest.raises(TypeError, match="at the same time"):
        several.together([Walk(live), Connect(live), Connect(live)])


def test_an_interrupted_run_goes_on_from_its_checkpoint(problem, two):
    kept, reached = [], []

    def stop(checkpoint):
        kept.append(checkpoint)
        reached.append({name.split("/")[0] for name, _, _ in checkpoint.stages})
        if "personal" in reached[-1]:
            raise KeyboardInterrupt

    with pytest.warns(match="interrupted; returning the mixtures of the step 'personal'"):
        half = fitted(problem, 2, checkpoint=stop, keep_interrupted=True)
    assert reached == [{"own"}, {"own", "everyone"}, {"own", "everyone", "personal"}]
    assert half.theta.means.shape[0] == N
    rest = fitted(problem, 2, resume=kept[-1])
    for ours, theirs in zip(rest.theta.parts, two.theta.parts, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert rest.traffic == two.traffic
    with pytest.raises(ValueError, match="`resume` comes from another run"):
        fitted(problem, 3, resume=kept[-1])


def test_a_part_that_fails_ends_the_run(problem, monkeypatch):
    from fedmixtures.methods.trust_then_pool import program

    def fails(nodes, *rest):
        if len(nodes.hashes) < N and nodes.block.data.labels[0] == 0:
            raise RuntimeError("no memory left")
        return released(nodes, *rest)

    released = program.released
    monkeypatch.setattr(program, "released", fails)
    with pytest.raises(RuntimeError, match="no memory left"):
        fitted(problem, 2)


def test_no_part_is_empty(problem):
    data, network, k = problem
    parts, shards = parts_of(protocol_block(data, network, k), network, 40)
    assert all(len(part.nodes) > 0 for part in parts)
    assert len(parts) == shards.n_devices <= N
    few = NodeData.from_rows(data.rows[:60], np.repeat([0, 1], 30))
    both = parts_of(protocol_block(few, complete([0, 1]), [1, 1]), complete([0, 1]), 3)[0]
    assert sorted(part.nodes.tolist() for part in both) == [[0], [1]]


@pytest.mark.slow
def test_one_two_and_four_devices_in_a_process_of_their_own():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, Path(__file__).with_name("four_devices.py")]
    done = subprocess.run(
        command, env=os.environ | flags, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert "1, 2 and 4 devices agree" in done.stdout


def test_devices_of_another_process_are_refused(problem, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(
        ValueError, match=r"2 of `devices` belong to another process.*TrustThenPool"
    ):
        fitted(problem, 2)
