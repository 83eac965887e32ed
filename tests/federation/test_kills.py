"""Kill -9 of sites and of the hub in a real federation: it goes on by itself, with the same models.

``FEDERATION_KILLS`` is the number of site kills at random moments (20 in `make federation`).
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from deployed import Recorder, a_fit, federation, fitted
from federated import SITES, record, same_bits

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

N_KILLS = int(os.environ.get("FEDERATION_KILLS", "3"))
KILLS_PER_FIT = 5
N_ROUNDS = 400


class Killer(Recorder):
    """Kills a party at a random moment of every segment, as often as it may."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.machine, self.left, self.who = None, 0, SITES
        self.kills: list[dict] = []
        self.missed, self.revived = 0, 0
        self.moment, self.round, self.victim, self.early = None, None, None, False

    def arm(self, machine, n: int, who=SITES) -> None:
        """Kill `n` times in the coming fit, one of `who` each time."""
        self.machine, self.left, self.who = machine, n, who
        self.moment, self.round, self.early = None, None, False

    def __call__(self, event, what):
        super().__call__(event, what)
        now = time.time()
        self._serve()
        if event == "segment" and self.left:
            self.victim, self.moment, self.round = str(self.rng.choice(self.who)), None, None
            self.early = self.rng.random() < 0.25
            if self.early:  # while processes start, say hello and compile
                self.moment = now + self.rng.uniform(0, 8)
        if event == "progress":
            self._recovered(now, what)
            if len(what) == len(SITES):
                self._aim(now, min(how["round"] for how in what.values()))
        if self.moment is not None and now >= self.moment and self.left:
            self._kill(event, what)

    def _aim(self, now: float, t: int) -> None:
        """Choose a round of this segment, so that there is room for the kills that follow."""
        if t > 0 and self.round is None and self.left and not self.early:
            room = max(1.0, (N_ROUNDS - 80 - t) / self.left)
            self.round = t + self.rng.uniform(0, room)
        if self.round is not None and t >= self.round:
            self.moment = now

    def _serve(self) -> None:
        """As a machine's service manager: NVFlare's own supervisor gives up after five restarts
        that are less than five minutes apart, which no site outside of this test meets."""
        for party in self.machine.parties.values() if self.machine else ():
            if party.given_up:
                party.start()
                self.revived += 1

    def _kill(self, event, what) -> None:
        """Now, unless the fit is nearly over."""
        rounds = {s: h["round"] for s, h in what.items()} if event == "progress" else {}
        if rounds and min(rounds.values()) > N_ROUNDS - 40:
            self.left, self.missed = 0, self.missed + 1
            return
        time.sleep(self.rng.uniform(0, 0.5))
        pids = [process.pid for process in self.machine.parties[self.victim].working()]
        self.machine.parties[self.victim].crash()
        running = rounds and min(rounds.values()) > 0
        self.kills.append(
            {"who": self.victim, "at": time.time(), "processes": len(pids), "rounds": rounds,
             "during": "rounds" if running else "start"}
        )  # fmt: skip
        self.left, self.early = self.left - 1, True  # one in a segment
        self.moment, self.round = None, None

    def _recovered(self, now: float, what) -> None:
        """A kill is over when all sites have gone past the rounds they had before it."""
        if not self.kills or "seconds" in self.kills[-1]:
            return
        kill = self.kills[-1]
        before = kill["rounds"] or {site: 0 for site in SITES}
        segments = [moment for moment, event, _ in self.events if event == "segment"]
        again = any(moment > kill["at"] for moment in segments)
        if again and all(what.get(s, {"round": 0})["round"] > t for s, t in before.items()):
            kill["seconds"] = round(now - kill["at"], 1)


@pytest.fixture(scope="module")
def killer():
    return Killer(seed=2)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, home, killer):
    with federation(tmp_path_factory.mktemp("fed"), listener=killer) as made:
        yield made


@pytest.fixture(scope="module")
def no_fault(machine):
    """Models of the same deployment when nothing happens. KL draws anew every round."""
    watched, models = fitted(machine, a_fit("kl", N_ROUNDS, name="undisturbed"))
    assert [segment["outcome"] for segment in watched.segments] == ["completed"]
    return models


def assert_nothing_lost(watched, kills) -> None:
    """Later segments begin where the common round was; no site had to go back further."""
    begun = [s["first_round"] for s in watched.segments if "first_round" in s]
    assert begun == sorted(begun)
    at_kill = [min(kill["rounds"].values()) for kill in kills if kill["rounds"]]
    # A neighbour is at most one round away; the last sign of life is up to a second old.
    assert watched.segments[-1]["first_round"] >= max(at_kill, default=0)


def test_sites_killed_at_random_moments(machine, killer, no_fault):
    done, fits, seconds = 0, [], []
    while done < N_KILLS:
        assert killer.missed < 3, "fits end before anybody is killed: raise N_ROUNDS"
        n = min(KILLS_PER_FIT, N_KILLS - done)
        killer.arm(machine, n)
        first = len(killer.kills)
        job = a_fit("kl", N_ROUNDS, name=f"disturbed-{len(fits)}")
        watched, models = fitted(machine, job, max_segments=40)
        kills = killer.kills[first:]
        same = all(same_bits(models[name], no_fault[name]) for name in SITES)
        assert_nothing_lost(watched, kills)
        fits.append({"outcomes": [s["outcome"] for s in watched.segments], "bitwise_equal": same,
                     "first_rounds": [s.get("first_round") for s in watched.segments]})  # fmt: skip
        assert same
        assert watched.segments[-1]["outcome"] == "completed"
        seconds += [kill["seconds"] for kill in kills if "seconds" in kill]
        done += len(kills)
    during = [kill["during"] for kill in killer.kills]
    record("kill-sites", seed=2, kills=done, successes=done, fits=fits, rounds_of_a_fit=N_ROUNDS,
           processes_killed=[kill["processes"] for kill in killer.kills],
           supervisors_started_again=killer.revived,
           killed_during={when: during.count(when) for when in sorted(set(during))},
           seconds_from_kill_to_new_rounds=sorted(seconds),
           median_seconds=float(np.median(seconds)))  # fmt: skip


@pytest.mark.parametrize("repetition", range(2))
def test_the_hub_killed(machine, killer, no_fault, repetition):
    killer.arm(machine, 1, ("hub",))
    job = a_fit("kl", N_ROUNDS, name=f"hub-{repetition}")
    first = len(killer.kills)
    watched, models = fitted(machine, job)
    (kill,) = killer.kills[first:]
    assert all(same_bits(models[name], no_fault[name]) for name in SITES)
    assert_nothing_lost(watched, [kill])
    record(f"kill-hub-{repetition}", seed=2, kill=kill | {"at": None}, bitwise_equal=True,
           outcomes=[segment["outcome"] for segment in watched.segments],
           first_rounds=[segment.get("first_round") for segment in watched.segments])  # fmt: skip
