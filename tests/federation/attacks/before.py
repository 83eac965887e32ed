"""The attacks on the code as it was before anything was done about them, run once.

    git worktree add ../before 03ebcb8
    PYTHONPATH=../before/src:../before/tests:tests python tests/federation/attacks/before.py

writes results/federation/attacks-before.json. The tests beside this file are the same attacks on
the present code.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from fedmixtures.federation.message import decode_message, encode_message
from fedmixtures.federation.protocol import request
from fedmixtures.federation.sealing import Address

from attackers import (
    auc,
    clusters_of,
    count_from_weights,
    cutting_cells,
    hits,
    membership_scores,
    rows_by_differences,
    rows_in_cells,
    solve_for_rows,
    sums,
    sums_of_model,
    sums_of_step,
    voronoi_cells,
)
from federated import Sites, a_job
from fedmixtures import MMD, FeasibleSet, GTVMin, TrustThenPool
from fedmixtures.federation.in_process import Exchange, ask

os.environ["FEDMIXTURES_LET_NEIGHBOURS_RECOVER_ROWS"] = "yes"
VICTIM, ATTACKER = "aachen", "bergen"
PAIR = {"edges": ((VICTIM, ATTACKER, 1.0),)}
ANSWERED = 2
"""The round of Trust-then-Pool whose messages are answered with statistics."""


def blobs(m: int, d: int, rng, groups: int = 3) -> np.ndarray:
    """Rows of some groups; d features."""
    centres = np.zeros((5, d))
    centres[1, 0] = centres[2, -1] = 4.0
    centres[3, 0] = centres[4, -1] = -8.0
    return centres[np.arange(m) % groups] + rng.standard_normal((m, d))


class Conversation:
    """The attacker's side: a member with a key of its own, who speaks by hand to one true node."""

    def __init__(self, folder, rows, job, **limits):
        self.job = job
        self.sites = Sites(folder, {VICTIM: rows, ATTACKER: rows[:1]}, **limits)
        self.node = self.sites.nodes[VICTIM]
        ask(self.node, request("hello", job=json.loads(job.to_json())))
        self.session = self.node.sessions[job.key]
        self.begin()

    def begin(self):
        """From the start, as after a fault."""
        self.round = 0
        self.heard = self.read(ask(self.node, request("share", job=self.job.key, round=0)))

    def read(self, reply):
        """What the victim sent to the attacker."""
        entry = next(e for e in reply.head["boxes"] if e["destination"] == ATTACKER)
        address = Address(self.job.key, entry["round"], VICTIM, ATTACKER)
        key = self.sites.keys[ATTACKER]
        content = key.open(reply.boxes[entry["box"]], self.sites.roster.keys[VICTIM], address)
        return decode_message(content, self.session.like, None)

    def say(self, message):
        """Send a message for this round; the victim's next one."""
        address = Address(self.job.key, self.round, ATTACKER, VICTIM)
        box = self.sites.keys[ATTACKER].seal(
            encode_message(message), self.sites.roster.keys[VICTIM], address
        )
        listed = [{"source": ATTACKER, "round": self.round, "box": "b"}]
        frame = request("step", job=self.job.key, round=self.round, messages=listed)
        reply = ask(self.node, dataclasses.replace(frame, boxes={"b": box}))
        assert not reply.head["rejected"], reply.head
        self.round += 1
        self.heard = self.read(reply)
        return self.heard

    def statistics_under(self, cells):
        """Trust-then-Pool: the victim's sums under a mixture of the attacker's choice."""
        while self.round < ANSWERED:
            self.say(self.heard)  # its own words back: harmless and well formed
        scalars, (bit, letter) = self.heard
        crafted = type(letter)(*cells)
        _, (_, answer) = self.say((scalars, (bit, crafted)))
        return answer.mass, answer.first, answer.second


