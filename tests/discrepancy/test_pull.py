"""The closed form over a block against the derived one, for every discrepancy."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import reference
from fedmixtures import KL, MMD, AbstractDiscrepancy, Euclidean, GTVMin, Mixture
from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture.arithmetic import double, precision
from helpers import DISCREPANCIES, WIDE, assert_close, name_of, problem, stack

# nodes, components, features and slots all differ, so that no two axes can be mistaken
SHAPES = [(4, 3, 1, 5), (5, 3, 2, 4), (2, 4, 3, 5), (4, 3, 5, 2)]
CASES = [
    pytest.param(D, shape, id=f"{name_of(D)}-{shape[2]}")
    for D in DISCREPANCIES
    for shape in SHAPES
    if shape[2] == 2 or D in (Euclidean(), KL(n_samples=7), MMD((0.7, 3.0)))
]
THREE = [Euclidean(), KL(n_samples=7), MMD((0.7, 3.0))]


def block(n, k, d, slots, **options):
    """A block: own mixtures, neighbours' (nodes, slots, ...), weights with an empty slot, keys."""
    own = stack(1, n, k, d, **options)
    others = stack(2, n * slots, k, d, **options)
    neighbours = Mixture(*(part.reshape(n, slots, *part.shape[1:]) for part in others.parts))
    weight = np.random.default_rng(0).uniform(0.2, 2.0, (n, slots))
    weight[0, -1] = weight[1, 0] = 0.0
    return own, neighbours, weight


@jit
def pulls(D, own, neighbours, weight):
    """Value and gradient by the class itself and as derived from `__call__`."""
    own, neighbours = jax.tree.map(jnp.asarray, (own, neighbours))
    digests = jax.vmap(jax.vmap(D.digest))(neighbours)
    args = own, digests, jr.split(jr.key(0), weight.shape), weight
    return D.couple(*args).pull(own), AbstractDiscrepancy.couple(D, *args).pull(own)


@pytest.mark.parametrize(("D", "shape"), CASES)
def test_closed_form_agrees_with_the_derived_one(D, shape):
    with double():
        (value, gradient), (wanted, derived) = pulls(D, *block(*shape))
    assert np.abs(np.asarray(wanted)).min() > 1e-3  # there is something to compare
    np.testing.assert_allclose(value, wanted, rtol=1e-10)
    for got, expected in zip(gradient.parts, derived.parts, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-11 * np.abs(expected).max(), rtol=1e-9)


@pytest.mark.parametrize("D", THREE, ids=name_of)
def test_ill_conditioned_and_far_from_the_origin(D):
    """The same block moved by 1e4 has the same pull; differences of means alone may enter."""
    own, neighbours, weight = block(5, 3, 2, 4, condition=1e4)
    moved = [Mixture(m.weights, m.means + 1e4, m.covariances) for m in (own, neighbours)]
    with double():
        (value, gradient), _ = pulls(D, own, neighbours, weight)
        (far, far_gradient), (_, derived) = pulls(D, *moved, weight)
    # means near 1e4 carry rounding of 1e-12, which axes of 1e-2 magnify
    np.testing.assert_allclose(far, value, rtol=1e-7)
    for got, near, expected in zip(far_gradient.parts, gradient.parts, derived.parts, strict=True):
        np.testing.assert_allclose(got, near, atol=1e-7 * np.abs(near).max())
        np.testing.assert_allclose(got, expected, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("D", THREE, ids=name_of)
def test_float32_near_1e4_stays_finite_and_close(D):
    own, neighbours, weight = block(5, 3, 2, 4, centre=1e4)
    rounded = jax.tree.map(lambda part: part.astype(np.float32), (own, neighbours))
    exact = jax.tree.map(lambda part: part.astype(np.float64), rounded)
    with double():
        keys = jr.split(jr.key(0), weight.shape)
        freeze = lambda own, others: D.couple(
            own, jax.vmap(jax.vmap(D.digest))(others), keys, jnp.asarray(weight)
        )
        coupling = jax.tree.map(np.asarray, jax.jit(freeze)(*exact))
    pull = jit(lambda coupling, own: coupling.pull(own))
    single = lambda tree: jax.tree.map(lambda part: jnp.asarray(part, "float32"), tree)
    with double():
        same = jax.tree.map(lambda part: part.astype(np.float32).astype(np.float64), coupling)
        value, gradient = pull(same, exact[0])
    with precision("float32"):
        value32, gradient32 = pull(*single((coupling, exact[0])))
    assert value32.dtype == np.float32
    np.testing.assert_allclose(value32, value, rtol=1e-4, atol=1e-4)
    for got, wanted in zip(gradient32.parts, gradient.parts, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(5, 3, 2, 4), (4, 3, 5, 2)], ids=["few-features", "many"])
