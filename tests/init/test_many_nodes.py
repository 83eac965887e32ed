"""k-means of many nodes at once, against scikit-learn's from the same centres."""

import jax
import numpy as np
import pytest
from sklearn.cluster import KMeans

from fedmixtures import KMeansStart
from fedmixtures.data.node_data import NodeData
from fedmixtures.init import (
    clustered_mixture,
    distinct_rows_of_all,
    mixtures_of_many,
    seeds_of_many,
)
from fedmixtures.kernels.cpu.clustering import lloyd, plus_plus
from fedmixtures.mixture.arithmetic import double
from helpers import assert_close


def problem(batch, m, d, k, seed=0, weighted=True):
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=3, size=(batch, k, d))
    x = np.take_along_axis(centres, rng.integers(k, size=(batch, m))[:, :, None], 1)
    x = x + rng.normal(size=x.shape)
    weights = rng.integers(1, 4, size=(batch, m)).astype(float) if weighted else np.ones((batch, m))
    return x, weights


def run_lloyd(x, weights, centres):
    with double():
        found = jax.jit(lloyd)(np.swapaxes(x, 1, 2), weights, centres)
    return [np.asarray(part) for part in (found.labels, found.centres, found.inertia)]


@pytest.mark.parametrize(("m", "d", "k"), [(40, 2, 3), (60, 5, 7), (12, 1, 2), (30, 3, 1)])
def test_lloyd_is_scikit_learns_from_the_same_centres(m, d, k):
    x, weights = problem(8, m, d, k)
    start = x[:, :k]
    labels, centres, inertia = run_lloyd(x, weights, start)
    for i in range(8):
        theirs = KMeans(k, init=start[i], n_init=1).fit(x[i], sample_weight=weights[i])
        np.testing.assert_array_equal(labels[i], theirs.labels_)
        np.testing.assert_allclose(centres[i], theirs.cluster_centers_, atol=1e-10)
        assert inertia[i] == pytest.approx(theirs.inertia_, rel=1e-10)


def test_an_empty_cluster_takes_the_farthest_row_as_in_scikit_learn():
    x, weights = problem(6, 30, 2, 3, weighted=False)
    start = np.concatenate([x[:, :2], np.full((6, 1, 2), 500.0)], axis=1)  # nobody is near
    labels, centres, _ = run_lloyd(x, weights, start)
    for i in range(6):
        theirs = KMeans(3, init=start[i], n_init=1).fit(x[i])
        np.testing.assert_array_equal(labels[i], theirs.labels_)
        np.testing.assert_allclose(centres[i], theirs.cluster_centers_, atol=1e-10)


def test_padding_changes_nothing():
    x, weights = problem(4, 30, 2, 3)
    padded = np.concatenate([x, np.full((4, 9, 2), 7.0)], axis=1)
    padded_weights = np.concatenate([weights, np.zeros((4, 9))], axis=1)
    labels, centres, inertia = run_lloyd(x, weights, x[:, :3])
    same = run_lloyd(padded, padded_weights, x[:, :3])
    np.testing.assert_array_equal(same[0][:, :30], labels)
    np.testing.assert_allclose(same[1], centres, atol=1e-12)
    np.testing.assert_allclose(same[2], inertia, rtol=1e-12)


def test_first_centres_are_distinct_rows_of_positive_weight_and_drawn_by_weight():
    x, weights = problem(4000, 6, 2, 3)
    weights[:, 4:] = 0.0
    keys = np.random.default_rng(1).integers(0, 2**32, (4000, 2), dtype=np.uint32)
    with double():
        centres = np.asarray(
            jax.jit(plus_plus, static_argnums=3)(np.swapaxes(x, 1, 2), weights, keys, 3)
        )
    which = (centres[:, :, None] == x[:, None]).all(-1)
    assert (which.sum(-1) == 1).all()
    index = which.argmax(-1)
    assert index.max() < 4
    assert (np.sort(index, axis=1)[:, 1:] > np.sort(index, axis=1)[:, :-1]).all()
    share = weights / weights.sum(1, keepdims=True)
    for row in range(4):  # the first centre: drawn with chances proportional to the weights
        expected, spread = (
            share[:, row].mean(),
            np.sqrt((share * (1 - share))[:, row].mean() / 4000),
        )
        assert abs((index[:, 0] == row).mean() - expected) < 4.5 * spread


