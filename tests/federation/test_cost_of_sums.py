"""What an exchange of a masked sum costs as sites grow in number: in one process, boxes and all."""

from __future__ import annotations

import time
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest

import fedmixtures as fm
from federated import Sites, a_job, log_lines, record
from fedmixtures.federation.node.gate import Gate
from fedmixtures.methods import registry
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import Protocol, Sum

NUMBERS, SUMS = 100, 3


class OnlySums(Protocol):
    """A few sums of a hundred numbers over everybody."""

    sends: ClassVar[tuple[type, ...]] = (Sum,)

    def run(self, block):
        share = np.arange(NUMBERS, dtype=float)[None]
        for _ in range(SUMS):
            share = (yield Sum(share)) / len(block.data.rows)
        return Outcome(fm.Mixture(np.ones((1, 1)), np.zeros((1, 1, 2)), np.eye(2)[None, None]))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(registry._methods, "only-sums", OnlySums)


class Forgetful(dict):
    """Keys that are agreed upon anew for every box, as they once were."""

    def __contains__(self, key) -> bool:
        return False


def cost(folder, n_sites: int, forgetful: bool = False) -> dict[str, float]:
    """Seconds of all sites together for an exchange, and bytes that leave one in it."""
    rng = np.random.default_rng(0)
    rows = {f"site-{i:03d}": rng.standard_normal((20, 2)) for i in range(n_sites)}
    names = list(rows)
    edges = tuple((a, b, 1.0) for a, b in zip(names, names[1:], strict=False))
    job = a_job(OnlySums(), n_components=dict.fromkeys(rows, 1), edges=edges)
    sites = Sites(folder, rows, gate=Gate())
    for key in sites.keys.values():
        key._agreed = Forgetful() if forgetful else key._agreed
    exchange = sites.rounds(job)
    exchange.begin()
    began, t = time.process_time(), 0
    while not all(site.is_over for site in exchange.sites.values()):
        exchange.round(t)
        t += 1
    seconds = time.process_time() - began
    sent = Counter()
    for line in log_lines(folder, names[0]):
        if line["event"] == "sent":
            sent[line["kind"]] += line["bytes"]
    return {
        "exchanges": t,
        "cpu_seconds_of_all_sites_per_exchange": seconds / t,
        "bytes_that_leave_a_site_to_show_a_share": sent["MaskedShare"] / SUMS,
        "bytes_that_leave_a_site_to_commit": sent["Commitment"] / SUMS,
    }


@pytest.mark.silos
def test_what_a_sum_costs(tmp_path, registered):
    found, before = {}, {}
    for n_sites in (4, 10, 50, 100):
        found[n_sites] = cost(tmp_path / str(n_sites), n_sites)
        before[n_sites] = cost(tmp_path / f"{n_sites}-before", n_sites, forgetful=True)
    record("cost-of-sums", seed=0, numbers=NUMBERS, by_sites=found, keys_agreed_anew=before)
    assert found[100]["exchanges"] == 1 + 2 * SUMS
