"""Differential privacy: the noise, the clipping, and the ledger that ends it."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from federated import Sites, a_job, site_rows, step_frame
from fedmixtures import MMD, FeasibleSet, GTVMin
from fedmixtures.engine.layout.blocks import node_group
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.node.budgets import BudgetSpent, LockedRecord
from fedmixtures.federation.node.ledger import Ledger, PrivacyBudget, noise_for, spent
from fedmixtures.federation.node.private import PrivateGTVMin, public_start
from fedmixtures.federation.rounds import NodeRefused, parcels_of
from fedmixtures.federation.wire.frames import request
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.density import local_loss
from helpers import mixture


def ledger_at(path, budget=None) -> Ledger:
    return Ledger(LockedRecord(path), budget or PrivacyBudget())


def exact_epsilon(multiplier: float, delta: float) -> float:
    """Balle and Wang (2018), Theorem 8: the Gaussian mechanism's delta, solved for epsilon."""
    s = 1 / multiplier
    loss = lambda e: norm.cdf(s / 2 - e / s) - math.exp(e) * norm.cdf(-s / 2 - e / s) - delta
    return brentq(loss, 0, 200)


@pytest.mark.parametrize(("noise", "steps"), [(20.0, 200), (5.0, 10), (50.0, 1000)])
def test_the_ledger_agrees_with_the_accountant_and_with_the_theorem(tmp_path, noise, steps):
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    ledger = ledger_at(tmp_path / "ledger.json", PrivacyBudget(epsilon=100, delta=1e-5))
    for _ in range(5):
        ledger.charge(noise, steps // 5)
    accountant = PLDAccountant().compose(GaussianDpEvent(noise), steps)
    assert ledger.epsilon() == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)
    assert ledger.epsilon() == pytest.approx(exact_epsilon(noise / steps**0.5, 1e-5), rel=0.01)


def test_the_ledger_refuses_the_step_past_the_budget_and_survives_a_restart(tmp_path):
    budget = PrivacyBudget(epsilon=3.0, delta=1e-5)
    noise = noise_for(3.0, 1e-5, 20)
    for _ in range(4):
        ledger_at(tmp_path / "ledger.json", budget).charge(noise, 5)  # every time a new process
    ledger = ledger_at(tmp_path / "ledger.json", budget)
    assert 2.9 < ledger.epsilon() <= 3.0
    with pytest.raises(BudgetSpent, match="above its budget of 3"):
        ledger.charge(noise, 1)
    assert ledger_at(tmp_path / "ledger.json", budget).steps == {noise: 20}


@pytest.mark.parametrize(("epsilon", "expected"), [(3.0, 1.313), (8.0, 0.565)])
def test_noise_of_200_steps_at_small_nodes(epsilon, expected):
    """Noise on the mean gradient of 30 rows, in units of the clip: useless, as documented."""
    multiplier = noise_for(epsilon, 1e-5, 200)
    assert multiplier * 2 / 30 == pytest.approx(expected, abs=0.003)
    assert exact_epsilon(multiplier / 200**0.5, 1e-5) == pytest.approx(epsilon, rel=2e-3)
    assert noise_for(epsilon, 1e-5, 200) * 2 / 3000 == pytest.approx(expected / 100, abs=1e-4)


def test_nothing_spent_is_nothing():
    assert spent((), 1e-5) == 0


def private(noise: float, clip: float = 0.7) -> PrivateGTVMin:
    return PrivateGTVMin.of(GTVMin(MMD(), feasible=FeasibleSet()), clip, noise)


def noisy_gradients(program, theta, rows, n=1, weights=None):
    """Gradients of all parameters, one line per draw of the noise."""
    with double():
        weights = np.ones(len(rows)) if weights is None else weights
        group, _ = node_group("a", rows, weights, {})
        data = jax.tree.map(lambda part: part[0], group.data)
        leading = jax.tree.map(lambda part: jnp.asarray(part)[None], theta)
        draw = jax.jit(lambda key: program.noisy_gradient(leading, data, jr.split(key, 1)))
        found = [draw(jr.key(seed)) for seed in range(n)]
    return np.stack([np.concatenate([np.ravel(part[0]) for part in one.parts]) for one in found])