def trust_job(k: int, d: int, n_rounds: int = 8, **settings):
    settings = {"n_starts": 1, "n_folds": 2, "agree_rounds": 2} | settings
    features = tuple(f"x{i}" for i in range(d))
    return a_job(
        TrustThenPool(**settings), n_components=dict.fromkeys((VICTIM, ATTACKER), k),
        features=features, n_rounds=n_rounds, **PAIR,
    )  # fmt: skip


OPEN = {"couplings": ("TrustThenPool",), "share_counts": True}


def a1(folder, victims: int = 20):
    """One crafted message."""
    found = {}
    for m, d, k in ((60, 2, 3), (300, 2, 5), (200, 5, 3)):
        lost = spoke = 0
        for v in range(victims):
            rng = np.random.default_rng([1, m, d, v])
            rows = blobs(m, d, rng, k)
            talk = Conversation(folder / f"a1-{m}-{d}-{v}", rows, trust_job(k, d), **OPEN)
            if talk.heard is None:
                continue
            spoke += 1
            _, (_, letter) = talk.heard
            released = (letter.mass, letter.first, letter.second)
            answer = talk.statistics_under(cutting_cells(released, m, rng))
            lost += hits(rows_in_cells(*answer), rows, 1e-3) > 0
        found[f"{m} rows, {d} features, {k} components"] = lost / spoke
    return {"share_of_victims_that_lose_a_row_within_1e-3": found, "victims": victims}


def a2(folder, replays: int = 150):
    """The same question again and again, each time other cells: adaptive."""
    rng = np.random.default_rng(2)
    rows = blobs(60, 2, rng)
    talk = Conversation(folder / "a2", rows, trust_job(3, 2), **OPEN)
    found, box = [], [rows.min(0) - 1, rows.max(0) + 1]
    for _ in range(replays):
        talk.node.sessions[talk.job.key].round = None  # what a restarted process knows
        talk.begin()
        near = rng.uniform(*box, (1, 2)) + 0.4 * rng.standard_normal((3, 2))
        cells = voronoi_cells(near if rng.random() < 0.7 else rng.uniform(*box, (3, 2)))
        found += list(rows_in_cells(*talk.statistics_under(cells)))
    return {"replays": replays, "share_of_the_table_within_1e-3": hits(np.array(found), rows, 1e-3)
            / len(rows)}  # fmt: skip


def a3(folder):
    """Reads the pool rounds of an honest run, knows the mixtures, solves for the rows."""
    found = {}
    for m in (20, 40):
        rng = np.random.default_rng([3, m])
        rows = {VICTIM: blobs(m, 2, rng), ATTACKER: blobs(60, 2, rng)}
        job = trust_job(5, 2, n_rounds=34, agree_rounds=2)
        sites = Sites(folder / f"a3-{m}", rows, **OPEN)
        from fedmixtures.federation.gate import Gate

        sites.gate = Gate(0, 0)
        sites.nodes = {name: sites.started(name) for name in rows}
        exchange = Exchange(sites.nodes, job)
        exchange.begin()
        thetas, totals, before = [], [], None
        for t in range(job.n_rounds):
            exchange.round(t)
            state = sites.nodes[VICTIM].sessions[job.key].state
            theta = tuple(np.asarray(part)[0] for part in state.theta.parts)
            own = [np.asarray(part)[0] for part in jax.tree.leaves(state.own)]
            if t >= 7 and before is not None:
                # Own part of the message: the neighbour knows the flows, which are minus its own.
                fresh = [(new - 0.7 * old) / 0.3 for new, old in zip(own, before, strict=True)]
                thetas.append(theta)
                totals.append(flat(fresh))
            before = own
        assert np.allclose(totals[-1], sums(thetas[-1], rows[VICTIM]), atol=1e-8)
        solved = solve_for_rows(thetas, totals, m, rng, starts=4)
        found[f"{m} rows"] = hits(solved, rows[VICTIM], 0.01) / m
    return {"share_of_rows_within_0.01": found, "rounds_read": len(thetas)}


