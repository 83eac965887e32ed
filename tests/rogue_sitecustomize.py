"""Runs inside a member's processes: it takes part as it should, and attacks on top of that.

What it did is written to the file ``FEDERATION_ROGUE``.
"""

import json
import os

import numpy as np
from nvflare.apis.shareable import Shareable

from fedmixtures.federation.nvflare import transport as carrier
from fedmixtures.federation.wire.frames import Frame
from fedmixtures.federation.wire.message import SCHEMA

SELF, NEIGHBOUR, OTHER_NEIGHBOUR, STRANGER = "cork", "bergen", "delft", "aachen"
_send = carrier.AuxOutbox.send


def _model(**changes) -> bytes:
    parts = {
        "weights": np.full(3, 1 / 3),
        "means": np.zeros((3, 2)),
        "covariances": np.broadcast_to(np.eye(2), (3, 2, 2)).copy(),
    } | changes
    arrays = dict(parts) | {"rows": np.array(0.0)}
    return Frame({"schema": SCHEMA, "silent": 0}, arrays).encode()


BAD = {
    "NaN": _model(means=np.full((3, 2), np.nan)),
    "wrong shapes": _model(means=np.zeros((2, 2))),
    "not positive definite": _model(covariances=np.ones((3, 2, 2))),
    "outside the feasible set": _model(means=np.full((3, 2), 1e6)),
}


class Rogue:
    """Knows its own key, as any member does, and what it sent before."""

    def __init__(self):
        from pathlib import Path

        from fedmixtures.federation.wire.roster import Roster
        from fedmixtures.federation.wire.sealing import SiteKey

        own = Path(os.environ["FEDERATION_ROGUE_HOME"])
        self.key, self.roster = SiteKey.load(own / "site.key"), Roster.load(own / "roster.toml")
        self.first: dict[str, bytes] = {}
        self.done: list[str] = []

    def sealed(self, content, job, t, to, source=SELF) -> bytes:
        from fedmixtures.federation.wire.sealing import Address

        return self.key.seal(content, self.roster.sites[to], Address(job, t, source, to))

    def attack(self, engine, job, parcels) -> None:
        t = parcels[0].round
        for parcel in parcels:
            self.first.setdefault(parcel.destination, parcel.box)
        good = _model()
        plan = {
            3: [("writes to a non-neighbour", STRANGER, SELF, t,
                 self.sealed(good, job, t, STRANGER))],
            # Two rounds early, so that it lies there before the true one comes.
            4: [("forges the sender", NEIGHBOUR, "aachen", t + 2,
                 self.sealed(good, job, t + 2, NEIGHBOUR, "aachen"))],
            5: [("replays an old box", NEIGHBOUR, SELF, 0, self.first[NEIGHBOUR]),
                ("replays an old box as new", NEIGHBOUR, SELF, t, self.first[NEIGHBOUR])],
            11: [("names a site that does not exist", NEIGHBOUR, "zagreb", t, b"x" * 64)],
            12: [("100 MB", OTHER_NEIGHBOUR, SELF, t, bytes(100 * 2**20))],
        }  # fmt: skip
        for i, (name, content) in enumerate(BAD.items()):
            plan[6 + i] = [(name, NEIGHBOUR, SELF, t, self.sealed(content, job, t, NEIGHBOUR))]
        for name, to, source, number, box in plan.get(t, ()):
            self.send(engine, job, name, to, source, number, box)
        if t == 10:
            self.raw(engine, "no frame at all", NEIGHBOUR, b"\x80\x04\x95pickle")

    def send(self, engine, job, name, to, source, t, box) -> None:
        frame = Frame({"source": source, "round": t, "job": job}, boxes={"box": box}).encode()
        self.raw(engine, name, to, frame)

    def raw(self, engine, name, to, data) -> None:
        message = Shareable()
        message[carrier.BODY] = data
        with engine.new_context() as context:
            replies = engine.send_aux_request([to], carrier.BOX_TOPIC, message, 60.0, context)
        code = replies[to].get_return_code() if to in replies else None
        self.done.append([name, to, str(code)])
        with open(os.environ["FEDERATION_ROGUE"], "w") as file:
            json.dump(self.done, file)


_rogue = None


def _sends_more(self, parcels):
    global _rogue
    _rogue = _rogue or Rogue()
    _rogue.attack(self.engine, self.job_key, parcels)
    return _send(self, parcels)


carrier.AuxOutbox.send = _sends_more