def many(n_nodes=30, seed=0, m=(25, 30), weights=None, batched=True, **options):
    rng = np.random.default_rng(3)
    sizes = rng.choice(m, size=n_nodes)
    X = np.concatenate([problem(1, s, 2, 4, seed=i)[0][0] for i, s in enumerate(sizes)])
    data = NodeData.from_rows(X, np.repeat(np.arange(n_nodes), sizes), weights)
    start = KMeansStart(batched=batched, **options)
    return data, start.mixtures(data, [4] * n_nodes, seed=seed, default_reg_covar=0.01)


def inertia(data, theta, i):
    rows, weights = data.of(i)
    return weights @ ((rows[:, None] - np.asarray(theta.means[i])[None]) ** 2).sum(-1).min(1)


def test_as_tight_as_scikit_learns_and_the_moments_of_the_clusters():
    data, batched = many()
    _, looped = many(batched=False)
    ours = [inertia(data, batched, i) for i in range(30)]
    theirs = [inertia(data, looped, i) for i in range(30)]
    assert sum(ours) <= 1.01 * sum(theirs)
    for i in range(30):
        rows, weights = distinct_rows_of_all(data).of(i)
        means = np.asarray(batched.means[i])
        cluster = ((rows[:, None] - means[None]) ** 2).sum(-1).argmin(1)
        assert_close(batched.at(i), clustered_mixture(rows, weights, cluster, 4, 0.01), 1e-10)


@pytest.mark.rounding
def test_a_node_starts_the_same_beside_any_other_nodes_and_in_any_batch(monkeypatch):
    data, whole = many(m=(25, 60))  # batches of two sizes
    few = NodeData.from_rows(*[np.concatenate([p[i] for i in (3, 7)]) for p in _split(data)])
    alone = KMeansStart(batched=True).mixtures(few, [4, 4], seed=0, default_reg_covar=0.01)
    for i, label in enumerate((3, 7)):
        assert_close(alone.at(i), whole.at(label), 1e-12)
    monkeypatch.setattr("fedmixtures.kernels.dispatch.CPU_CLUSTERED", 2000)
    _, small = many(m=(25, 60))
    assert_close(small, whole, 1e-12)


def _split(data):
    return [data.of(i)[0] for i in range(data.n_nodes)], [
        np.full(n, i) for i, n in enumerate(data.counts)
    ]


def test_seeds_matter_and_repeat():
    _, first = many(seed=1, n_init=1)
    _, again = many(seed=1, n_init=1)
    _, other = many(seed=2, n_init=1)
    assert_close(first, again, 0.0)
    assert np.abs(np.asarray(first.means) - np.asarray(other.means)).max() > 0.1


def test_unequal_numbers_of_components_leave_the_rest_absent():
    data, _ = many(n_nodes=3)
    distinct = distinct_rows_of_all(data)
    seeds = seeds_of_many(0, data.label_hashes)
    theta = mixtures_of_many(distinct, [2, 5, 1], seeds, 3, 0.01)
    assert (np.asarray(theta.weights) > 0).sum(1).tolist() == [2, 5, 1]
    np.testing.assert_allclose(theta.means[2, 0], data.of(2)[0].mean(0))


def test_all_starts_can_be_kept():
    data, best = many(n_nodes=5)
    seeds = seeds_of_many(0, data.label_hashes)
    each = mixtures_of_many(distinct_rows_of_all(data), [4] * 5, seeds, 10, 0.01, keep_all=True)
    assert each.weights.shape == (50, 4)
    for i in range(5):
        own = [np.abs(np.asarray(each.means[10 * i + s] - best.means[i])).max() for s in range(10)]
        assert min(own) < 1e-12


def test_too_few_distinct_rows_are_told_before_any_work():
    X = np.repeat(np.arange(6.0)[:, None], 3, axis=0)
    data = NodeData.from_rows(X, np.repeat(["a", "b"], 9))
    with pytest.raises(ValueError, match="'a'"):
        KMeansStart(batched=True).mixtures(data, [4, 3], seed=0, default_reg_covar=0.01)


def test_from_two_hundred_nodes_on_the_batch_is_taken():
    data, taken = many(n_nodes=200, m=(9, 12), batched=None, n_init=2)
    _, batched = many(n_nodes=200, m=(9, 12), batched=True, n_init=2)
    assert_close(taken, batched, 0.0)
