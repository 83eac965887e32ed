from itertools import permutations, product

import numpy as np

from fedmixtures import Mixture
from fedmixtures.methods.base import Participants
from fedmixtures.methods.compared.pooling import aligned_start, clustered_start
from helpers import stack


def participants(n, seed=0):
    return Participants(tuple(range(n)), np.full(n, 9.0), np.zeros(n, int), seed)


def total_distance(means):
    return np.linalg.norm(means[:, None] - means[None], axis=-1).sum() / 2


def test_the_common_numbering_is_the_best_one():
    """Against all numberings of three nodes with three components."""
    for seed in range(5):
        theta = stack(seed, 3)
        orders = list(permutations(range(3)))
        best = min(
            total_distance(
                np.stack([theta.means[0], theta.means[1][list(a)], theta.means[2][list(b)]])
            )
            for a, b in product(orders, orders)
        )
        found = aligned_start(theta, participants(3, seed))
        assert total_distance(found.means) <= best + 1e-9


def test_shuffled_components_come_back_together():
    rng = np.random.default_rng(0)
    base = stack(1, 1, k=6, spread=10.0).at(0)
    shuffled = Mixture.stack([base.relabel(rng.permutation(6)) for _ in range(8)])
    found = aligned_start(shuffled, participants(8))
    for part in found.parts:
        np.testing.assert_array_equal(part, np.tile(part[:1], (8, *(1,) * (part.ndim - 1))))


def test_a_hub_clusters_the_centres_of_all_nodes():
    base = stack(2, 1, k=3, spread=20.0).at(0)
    rng = np.random.default_rng(1)
    noise = 0.1 * rng.standard_normal((10, 3, 2))
    theta = Mixture(
        np.tile(base.weights, (10, 1)),
        base.means[None] + noise,
        np.tile(base.covariances, (10, 1, 1, 1)),
    )
    found = clustered_start(theta, participants(10))
    distance = np.linalg.norm(found.means[:, None] - theta.means.mean(0)[None], axis=-1)
    np.testing.assert_allclose(np.sort(distance.min(0)), 0, atol=1e-9)
    np.testing.assert_allclose(found.covariances, np.tile(base.covariances.mean(0), (3, 1, 1)))
