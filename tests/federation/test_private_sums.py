"""Differential privacy inside masked sums: sensitivity, noise, ledger."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from federated import SITES, Sites, a_job, record, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.data import shifted_blocks
from fedmixtures.federation.job import JobError
from fedmixtures.federation.masked_sums import total
from fedmixtures.federation.node.gate import GateRefusal
from fedmixtures.federation.node.ledger import Ledger, PrivacyBudget, noise_for
from fedmixtures.federation.node.private_pool import SENSITIVITY, sums_of
from fedmixtures.federation.node.release import colluders
from fedmixtures.federation.node.summing import NoisyShare
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.federation.wire.message import ModelMessage, PrivateModelMessage
from fedmixtures.mixture.mixture import Mixture

SUMS = 6
ROWS = site_rows((60, 60, 60, 60))
UNITS = {"shift": (1.7, 1.7), "scale": (2.5, 2.5)}


def private_job(noise: float, n_sums: int = SUMS, **entries):
    method = TrustThenPool(n_starts=1, n_folds=2)
    privacy = {"clip": 3.0, "noise": noise}
    return a_job(method, n_rounds=n_sums, privacy=privacy, **(UNITS | entries))


def first_exchange(folder, job, people=None) -> tuple[Sites, dict]:
    """Sites that stand before the first sum, and what each would send of it."""
    sites = Sites(folder, ROWS, people=people)
    exchange = sites.rounds(job)
    exchange.begin()
    for t in range(2):  # drawn numbers and commitments
        exchange.round(t)
    sessions = {name: node.sessions[job.key] for name, node in sites.nodes.items()}
    return sites, sessions


def test_no_two_rows_differ_by_more_than_the_sensitivity():
    """Whatever the mixture; and two there are that nearly do."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(40):
        k, d = rng.integers(1, 4), rng.integers(1, 4)
        factor = 0.5 * rng.standard_normal((k, d, d))
        covariances = factor @ np.swapaxes(factor, 1, 2) + 0.05 * np.eye(d)
        theta = Mixture(rng.dirichlet(np.ones(k)), 3 * rng.standard_normal((k, d)), covariances)
        rows = 20 ** rng.uniform(-1, 1, (60, 1)) * rng.standard_normal((60, d))
        added = np.stack([np.ravel(sums_of(theta, row[None], np.ones(1))) for row in rows])
        apart = np.linalg.norm(added[:, None] - added[None], axis=-1)
        largest = max(largest, apart.max())
    assert 0.95 < largest / SENSITIVITY < 1 + 1e-9


def test_the_total_has_the_noise_that_was_calibrated(tmp_path):
    """More than half of the members are enough for it, so that all together have somewhat more."""
    noise, n = 2.0, 20_000
    _, sessions = first_exchange(tmp_path, private_job(noise))
    members = frozenset(SITES)
    shares = {}
    for name, session in sessions.items():
        point = session.passed.__self__
        share = NoisyShare(np.zeros(n), members, "")
        shares[name] = point.passed(share, session).message.numbers
    found = total(list(shares.values())).std()
    calibrated = noise * SENSITIVITY
    assert colluders(len(SITES)) == 1
    assert found == pytest.approx(calibrated * np.sqrt(4 / 3), rel=0.02)
    assert found * np.sqrt(3 / 4) >= 0.98 * calibrated  # of any three


def test_the_same_share_has_the_same_noise_and_another_one_another(tmp_path):
    _, sessions = first_exchange(tmp_path, private_job(2.0))
    session = sessions["aachen"]
    point = session.passed.__self__
    send = lambda value: (
        point.passed(NoisyShare(np.full(50, value), frozenset(SITES), ""), session).message.numbers
    )
    assert (send(1.0) == send(1.0)).all()
    other = (send(1.5) - send(1.0)).view(np.int64) * 2.0**-24
    assert np.abs(other - 0.5).min() > 1e-3  # the difference shows no share


def test_every_sum_is_charged_once_and_a_killed_site_is_not_charged_again(tmp_path):
    noise = noise_for(3.0, 1e-5, SUMS)
    job, sites = private_job(noise), Sites(tmp_path, ROWS)
    exchange, t = sites.rounds(job), 0
    exchange.begin()
    while not all(site.is_over for site in exchange.sites.values()):
        exchange.round(t)
        t += 1
        if t == 3:
            sites.nodes = {name: sites.started(name) for name in SITES}
            exchange = sites.rounds(job)
            assert exchange.begin() == t
    for name in SITES:
        steps = json.loads((tmp_path / name / "ledger.json").read_text())["steps"]
        assert steps == {repr(noise): SUMS}
        assert 2.9 < sites.nodes[name].ledger.epsilon() <= 3.0
    assert len(exchange.replies) == len(SITES)
    again = private_job(noise, n_sums=2)
    with pytest.raises(NodeRefused, match="above its budget of 3"):
        sites.run(again)


