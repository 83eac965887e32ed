"""Mutated frames against `Node.handle`: no crash, no accepted bad model, bounded memory.

A short slice runs here; ``FEDERATION_FRAMES=100000`` runs the whole of it (`make federation`).
"""

from __future__ import annotations

import collections
import os
import resource

import numpy as np
import pytest

from federated import Sites, a_job, record, site_rows, step_frame
from fedmixtures import MMD, FeasibleSet, GTVMin
from fedmixtures.federation.rounds import Parcel, with_parcels
from fedmixtures.federation.wire.frames import Frame, request
from fedmixtures.federation.wire.sealing import Address

N_FRAMES = int(os.environ.get("FEDERATION_FRAMES", "1500"))
BOUNDS = FeasibleSet()


def mutated(frame: bytes, rng: np.random.Generator) -> bytes:
    """A frame with a few bytes changed, cut, doubled, put in, or a number made extreme."""
    data = bytearray(frame)
    for _ in range(int(rng.integers(1, 4))):
        at, kind = int(rng.integers(len(data) + 1)), int(rng.integers(7))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at : at + int(rng.integers(1, 40))] = b""
        elif kind == 2:
            data[at:at] = data[: int(rng.integers(1, 40))]
        elif kind == 3:
            data[at:at] = rng.bytes(int(rng.integers(1, 20)))
        elif kind == 4:
            extreme = [np.nan, np.inf, -np.inf, 1e308, -1.0, 0.0, 1e-300, -0.0]
            span = len(data) - 8 * int(rng.integers(1, 20))
            data[max(0, span) : max(0, span) + 8] = np.float64(rng.choice(extreme)).tobytes()
        elif kind == 5:
            digits = [i for i, byte in enumerate(data[:2000]) if 48 <= byte <= 57]
            if digits:
                data[digits[int(rng.integers(len(digits)))]] = int(rng.integers(45, 58))
        else:
            words = [b"null", b"[]", b"{}", b"-1", b"1e999", b'"x"', b"true", b"9" * 30, b"[[[["]
            data[at : at + 4] = words[int(rng.integers(len(words)))]
    return bytes(data)


class Target:
    """A node after one round, put back to that round before every frame."""

    def __init__(self, folder):
        self.job = a_job(GTVMin(MMD(), n_local_steps=1, feasible=BOUNDS), n_rounds=4)
        self.sites = Sites(folder, site_rows((96, 96, 96, 96)))
        exchange = self.sites.rounds(self.job)
        exchange.begin()
        exchange.round(0)
        self.node = self.sites.nodes["aachen"]
        self.session = self.node.sessions[self.job.key]
        self.node.config.state.joinpath("log.jsonl").unlink()
        self.before = (self.session.round, self.session.state, dict(self.session.heard))
        self.step = step_frame(exchange, "aachen", 1)
        self.content = self._content()
        hello = self.sites.hello(self.job).encode()
        share = request("share", job=self.job.key, round=1).encode()
        self.frames = {"step": self.step.encode(), "hello": hello, "share": share}

    def _content(self) -> bytes:
        """What bergen really sent."""
        entry = next(m for m in self.step.head["messages"] if m["source"] == "bergen")
        address = Address(self.job.key, 1, "bergen", "aachen")
        box = self.step.boxes[entry["box"]]
        return self.node.key.open(box, self.sites.roster.sites["bergen"], address)

    def resealed(self, content: bytes) -> bytes:
        """A step in which bergen, a true neighbour, sends this."""
        address = Address(self.job.key, 1, "bergen", "aachen")
        box = self.sites.keys["bergen"].seal(content, self.sites.roster.sites["aachen"], address)
        frame = request("step", job=self.job.key, round=1)
        return with_parcels(frame, [Parcel("bergen", "aachen", 1, box)]).encode()

    def reset(self) -> None:
        self.session.round, self.session.state, heard = self.before
        self.session.heard = dict(heard)
        self.session.inputs, self.session.answered, self.session.released = {}, {}, {}
        for path in self.session.store.folder.glob("*-000002.*"):
            path.unlink()
        self.node.sessions = type(self.node.sessions)({self.job.key: self.session})


def is_good(model) -> bool:
    """The conditions of a usable model, written again."""
    w, mu, cov = (np.asarray(part) for part in model.parts)
    if not all(np.isfinite(part).all() for part in (w, mu, cov)):
        return False
    values = np.linalg.eigvalsh(cov[w > 0])
    return bool(
        abs(w.sum() - 1) < 1e-5
        and (w[w > 0] >= 0.01 - 1e-8).all()
        and (w >= 0).all()
        and (np.sqrt((mu**2).sum(-1)) <= 1000 + 1e-5).all()
        and values.min() >= 0.01 - 1e-5
        and values.max() <= 1000 + 1e-5
        and np.linalg.eigvalsh(cov).min() > 0
    )


@pytest.mark.silos
def test_mutated_frames(tmp_path):
    target, rng = Target(tmp_path), np.random.default_rng(0)
    kinds = ["step", "content", "share", "hello"]
    outcomes = collections.Counter()
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = peak()
    for i in range(N_FRAMES):
        kind = kinds[int(rng.choice(4, p=[0.48, 0.48, 0.035, 0.005]))]
        if kind == "content":
            frame = target.resealed(mutated(target.content, rng))
        else:
            frame = mutated(target.frames[kind], rng)
        target.reset()
        reply = Frame.decode(target.node.handle(frame))
        accepted = [m for r, m in target.session.heard.values() if r == 1 and m is not None]
        assert all(is_good(model) for model in accepted), i
        if target.session.state is not target.before[1]:
            assert all(np.isfinite(leaf).all() for leaf in target.session.result().parts)
        outcomes[f"{kind}: {'model taken' if accepted else reply.head['kind']}"] += 1
    grown = (peak() - memory) / 1024
    assert grown < 300, f"memory grew by {grown:.0f} MB"
    assert outcomes["content: step"] > 0.3 * N_FRAMES
    record(
        "fuzz",
        seed=0,
        crashes=0,
        bad_models_accepted=0,
        frames=N_FRAMES,
        outcomes=dict(outcomes),
        memory_grown_megabytes=round(grown),
    )
