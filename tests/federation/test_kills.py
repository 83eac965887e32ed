"""Kill -9 of sites and of the hub in a real federation: it goes on by itself, with the same models.

By both carriers: a fit by GTV-KL, and Trust-then-Pool by masked sums, gated, rounded by default.
``FEDERATION_KILLS`` is the number of site kills at random moments (20 in `make federation`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from deployed import ROWS, Recorder, a_fit, federation, fitted
from federated import SITES, Sites, a_job, record, same_bits
from fedmixtures import TrustThenPool
from fedmixtures.federation.job import Job
from fedmixtures.federation.node.requests import Requests
from fedmixtures.methods.protocol import Broadcast, Sum
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

pytest.importorskip("nvflare")
pytest.importorskip("grpc")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

N_KILLS = int(os.environ.get("FEDERATION_KILLS", "3"))
KILLS_PER_FIT = {"kl": 5, "masked": 3}


def a_job_of(kind: str, name: str) -> Job:
    """KL draws anew every round: the hardest to resume."""
    if kind == "kl":
        return a_fit("kl", 400, name=name)
    return a_job(TrustThenPool(), name=name, n_rounds=1000, collector="researcher")


def phases(folder, monkeypatch) -> list[str]:
    """What every exchange of the Trust-then-Pool job is for, by the same job in one process."""
    found, carried = [], Requests._carried

    def watched(self, request):
        inner, answer = carried(self, request), None
        while True:
            try:
                exchange = inner.send(answer)
            except StopIteration as end:
                return end.value
            if self.site == SITES[0]:
                found.append(_phase(request))
            answer = yield exchange

    monkeypatch.setattr(Requests, "_carried", watched)
    Sites(folder, ROWS).run(a_job_of("masked", "phases"))
    return found


def _phase(request) -> str:
    if isinstance(request, Sum):
        pooled = isinstance(request.share, Statistics)
        return "pooled sums" if pooled else "sums of a few numbers"
    return "releases" if isinstance(request, Broadcast) else "bits and groups"


class Killer(Recorder):
    """Kills a party at a random moment of every segment, as often as it may."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.machine, self.left, self.who, self.n_rounds = None, 0, SITES, 0
        self.kills: list[dict] = []
        self.missed, self.revived = 0, 0
        self.moment, self.round, self.victim, self.early = None, None, None, False

    def arm(self, machine, n: int, n_rounds: int, who=SITES) -> None:
        """Kill `n` times in the coming fit of so many rounds, one of `who` each time."""
        self.machine, self.left, self.n_rounds, self.who = machine, n, n_rounds, who
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
            room = max(1.0, (0.8 * self.n_rounds - t) / self.left)
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
        if rounds and min(rounds.values()) > 0.9 * self.n_rounds:
            self.left, self.missed = 0, self.missed + 1
            return
        time.sleep(self.rng.uniform(0, 0.5))
        pids = [process.pid for process in self.machine.parties[self.victim].working()]
        self.machine.parties[self.victim].crash()
        kill = {"who": self.victim, "at": time.time(), "processes": len(pids), "rounds": rounds}
        self.kills.append(kill)
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


@pytest.fixture(scope="module", params=["nvflare", "grpc"])
def carrier(request):
    return request.param


@pytest.fixture(scope="module")
def killer(carrier):
    return Killer(seed=2)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, home, killer, carrier):
    how = {"listener": killer, "sections": {"release_gate": {}}, "carrier": carrier}
    with federation(tmp_path_factory.mktemp("fed"), **how) as made:
        yield made


@dataclass
class Undisturbed:
    """A fit to which nothing happened."""

    kind: str
    carrier: str
    models: dict[str, Mixture]
    n_rounds: int

    def same(self, models: dict[str, Mixture]) -> bool:
        """Whether these are the same models to the bit."""
        return all(same_bits(models[name], self.models[name]) for name in SITES)

    @property
    def suffix(self) -> str:
        """Of the names of results."""
        kind = "-masked" if self.kind == "masked" else ""
        return kind if self.carrier == "nvflare" else f"{kind}-{self.carrier}"