def test_with_little_noise_it_is_em_of_all_rows(tmp_path):
    """And every site has the same mixture of everyone, which is all that leaves."""
    sites, job = Sites(tmp_path, ROWS), private_job(1e-3, n_sums=15)
    for node in sites.nodes.values():
        node.ledger.charge = lambda noise, n: None
    sites.run(job)
    sessions = [node.sessions[job.key] for node in sites.nodes.values()]
    messages = [session.message() for session in sessions]
    assert all(isinstance(message, PrivateModelMessage) for message in messages)
    for message in messages[1:]:
        np.testing.assert_array_equal(message.mixture.means, messages[0].mixture.means)
    rows = (np.concatenate(list(ROWS.values())) - 1.7) / 2.5
    reference = GaussianMixture(3, n_init=5, random_state=0).fit(rows).score(rows)
    assert messages[0].mixture.log_density(rows).mean() == pytest.approx(reference, abs=0.05)
    levels = sessions[0].outcome.levels
    assert levels.names == ("own", "personal", "everyone")
    assert levels.weights.sum() == pytest.approx(1)


def test_people_are_what_is_protected(tmp_path):
    """A person's many rows weigh as one."""
    people = {"aachen": np.repeat(np.arange(20), 3)}
    _, sessions = first_exchange(tmp_path, private_job(1e6), people)
    (share,) = {id(s): s for s in sessions["aachen"].outgoing().values()}.values()
    assert share.values[0] == pytest.approx(20)


def test_nothing_but_noise_leaves_a_private_job(tmp_path):
    _, sessions = first_exchange(tmp_path, private_job(1e6))
    session = sessions["aachen"]
    model = ModelMessage(Mixture([1.0], [[0.0, 0.0]], [np.eye(2)]))
    with pytest.raises(GateRefusal, match="a private job sends no ModelMessage"):
        session.passed.__self__.passed(model, session)


def test_who_leaves_does_not_end_a_private_job(tmp_path):
    job, sites = private_job(1e6), Sites(tmp_path, ROWS)
    exchange = sites.rounds(job)
    exchange.begin()
    for t in range(8):
        exchange.round(t)
    del sites.nodes["delft"]
    sites.run(job)
    assert len(sites.results(job)) == 3
    steps = json.loads((tmp_path / "aachen" / "ledger.json").read_text())["steps"]
    assert sum(steps.values()) == 4  # the one it was lost in has been sent; then there is no total


def test_two_sites_have_no_private_sum():
    with pytest.raises(JobError, match="at least 3 sites"):
        private_job(1.0, n_components={"aachen": 2, "bergen": 2}, edges=(("aachen", "bergen", 1),))


@pytest.mark.silos
def test_accuracy_against_rows_of_the_group(tmp_path):
    """One block of the SBM, five sites, ten noisy sums: held-out log-density per row."""
    exact, n_sums, found = "no noise", 10, {}
    for rows in (50, 200, 1000, 4000):
        for epsilon in (exact, 1.0, 3.0, 8.0):
            noise = 1e-6 if epsilon == exact else noise_for(epsilon, 1e-5, n_sums)
            runs = [
                _block(tmp_path / f"{rows}-{epsilon}-{seed}", seed, rows, noise, n_sums)
                for seed in range(3)
            ]
            means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
            found[f"{5 * rows} rows, epsilon {epsilon}"] = means
    record("private-sums", seed=0, seeds=3, sites=5, components=5, sums=n_sums, delta=1e-5,
           held_out_log_density=found)  # fmt: skip
    best = found["20000 rows, epsilon no noise"]["everyone"]
    assert found["20000 rows, epsilon 3.0"]["everyone"] > best - 0.1
    assert all(one["weighed"] > one["own"] - 0.2 for one in found.values())


def _block(folder, seed: int, n_rows: int, noise: float, n_sums: int) -> dict[str, float]:
    made = shifted_blocks(n_blocks=1, n_components=5, n_train=n_rows, seed=seed)
    names = [f"site-{i}" for i in range(5)]
    rows = {name: made.X[made.nodes == i] for i, name in enumerate(names)}
    # Units that could have been agreed upon beforehand: to one digit.
    shift, scale = (
        tuple(float(f"{v:.1g}") for v in part)
        for part in (made.X_validation.mean(0), made.X_validation.std(0))
    )
    sites = Sites(folder, rows)
    for node in sites.nodes.values():
        node.ledger = node.point.ledger = Ledger(node.ledger.account, PrivacyBudget(np.inf, 1e-5))
    edges = tuple((a, b, 1.0) for a, b in zip(names, names[1:], strict=False))
    job = a_job(TrustThenPool(), n_components=dict.fromkeys(names, 5), edges=edges, seed=seed,
                n_rounds=n_sums, shift=shift, scale=scale,
                privacy={"clip": 3.0, "noise": noise})  # fmt: skip
    sites.run(job)
    told: dict[str, list[float]] = {}
    for i, name in enumerate(names):
        test = (made.X_validation[made.nodes_validation == i] - shift) / scale
        levels = sites.nodes[name].sessions[job.key].outcome.levels
        of = {level: levels.theta.at((j, 0)) for j, level in enumerate(levels.names)}
        for level, density in (of | {"weighed": levels.density.at(0)}).items():
            told.setdefault(level, []).append(float(density.log_density(test).mean()))
    return {level: float(np.mean(values)) for level, values in told.items()}