def flat(moments) -> np.ndarray:
    mass, first, second = moments
    upper = np.triu_indices(first.shape[1])
    return np.concatenate([mass[:, None], first, second[:, upper[0], upper[1]]], axis=1).ravel()


def gtv(**settings):
    return GTVMin(MMD(), feasible=FeasibleSet(), **({"n_local_steps": 1} | settings))


def a4(folder, victims: int = 20, jobs: int = 40):
    """One-round jobs that differ in scale and seed."""
    lost, rows_lost = 0, 0
    for v in range(victims):
        rng = np.random.default_rng([4, v])
        rows = blobs(60, 2, rng)
        sites = Sites(folder / f"a4-{v}", {VICTIM: rows, ATTACKER: rows[:1]})
        clusters = []
        for j in range(jobs):
            scale = tuple(rng.uniform(0.3, 3.0, 2).tolist())
            job = a_job(gtv(), n_components=dict.fromkeys((VICTIM, ATTACKER), 4), n_rounds=1,
                        seed=j, scale=scale, name=f"j{j}", **PAIR)  # fmt: skip
            node = sites.nodes[VICTIM]
            ask(node, request("hello", job=json.loads(job.to_json())))
            reply = ask(node, request("share", job=job.key, round=0))
            entry = reply.head["boxes"][0]
            address = Address(job.key, 0, VICTIM, ATTACKER)
            content = sites.keys[ATTACKER].open(
                reply.boxes[entry["box"]], sites.roster.keys[VICTIM], address
            )
            mixture, _ = decode_message(content, node.sessions[job.key].like, None)
            for n, s, q in clusters_of(*mixture.parts, 60, 0.01):
                clusters.append((n, s * scale, q * np.outer(scale, scale)))
        found = rows_by_differences(clusters, 1e-6)
        n = hits(found, rows, 1e-3)
        lost, rows_lost = lost + (n > 0), rows_lost + n
    return {"victims": victims, "jobs": jobs, "share_of_victims_that_lose_a_row": lost / victims,
            "share_of_the_tables": rows_lost / victims / 60}  # fmt: skip


def a5(folder, victims: int = 40):
    """Echoes the victim's model: the pull is zero, and two messages give the gradient."""
    rates, errors = {}, []
    for rate in (0.02, 0.2):
        scores, plain = ([], []), ([], [])
        for v in range(victims):
            rng = np.random.default_rng([5, v])
            rows, others = blobs(40, 2, rng), blobs(40, 2, rng)
            job = a_job(gtv(learning_rate=rate), n_components=dict.fromkeys((VICTIM, ATTACKER), 2),
                        n_rounds=2, **PAIR)  # fmt: skip
            talk = Conversation(folder / f"a5-{rate}-{v}", rows, job)
            first = talk.heard[0]
            second = talk.say((first, None))[0]
            found = sums_of_step(first.parts, second.parts, rate)
            errors.append(float(np.abs(found - sums(first.parts, rows) / len(rows)).max()))
            known = sums_of_model(second.parts)
            reference = blobs(600, 2, rng)
            for x, kept, by_model in zip((rows, others), scores, plain, strict=True):
                kept += list(membership_scores(first.parts, found, x, reference))
                by_model += list(membership_scores(second.parts, known, x, reference))
        rates[str(rate)] = {"auc": auc(*map(np.array, scores)),
                            "auc_by_the_last_model_alone": auc(*map(np.array, plain))}  # fmt: skip
    return {"median_error_of_the_sums": float(np.median(errors)), "by_learning_rate": rates}


