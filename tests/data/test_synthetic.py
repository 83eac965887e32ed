"""Synthetic scenarios: their truth, their moments, their seeds."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedmixtures.data import Scenario, homogeneous, shifted_blocks

KINDS = ["iso", "var", "aniso"]


def arrays(scenario: Scenario) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(scenario).items() if isinstance(value, np.ndarray)}


def assert_same(a: Scenario, b: Scenario, names=None):
    for name in names or arrays(a):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def true_log_likelihood(scenario: Scenario, node: int) -> np.ndarray:
    x = scenario.X_validation[scenario.nodes_validation == node]
    parts = [
        np.log(w) + multivariate_normal(m, c).logpdf(x)
        for w, m, c in zip(
            scenario.weights[node], scenario.means[node], scenario.covariances[node], strict=True
        )
    ]
    return logsumexp(parts, axis=0)


def test_the_papers_shapes_are_the_defaults():
    first = homogeneous()
    assert first.X.shape == (1000, 2)
    assert first.X_validation.shape == (4000, 2)
    assert first.means.shape == (10, 2, 2)
    assert first.labels == tuple(range(10))
    blocks = shifted_blocks()
    assert blocks.X.shape == (750, 2)
    assert blocks.X_validation.shape == (6000, 2)
    assert blocks.weights.shape == (15, 5)
    assert blocks.means.shape == (15, 5, 2)
    assert blocks.covariances.shape == (15, 5, 2, 2)
    assert blocks.blocks.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert np.bincount(blocks.nodes).tolist() == [50] * 15
    assert np.bincount(blocks.nodes_validation).tolist() == [400] * 15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["", "_validation"])
def test_moments_are_those_of_the_truth(kind, split):
    truth = homogeneous(
        kind, n_nodes=4, n_components=3, n_features=3, n_train=5000, n_validation=5000, seed=7
    )
    X, nodes, components = (getattr(truth, name + split) for name in ("X", "nodes", "components"))
    n_outside = n_checked = 0
    for node in range(4):
        share = np.bincount(components[nodes == node], minlength=3) / 5000
        n_outside += (np.abs(share - 1 / 3) > 4 * np.sqrt(1 / 3 * 2 / 3 / 5000)).sum()
        n_checked += 3
        for c in range(3):
            x = X[(nodes == node) & (components == c)]
            covariance, variance = truth.covariances[node, c], np.diag(truth.covariances[node, c])
            mean_error = np.abs(x.mean(0) - truth.means[node, c])
            n_outside += (mean_error > 4 * np.sqrt(variance / len(x))).sum()
            # Var of a sample covariance of normals: (S_ij^2 + S_ii S_jj) / n.
            spread = np.sqrt((covariance**2 + np.outer(variance, variance)) / len(x))
            n_outside += (np.abs(np.cov(x.T) - covariance) > 4 * spread).sum()
            n_checked += 12
    assert n_checked == 156
    assert n_outside == 0  # each is outside with probability 6e-5


def test_kinds_of_covariance():
    iso = homogeneous("iso", n_components=4, seed=3)
    var = homogeneous("var", n_components=2, seed=3)
    aniso = homogeneous("aniso", n_components=4, seed=3)
    np.testing.assert_array_equal(iso.covariances[0], np.tile(np.eye(2), (4, 1, 1)))
    np.testing.assert_allclose(var.covariances[0], [0.5 * np.eye(2), 2.0 * np.eye(2)])
    np.testing.assert_allclose(np.linalg.eigvalsh(aniso.covariances[0]), [[0.3, 2.0]] * 4)
    assert np.ptp(aniso.covariances[0][:, 0, 1]) > 0.1  # turned differently
    np.testing.assert_array_equal(iso.means, aniso.means)


def test_more_than_two_are_spaced_geometrically():
    var = homogeneous("var", n_components=3, n_features=1)
    np.testing.assert_allclose(var.covariances[0, :, 0, 0], [0.5, 1.0, 2.0])
    eigenvalues = np.linalg.eigvalsh(homogeneous("aniso", n_features=3).covariances[0, 0])
    np.testing.assert_allclose(eigenvalues, [0.3, np.sqrt(0.6), 2.0])


def test_rotations_have_no_preferred_direction():
    covariances = homogeneous("aniso", n_nodes=1, n_components=4000, n_train=1).covariances[0]
    # E[Q D Q^T] = trace/d I; entries spread by half the eigenvalue gap times std(cos) = 1/sqrt 2.
    error = np.abs(covariances.mean(0) - 1.15 * np.eye(2))
    assert (error < 4 * 0.85 / np.sqrt(2) / np.sqrt(4000)).all()


def test_means_are_five_times_standard_normal():
    means = homogeneous(n_nodes=1, n_components=5000, n_train=1, n_validation=1).means[0].ravel()
    assert abs(means.mean()) < 4 * 5 / np.sqrt(10_000)
    assert abs(means.std() - 5) < 4 * 5 / np.sqrt(2 * 10_000)


def test_blocks_move_all_means_by_one_shift_and_the_first_stays():
    blocks = shifted_blocks(seed=4)
    base = homogeneous(n_components=5, seed=4)
    np.testing.assert_array_equal(blocks.means[0], base.means[0])
    shift = blocks.means - blocks.means[0]
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:, :1], shift.shape), atol=1e-12)
    for block in range(3):
        members = blocks.means[blocks.blocks == block]
        np.testing.assert_array_equal(members, np.broadcast_to(members[0], members.shape))
    assert len({tuple(s) for s in shift[:, 0]}) == 3
    np.testing.assert_array_equal(blocks.covariances, np.broadcast_to(np.eye(2), (15, 5, 2, 2)))


def test_shifts_have_the_scale_asked_for():
    many = shifted_blocks(n_blocks=2001, nodes_per_block=1, n_train=1, n_validation=1)
    shifts = (many.means[1:, 0] - many.means[0, 0]).ravel()
    assert abs(shifts.std() - 5) < 4 * 5 / np.sqrt(2 * 4000)
    far = (
        shifted_blocks(shift_scale=50.0, seed=1).means
        - shifted_blocks(shift_scale=0.0, seed=1).means
    )
    near = shifted_blocks(seed=1).means - shifted_blocks(shift_scale=0.0, seed=1).means
    np.testing.assert_allclose(far, 10 * near, atol=1e-10)


@pytest.mark.parametrize("differ", ["means", "covariances", "weights"])
def test_blocks_differ_in_one_thing_alone(differ):
    scenario = shifted_blocks(differ=differ, seed=2)
    for name in ("means", "covariances", "weights"):
        truth = getattr(scenario, name)
        per_block = truth[[0, 5, 10]]
        assert len(np.unique(per_block.reshape(3, -1), axis=0)) == (3 if name == differ else 1)
    np.testing.assert_allclose(scenario.weights.sum(1), 1)
    assert np.linalg.eigvalsh(scenario.covariances).min() > 0.29


def test_differing_weights_are_those_of_the_rows():
    scenario = shifted_blocks(differ="weights", n_validation=4000, seed=2)
    for node in (0, 7, 14):
        drawn = scenario.components_validation[scenario.nodes_validation == node]
        share, weight = np.bincount(drawn, minlength=5) / 4000, scenario.weights[node]
        assert (np.abs(share - weight) < 4 * np.sqrt(weight * (1 - weight) / 4000)).all()


def test_true_log_likelihoods_are_those_of_the_settings_page():
    """Population values of settings.md: -4.32 for k = 5, and about -3.52 for D_iso with k = 2."""
    for n_components, wanted in ((5, -4.320), (2, -3.52)):
        values = [
            true_log_likelihood(
                homogeneous(n_nodes=1, n_components=n_components, n_train=1, seed=seed), 0
            ).mean()
            for seed in range(150)
        ]
        # A median has 1.25 times the standard error of a mean; 0.01 for the rounding on the page.
        standard_error = 1.25 * np.std(values) / np.sqrt(150)
        assert abs(np.median(values) - wanted) < 3 * standard_error + 0.01


@pytest.mark.parametrize("make", [homogeneous, shifted_blocks])
def test_same_seed_same_numbers(make):
    assert_same(make(seed=5), make(seed=5))
    assert not np.array_equal(make(seed=5).X, make(seed=6).X)


def test_training_size_leaves_truth_and_validation_alone():
    small, large = shifted_blocks(n_train=10), shifted_blocks(n_train=200)
    names = ["means", "X_validation", "components_validation", "nodes_validation"]
    assert_same(small, large, names)


def test_train_and_validation_rows_differ():
    scenario = homogeneous(n_train=400)
    assert len(np.intersect1d(scenario.X[:, 0], scenario.X_validation[:, 0])) == 0


def test_rows_per_node():
    sizes = [10, 500, 20, 40, 80, 160]
    scenario = shifted_blocks(n_blocks=2, nodes_per_block=3, rows_per_node=sizes)
    assert np.bincount(scenario.nodes).tolist() == sizes
    assert np.bincount(scenario.nodes_validation).tolist() == [400] * 6
    # A node's rows are its own business: changing another's number leaves them.
    other = shifted_blocks(n_blocks=2, nodes_per_block=3, rows_per_node=[10, 5, 20, 40, 80, 160])
    np.testing.assert_array_equal(scenario.X[scenario.nodes == 2], other.X[other.nodes == 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: homogeneous("round"), "`kind` is 'round'. Choose from iso, var, aniso"),
        (lambda: shifted_blocks(differ="size"), "`differ` is 'size'. Choose from means, covar"),
        (lambda: homogeneous(n_nodes=0), "`n_nodes` is 0. Give a whole number of at least 1"),
        (lambda: homogeneous(n_components=0), "`n_components` is 0"),
        (lambda: homogeneous(n_train=0), "`n_train` is 0"),
        (lambda: homogeneous(n_validation=0), "`n_validation` is 0"),
        (lambda: shifted_blocks(n_blocks=0), "`n_blocks` is 0"),
        (lambda: homogeneous(rows_per_node=[5]), "`rows_per_node` has 1 entries, but there are 10"),
        (lambda: homogeneous(n_nodes=2, rows_per_node=[5, 0]), "`rows_per_node` is 0"),
    ],
)
def test_arguments_out_of_range_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