@pytest.mark.parametrize("D", THREE[1:], ids=name_of)
def test_absent_components_change_nothing(D, shape):
    n, k, d, slots = shape
    own, neighbours, weight = block(n, k - 1, d, slots)
    padded_own, padded_neighbours, _ = block(n, k - 1, d, slots, absent=1)
    with double():
        (value, gradient), _ = pulls(D, own, neighbours, weight)
        (same, g_padded), (_, derived) = pulls(D, padded_own, padded_neighbours, weight)
    np.testing.assert_allclose(same, value, rtol=1e-11)
    for got, wanted, automatic in zip(g_padded.parts, gradient.parts, derived.parts, strict=True):
        np.testing.assert_allclose(got[:, :-1], wanted, rtol=1e-9, atol=1e-12)
        assert not np.asarray(got)[:, -1:].any()
        assert np.isfinite(np.asarray(automatic)).all()


@pytest.mark.parametrize("D", [MMD((0.7, 3.0)), Euclidean()], ids=name_of)
def test_pull_agrees_with_the_plain_loop(D):
    own, neighbours, weight = block(5, 3, 2, 4)
    with double():
        (value, gradient), _ = pulls(D, own, neighbours, weight)
    pull = reference.MMDPull(D.bandwidths) if isinstance(D, MMD) else reference.EuclideanPull()
    for i in range(5):
        theta = own.at(i).parts
        total, direction = 0.0, [np.zeros_like(part) for part in theta]
        for j in range(4):
            frozen = pull.freeze(0, i, j, theta, neighbours.at((i, j)).parts)
            total += weight[i, j] * pull.value(theta, frozen)
            step = pull.gradient(theta, frozen)
            direction = [a + weight[i, j] * b for a, b in zip(direction, step, strict=True)]
        assert value[i] == pytest.approx(total, rel=1e-10)
        for got, wanted in zip(gradient.parts, direction, strict=True):
            np.testing.assert_allclose(got[i], wanted, atol=1e-10)


# a discrepancy of one's own ----------------------------------------------------------------------


class CentreDifference(AbstractDiscrepancy):
    """Squared distance of overall means: the two methods a new discrepancy needs, and no more."""

    smooth: ClassVar[bool] = True

    def freeze(self, own, neighbour, key):
        del own, key
        return neighbour.weights @ neighbour.means

    def __call__(self, own, frozen):
        return jnp.square(own.weights @ own.means - frozen).sum()


def test_a_new_discrepancy_needs_two_methods():
    p = problem(seed=1, rows=(8, 6, 7, 5), k=2)
    program = GTVMin(CentreDifference(), 0.5, 1, learning_rate=0.01, feasible=WIDE)
    result = p.solve(program, n_rounds=1).theta
    centres = [w @ m for w, m in zip(p.theta.weights, p.theta.means, strict=True)]
    for i, (rows, around) in enumerate(zip(p.rows(), p.neighbours(), strict=True)):
        theta = p.theta.at(i).parts
        gradient = reference.local_loss_gradient(theta, rows)
        gap = sum(w * (centres[i] - centres[j]) for j, w in around.items()) * 2 * 0.5
        pulled = (theta[1] @ np.asarray(gap), np.outer(theta[0], gap)) if around else (0, 0)
        moved = (
            theta[0] - 0.01 * (gradient[0] + pulled[0]),
            theta[1] - 0.01 * (gradient[1] + pulled[1]),
            theta[2] - 0.01 * gradient[2],
        )
        assert_close(result.at(i), Mixture(*reference.project(moved, WIDE.bounds)), 1e-10)