def test_gradients_are_clipped_row_by_row():
    theta, rows = mixture(0), 3 * np.random.default_rng(0).standard_normal((13, 2))
    expected = np.zeros(3 + 6 + 12)
    with double():
        model = jax.tree.map(jnp.asarray, theta)
        gradient = jax.jit(jax.grad(lambda p, x: local_loss(p, x[None], jnp.ones(1))))
        for row in rows:
            one = gradient(model, jnp.asarray(row))
            flat = np.concatenate([np.ravel(part) for part in one.parts])
            expected += flat * min(1.0, 0.7 / np.linalg.norm(flat)) / len(rows)
    (found,) = noisy_gradients(private(1e-300), theta, rows)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_noise_has_the_stated_size():
    theta, rows = mixture(0), np.random.default_rng(0).standard_normal((30, 2))
    draws = noisy_gradients(private(5.0), theta, rows, n=300)[:, :9]
    assert draws.std(0).mean() == pytest.approx(5.0 * 2 * 0.7 / 30, rel=0.05)


def private_job(**entries):
    method = GTVMin(MMD(), n_local_steps=2, feasible=FeasibleSet())
    return a_job(method, privacy={"clip": 1.0, "noise": 30.0}, n_rounds=3, **entries)


def test_a_private_job_starts_without_the_rows_and_stops_at_the_budget(tmp_path):
    sites, job = Sites(tmp_path, site_rows((96, 96, 96, 96))), private_job()
    exchange = sites.rounds(job)
    exchange.begin()
    start = sites.results(job)["aachen"]
    np.testing.assert_array_equal(start.means, public_start(3, 2, job.seed).means)
    exchange.round(0)
    ledgers = [json.loads((tmp_path / name / "ledger.json").read_text()) for name in sites.nodes]
    assert all(ledger["steps"] == {"30.0": 2} for ledger in ledgers)
    sites.nodes["aachen"].ledger.budget = PrivacyBudget(epsilon=1e-3)
    frame = step_frame(exchange, "aachen", 1)
    with pytest.raises(NodeRefused, match="above its budget"):
        ask(sites.nodes["aachen"], frame)
    assert sites.nodes["aachen"].sessions[job.key].round == 1


def test_going_back_gives_the_same_answer_and_is_not_charged_again(tmp_path):
    sites, job = Sites(tmp_path, site_rows((96, 96, 96, 96))), private_job()
    models = []
    for _ in range(2):
        sites.nodes = {name: sites.started(name) for name in sites.nodes}
        exchange = sites.rounds(job)
        exchange.begin()
        for node in sites.nodes.values():
            reply = ask(node, request("share", job=job.key, round=0))
            exchange.deliver(parcels_of(reply))
        exchange.round(0)
        models.append(sites.results(job)["aachen"].means)
    np.testing.assert_array_equal(*models)
    assert ledger_at(tmp_path / "aachen" / "ledger.json").steps == {30.0: 2}


def test_two_jobs_at_once_spend_one_budget(tmp_path):
    budget, noise = PrivacyBudget(epsilon=3.0, delta=1e-5), noise_for(3.0, 1e-5, 20)
    ledgers = [ledger_at(tmp_path / "ledger.json", budget) for _ in range(2)]
    for _ in range(2):
        for ledger in ledgers:
            ledger.charge(noise, 5)
    with pytest.raises(BudgetSpent):
        ledgers[0].charge(noise, 1)


def test_people_bound_the_gradient_not_rows():
    """One person with nine rows moves the mean no further than one with a single row."""
    theta, rows = mixture(0), 3 * np.random.default_rng(0).standard_normal((12, 2))
    people = np.array([0] * 9 + [1, 2, 3])
    weights = 1.0 / np.bincount(people)[people]
    (found,) = noisy_gradients(private(1e-300), theta, rows, weights=weights)
    rows[:9] = rows[0]
    (others,) = noisy_gradients(private(1e-300), theta, rows, weights=weights)
    assert np.linalg.norm(found - others) <= 2 * 0.7 / 4 + 1e-12
