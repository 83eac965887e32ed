"""What every discrepancy promises, on random mixtures; the matching; refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fedmixtures import KL, MMD, Euclidean
from fedmixtures.kernels.cpu.matching import best_matching
from fedmixtures.mixture.arithmetic import precision
from helpers import DISCREPANCIES, NEVER_NEGATIVE, SAMPLE_FREE, SYMMETRIC, mixture, name_of, stack

SEEDS = st.integers(0, 2**32 - 1)
CONDITIONS = st.sampled_from([1.0, 10.0, 1e6])
CENTRES = st.sampled_from([0.0, 1e4])
examples = settings(max_examples=25, deadline=None)
over = lambda choice: pytest.mark.parametrize("D", choice, ids=name_of)


def size(D, p, q):
    """What rounding of D is measured by: the larger of its terms."""
    if isinstance(D, MMD):
        return len(D.bandwidths)  # kernels are at most one
    return 1 + D.between(p, q)


@over(DISCREPANCIES)
@examples
@given(seed=SEEDS, condition=CONDITIONS, centre=CENTRES, order=st.permutations(range(3)))
def test_relabelling_changes_nothing(D, seed, condition, centre, order):
    """Components are unordered: neither side's numbering matters."""
    p = mixture(seed, condition=condition, centre=centre)
    q = mixture(seed + 1, condition=condition, centre=centre)
    value = D.between(p, q)
    tolerance = 1e-12 * condition * size(D, p, q)
    assert abs(D.between(p.relabel(order), q) - value) <= tolerance
    if D in SAMPLE_FREE:  # another numbering draws other points
        assert abs(D.between(p, q.relabel(order)) - value) <= tolerance


@over(DISCREPANCIES)
@examples
@given(seed=SEEDS, condition=CONDITIONS, centre=CENTRES, order=st.permutations(range(3)))
def test_a_mixture_does_not_differ_from_itself(D, seed, condition, centre, order):
    p = mixture(seed, condition=condition, centre=centre)
    assert abs(D.between(p.relabel(order), p)) <= 1e-12 * condition


@over(NEVER_NEGATIVE)
@examples
@given(seed=SEEDS, condition=CONDITIONS, spread=st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
def test_never_negative(D, seed, condition, spread):
    p = mixture(seed, condition=condition, spread=spread)
    q = mixture(seed + 1, condition=condition, spread=spread)
    assert D.between(p, q) >= -1e-13


@over(SYMMETRIC)
@examples
@given(seed=SEEDS, condition=CONDITIONS, centre=CENTRES)
def test_symmetric_where_claimed(D, seed, condition, centre):
    p = mixture(seed, condition=condition, centre=centre)
    q = mixture(seed + 1, condition=condition, centre=centre)
    tolerance = 1e-12 * condition * size(D, p, q)
    assert abs(D.between(p, q) - D.between(q, p)) <= tolerance


def test_mmd_is_bounded_and_euclidean_is_not():
    """The paper's reason for robustness: a far neighbour can only differ so much under MMD."""
    near, far = mixture(1), mixture(2, centre=1e3)
    assert MMD().between(near, far) < 2 * len(MMD().bandwidths)
    assert Euclidean().between(near, far) > 1e5


def test_absent_components_do_not_count():
    for D in (MMD(), KL(n_samples=20)):
        p, q = mixture(1, 2), mixture(2, 3)
        value = D.between(p, q, random_state=4)
        assert D.between(p.padded(4), q.padded(5), random_state=4) == pytest.approx(value)


def test_draws_follow_random_state():
    p, q = mixture(1), mixture(2)
    D = KL()
    assert D.between(p, q) == D.between(p, q, random_state=0)
    assert D.between(p, q, random_state=1) != D.between(p, q, random_state=2)


# matching ----------------------------------------------------------------------------------------

_match = jax.jit(jax.vmap(best_matching))


@pytest.mark.parametrize("k", [1, 2, 3, 6, 10, 12])
def test_matching_agrees_with_scipy(k):
    rng = np.random.default_rng(k)
    costs = rng.random((40, k, k))
    costs[::3] = np.round(costs[::3] * 2)  # ties
    matches = np.asarray(_match(costs.astype(np.float32)))
    for cost, match in zip(costs.astype(np.float32).astype(float), matches, strict=True):
        assert sorted(match) == list(range(k))
        assert cost[np.arange(k), match].sum() == pytest.approx(
            cost[linear_sum_assignment(cost)].sum(), rel=1e-6
        )


def test_matching_in_both_precisions_of_one_process():
    """Constants of the program made in one precision must serve in the other."""
    cost = np.random.default_rng(0).random((5, 4, 4))
    for dtype in ("float64", "float32", "float64"):
        with precision(dtype):
            program = jax.jit(jax.vmap(lambda c: best_matching(c)))
            matches = np.asarray(program(jnp.asarray(cost, dtype)))
        for c, match in zip(cost, matches, strict=True):
            best = min(itertools.permutations(range(4)), key=lambda o: c[range(4), o].sum())
            assert tuple(match) == best


# refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MMD(bandwidths=()), "`bandwidths` is empty. Give at least one positive number"),
        (lambda: MMD(bandwidths=(1.0, -2.0)), "`bandwidths` is -2.0. Give a positive number"),
        (lambda: KL(n_samples=0), "`n_samples` is 0. Give a whole number of at least 1"),
        (lambda: Euclidean(block_weights=(1.0, -1.0, 0.0)), "`block_weights` is -1.0"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_between_takes_two_single_mixtures_over_the_same_features():
    with pytest.raises(ValueError, match=r"`between\(neighbour\)` is for one mixture but this is"):
        MMD().between(mixture(0), stack(0, 2))
    message = "`own` has 2 features and `neighbour` 3. Compare mixtures over the same features"
    with pytest.raises(ValueError, match=message):
        MMD().between(mixture(0), mixture(0, 3, 3))
