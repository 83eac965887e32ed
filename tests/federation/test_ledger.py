"""The privacy ledger in a real federation: it ends a fit at the budget, and outlives kill -9."""

from __future__ import annotations

import json

import pytest

from deployed import federation, fitted, saved, site_log
from federated import SITES, a_job, record, site_rows
from fedmixtures import MMD, FeasibleSet, GTVMin
from fedmixtures.federation.node.budgets import LockedRecord
from fedmixtures.federation.node.ledger import Ledger, PrivacyBudget, noise_for

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
BUDGET = PrivacyBudget(epsilon=3.0, delta=1e-5)
STEPS, ROUNDS = 2, 6


def private_job(name: str, noise: float, n_rounds: int):
    method = GTVMin(MMD(), n_local_steps=STEPS, feasible=FeasibleSet())
    privacy = {"clip": 1.0, "noise": noise}
    return a_job(method, name=name, privacy=privacy, n_rounds=n_rounds, collector="researcher")


def test_the_ledger_ends_a_fit_and_outlives_its_processes(tmp_path, home):
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    from fedmixtures.federation.driving import FederationError

    noise = noise_for(BUDGET.epsilon, BUDGET.delta, STEPS * ROUNDS)
    budget = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
    with federation(tmp_path / "fed", site_rows(), sections={"privacy": budget}) as machine:
        fitted(machine, private_job("within", noise, ROUNDS - 1))
        # One round is left of the budget: the second of this job is refused.
        job = private_job("past", noise, 3)
        with pytest.raises(FederationError, match="above its budget of 3") as first:
            machine.fit(job, patience=60)
        stood = {name: saved(machine, name, job)[0] for name in SITES}
        for name in SITES:
            machine.parties[name].crash()
        machine.driver.wait_for(SITES, 120)
        with pytest.raises(FederationError, match="above its budget of 3"):
            machine.fit(private_job("after-restart", noise, 1), patience=120)
        ledgers = {n: machine.folder / "sites" / n / "state" / "ledger.json" for n in SITES}
        steps = {n: json.loads(path.read_text())["steps"] for n, path in ledgers.items()}
        spent = {n: Ledger(LockedRecord(path), BUDGET).epsilon() for n, path in ledgers.items()}
        refusals = [
            line for line in site_log(machine, "aachen")
            if line["event"] == "refused" and "budget" in line["reason"]
        ]  # fmt: skip
    accountant = PLDAccountant().compose(GaussianDpEvent(noise), STEPS * ROUNDS)
    theirs = accountant.get_epsilon(BUDGET.delta)
    assert all(list(n.values()) == [STEPS * ROUNDS] for n in steps.values())
    assert all(t == 1 for t in stood.values())
    assert all(abs(e / theirs - 1) < 0.01 for e in spent.values())
    assert all(e <= BUDGET.epsilon for e in spent.values())
    assert refusals
    record("ledger", seed=3, budget=budget, noise_multiplier=noise, steps_charged=steps["aachen"],
           epsilon_of_the_ledger=spent["aachen"], epsilon_of_the_accountant=theirs,
           relative_difference=spent["aachen"] / theirs - 1, refusal=str(first.value),
           refused_again_after_kill_9_of_all_sites=True)  # fmt: skip