@pytest.fixture(scope="module", params=["kl", "masked"])
def no_fault(machine, request, carrier):
    watched, models = fitted(machine, a_job_of(request.param, "undisturbed"))
    (segment,) = watched.segments
    assert segment["outcome"] == "completed"
    n_rounds = max(how["round"] for how in segment["progress"].values())
    return Undisturbed(request.param, carrier, models, n_rounds)


def assert_nothing_lost(watched, kills) -> None:
    """Later segments begin where the common round was; no site had to go back further."""
    begun = [s["first_round"] for s in watched.segments if "first_round" in s]
    assert begun == sorted(begun)
    at_kill = [min(kill["rounds"].values()) for kill in kills if kill["rounds"]]
    # A neighbour is at most one round away; the last sign of life is up to a second old.
    assert watched.segments[-1]["first_round"] >= max(at_kill, default=0)


def test_sites_killed_at_random_moments(machine, killer, no_fault, tmp_path, monkeypatch):
    masked = no_fault.kind == "masked"
    what_for = phases(tmp_path, monkeypatch) if masked else ["rounds"] * no_fault.n_rounds
    fits, begun = [], len(killer.kills)
    done = lambda: len(killer.kills) - begun
    killer.missed = 0
    while done() < N_KILLS:
        assert killer.missed < 5, "fits end before anybody is killed"
        n = min(KILLS_PER_FIT[no_fault.kind], N_KILLS - done())
        killer.arm(machine, n, no_fault.n_rounds)
        first = len(killer.kills)
        job = a_job_of(no_fault.kind, f"disturbed-{len(fits)}")
        watched, models = fitted(machine, job, max_segments=40)
        assert_nothing_lost(watched, killer.kills[first:])
        same = no_fault.same(models)
        fits.append({"outcomes": [s["outcome"] for s in watched.segments], "bitwise_equal": same,
                     "first_rounds": [s.get("first_round") for s in watched.segments]})  # fmt: skip
        assert same
        assert watched.segments[-1]["outcome"] == "completed"
    kills = killer.kills[begun:]
    seconds = [kill["seconds"] for kill in kills if "seconds" in kill]
    at = [min(kill["rounds"].values(), default=0) for kill in kills]
    during = ["start" if t == 0 else what_for[min(t, len(what_for) - 1)] for t in at]
    record(f"kill-sites{no_fault.suffix}", seed=2, kills=len(kills), successes=len(kills),
           fits=fits, rounds_of_a_fit=no_fault.n_rounds, killed_during=dict(Counter(during)),
           processes_killed=[kill["processes"] for kill in kills],
           supervisors_started_again=killer.revived, rounds_reached_when_killed=sorted(at),
           seconds_from_kill_to_new_rounds=sorted(seconds),
           median_seconds=float(np.median(seconds)))  # fmt: skip


@pytest.mark.parametrize("repetition", range(2))
def test_the_hub_killed(machine, killer, no_fault, repetition):
    first = len(killer.kills)
    while len(killer.kills) == first:  # a fit may end before
        killer.arm(machine, 1, no_fault.n_rounds, ("hub",))
        name = f"hub-{repetition}-{killer.missed}"
        watched, models = fitted(machine, a_job_of(no_fault.kind, name))
    (kill,) = killer.kills[first:]
    assert no_fault.same(models)
    assert_nothing_lost(watched, [kill])
    record(f"kill-hub{no_fault.suffix}-{repetition}", seed=2, kill=kill | {"at": None},
           bitwise_equal=True, rounds_of_a_fit=no_fault.n_rounds,
           outcomes=[segment["outcome"] for segment in watched.segments],
           first_rounds=[segment.get("first_round") for segment in watched.segments])  # fmt: skip
