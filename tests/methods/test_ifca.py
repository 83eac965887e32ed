import jax.numpy as jnp
import numpy as np
import pytest

from em_oracle import loss, numbers, sklearn_em
from fedmixtures import IFCA, Mixture, NetworkGaussianMixture
from fedmixtures.methods.compared.hub_em import Candidates, Report
from fedmixtures.mixture.arithmetic import double


def fit(case, method, **options):
    settings = {"graph": case.network, "n_rounds": 4, "random_state": 7} | options
    return NetworkGaussianMixture(3, method=method, **settings).fit(case.X, nodes=case.nodes)


def test_one_group_is_em_on_all_rows(alike, shared_start):
    model = fit(alike, IFCA(n_groups=1, restarts=1), init=shared_start, n_rounds=20)
    wanted = sklearn_em(alike.X, shared_start[0], 20)
    for part, target in zip(model.solution_.theta.parts, wanted.parts, strict=True):
        np.testing.assert_allclose(part, np.broadcast_to(target, part.shape), atol=1e-7)


def test_a_group_per_block_is_em_on_each_block(blocks):
    """What the method promises: with separated groups it finds them and pools within."""
    start = {
        i: Mixture(np.full(3, 1 / 3), blocks.truth[i] + 0.5, np.tile(np.eye(2), (3, 1, 1)))
        for i in range(6)
    }
    model = fit(blocks, IFCA(n_groups=2, restarts=6), init=start, n_rounds=10)
    for block in (0, 1):
        members = np.flatnonzero(blocks.blocks == block)
        rows = np.concatenate([blocks.rows[i] for i in members])
        wanted = sklearn_em(rows, start[members[0]], 10)
        for i in members:
            np.testing.assert_allclose(model.means_[i], wanted.means, atol=1e-7)


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_the_likelihood_never_falls(uneven, n_groups):
    """Choosing the best group and an EM step per group both raise it."""
    method = IFCA(n_groups=n_groups, restarts=1, reg_covar=0.0)
    model = fit(uneven, method, n_rounds=40, keep_node_history=True)
    total = model.history_.node_fit @ uneven.data.counts
    assert (np.diff(total) <= 1e-9 * abs(total[0])).all()


def test_every_node_has_its_most_likely_group(blocks):
    model = fit(blocks, IFCA(n_groups=3, restarts=2))
    models = {tuple(m.means.ravel()): m for m in model.mixtures_.values()}
    for label, rows in enumerate(blocks.rows):
        own = loss(model.mixtures_[label], rows)
        assert own == pytest.approx(min(loss(m, rows) for m in models.values()))


def test_more_restarts_are_never_worse(blocks):
    """Restarts begin alike, so the best of four is at least as good as the first one."""
    one, four = (fit(blocks, IFCA(n_groups=2, restarts=n), n_rounds=30) for n in (1, 4))
    assert four.history_.fit[-1] <= one.history_.fit[-1] + 1e-6


def test_a_group_without_nodes_keeps_its_mixture():
    with double():
        eye = jnp.broadcast_to(jnp.eye(2), (1, 3, 1, 2, 2))
        means = jnp.arange(6.0).reshape(1, 3, 1, 2)
        before = Candidates(Mixture(jnp.ones((1, 3, 1)), means, eye), jnp.zeros(()))
        group = jnp.array([[0], [2]], jnp.int32)
        update = jnp.ones((2, 1, 1)), jnp.ones((2, 1, 1, 2)), 3 * eye[:, :2].swapaxes(0, 1)
        report = Report(group, jnp.ones((2, 1)), update)
        method = IFCA(n_groups=3, restarts=1)
        after, _ = method.hub(report, jnp.array([5.0, 5.0]), before)
    np.testing.assert_array_equal(after.models.means[0, 1], means[0, 1])
    np.testing.assert_array_equal(after.models.covariances[0, 1], np.eye(2)[None])
    assert (np.asarray(after.models.means[0, [0, 2]]) != np.asarray(means[0, [0, 2]])).any()


def test_messages(blocks):
    traffic = fit(blocks, IFCA(n_groups=2, restarts=3)).traffic_
    model = numbers(3, 2) * 8
    # Per restart: the number of the group (four bytes), its loss, counts and moments.
    assert traffic.message_bytes == 3 * (4 + 8 + model)
    first = 3 * 2 * model
    assert traffic.received == dict.fromkeys(range(6), first + 4 * (first + 8))
    asked = [b for b in traffic.setup.values() if b]
    assert set(asked) == {model}
    assert 2 <= len(asked) <= 6


def test_clear_errors(alike):
    with pytest.raises(ValueError, match=r"`n_groups` of IFCA is missing.*IFCA\(n_groups=3\)"):
        fit(alike, "ifca")
    with pytest.raises(ValueError, match="`n_groups` is 7, but there are 6 nodes"):
        fit(alike, IFCA(n_groups=7))
    with pytest.raises(ValueError, match="`restarts` is 0"):
        IFCA(n_groups=2, restarts=0)