def a6(folder):
    """The job names the researcher as a site."""
    rng = np.random.default_rng(6)
    rows = blobs(96, 2, rng)
    sites = Sites(folder / "a6", {VICTIM: rows}, share_result=False)
    job = a_job(gtv(), n_components=dict.fromkeys((VICTIM, "researcher"), 3),
                edges=((VICTIM, "researcher", 1.0),))  # fmt: skip
    ask(sites.nodes[VICTIM], request("hello", job=json.loads(job.to_json())))
    reply = ask(sites.nodes[VICTIM], request("share", job=job.key, round=0))
    address = Address(job.key, 0, VICTIM, "researcher")
    content = sites.keys["researcher"].open(
        reply.boxes[reply.head["boxes"][0]["box"]], sites.roster.keys[VICTIM], address
    )
    like = sites.nodes[VICTIM].sessions[job.key].like
    return {"researcher_got_the_model": decode_message(content, like, None) is not None}


def a7(folder):
    """Two processes of a site, each with its own view of the ledger."""
    from fedmixtures.federation.ledger import Ledger, noise_for, spent
    from fedmixtures.federation.site import Budget

    budget, noise = Budget(3.0, 1e-5), noise_for(3.0, 1e-5, 20)
    folder.mkdir(exist_ok=True)
    both = [Ledger(folder / "ledger.json", budget) for _ in range(2)]
    for ledger in both:
        for _ in range(4):
            ledger.charge(noise, 5)
    return {"budget": 3.0, "each_ledger_says": both[0].epsilon(),
            "really_spent": spent(((noise, 40),), 1e-5)}  # fmt: skip


def a8(folder, nodes: int = 50):
    """One patient with twelve visits, far from the others."""
    published = 0
    for i in range(nodes):
        rng = np.random.default_rng([8, i])
        person = rng.uniform(8, 12, 2)
        rows = np.concatenate([blobs(60, 2, rng), person + 0.02 * rng.standard_normal((12, 2))])
        job = a_job(gtv(), n_components=dict.fromkeys((VICTIM, ATTACKER), 4), **PAIR)
        talk = Conversation(folder / f"a8-{i}", rows, job)
        model = talk.heard[0].trimmed()
        published += hits(model.means, person[None], 0.02) > 0
    return {"nodes": nodes, "nodes_that_published_the_patient_within_0.02": published}


def a9(folder):
    """Finite numbers of 1.7e308 in a pool round."""
    rows = blobs(60, 2, np.random.default_rng(9))
    job = trust_job(3, 2, n_rounds=12, agree_rounds=1)
    talk = Conversation(folder / "a9", rows, job, **OPEN)
    try:
        for t in range(12):
            scalars, (bit, letter) = talk.heard
            if t >= 6:
                letter = jax.tree.map(lambda part: np.full_like(part, 1.7e308), letter)
            talk.say((scalars, (bit, letter)))
    except Exception as error:
        return {"job_ended_for_all": True, "reason": str(error)}
    return {"job_ended_for_all": False}


def a10(folder, victims: int = 60):
    """Row counts from the weights of the first message, silence from the size of a box."""
    right = 0
    for v in range(victims):
        rng = np.random.default_rng([10, v])
        m = int(rng.integers(40, 200))
        job = a_job(gtv(), n_components=dict.fromkeys((VICTIM, ATTACKER), 3), **PAIR)
        talk = Conversation(folder / f"a10-{v}", blobs(m, 2, rng), job)
        right += count_from_weights(talk.heard[0].weights, 1e-12, 11, 1000) == m
    model = len(encode_message(talk.heard))
    return {"victims": victims, "counts_guessed": right, "bytes_of_a_model": model,
            "bytes_of_silence": len(encode_message(None))}  # fmt: skip


ATTACKS = {"A1": a1, "A2": a2, "A3": a3, "A4": a4, "A5": a5, "A6": a6, "A7": a7, "A8": a8}
ATTACKS |= {"A9": a9, "A10": a10}


def main(names):
    path = Path("results/federation/attacks-before.json")
    found = json.loads(path.read_text()) if path.exists() else {"commit": "03ebcb8"}
    for name in names or ATTACKS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = {"what": ATTACKS[name].__doc__, **ATTACKS[name](Path(folder))}
        print(name, found[name], flush=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
