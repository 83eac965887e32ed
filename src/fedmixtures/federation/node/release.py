"""The one place where something leaves a site: what is sealed is what passed the gate here.

A message goes in, typed; a `ApprovedMessage` comes out, and only that is sealed. A type of message
without a rule in `RULES` cannot leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures.federation.masked_sums import SumName, from_fixed, masked, to_fixed
from fedmixtures.federation.node.budgets import Releases, Runs, Sums
from fedmixtures.federation.node.gate import Gate, GateRefusal
from fedmixtures.federation.node.job_program import may_merge
from fedmixtures.federation.node.ledger import Ledger
from fedmixtures.federation.node.private_pool import SENSITIVITY
from fedmixtures.federation.node.protocol_session import ProtocolSession
from fedmixtures.federation.node.rounding import normal, rounded, to_grid, uniform
from fedmixtures.federation.node.session import Refused
from fedmixtures.federation.node.store import digest
from fedmixtures.federation.node.summing import NoisyShare, SumShare
from fedmixtures.federation.wire.message import (
    IntegerMessage,
    MaskedShare,
    Message,
    ModelMessage,
    PrivateModelMessage,
    Silence,
    encode_message,
    n_numbers,
)
from fedmixtures.federation.wire.roster import Role, Roster
from fedmixtures.federation.wire.sealing import Address, SiteKey


@dataclass(frozen=True)
class ApprovedMessage:
    """A message as it may leave, its bytes, and how many components were merged for it."""

    message: Message
    content: bytes
    merged: int

    def in_words(self) -> dict[str, Any]:
        """For the site's log, without values: which kind, and how many numbers."""
        kind = type(self.message).__name__
        return {"kind": kind, "numbers": n_numbers(self.message), "merged": self.merged}


class ReleasePoint:
    """Gate, rounding, masks, budgets, record and seal of one site."""

    def __init__(
        self, site: str, key: SiteKey, roster: Roster, gate: Gate, releases: Releases, sums: Sums,
        runs: Runs, ledger: Ledger, secret: bytes,
    ):  # fmt: skip
        self.site, self.key, self.roster, self.gate = site, key, roster, gate
        self.releases, self.sums, self.runs = releases, sums, runs
        self.ledger, self.secret = ledger, secret

    def passed(self, message: object, session: Any) -> ApprovedMessage:
        """The message as far as its rule lets it through."""
        rule = RULES.get(type(message))
        if rule is None:
            raise GateRefusal(f"the release gate knows no {type(message).__name__}")
        if session.job.privacy is not None and type(message) not in PRIVATE:
            raise GateRefusal(f"a private job sends no {type(message).__name__}")
        allowed, merged = rule(self, message, session)
        self.releases.begin(session.fingerprint)
        content = encode_message(allowed, session.feasible.covariance_type)
        return ApprovedMessage(allowed, content, merged)

    def let_through(self, session: ProtocolSession) -> None:
        """What the node itself needs to know of its messages: how they leave."""
        if session.exchange is not None and not session.exchange.released:
            self._all(session)

    def _all(self, session: Any) -> dict[str, ApprovedMessage]:
        """Releases by destination; a message that goes to several is let through once."""
        outgoing, found, by_message = session.outgoing(), {}, {}
        for name, message in outgoing.items():
            if id(message) not in by_message:
                by_message[id(message)] = self.passed(message, session)
            found[name] = by_message[id(message)]
        if isinstance(session, ProtocolSession) and session.exchange is not None:
            session.exchange.released = {name: one.message for name, one in found.items()}
        return found

    def boxes(self, session: Any) -> tuple[dict[str, bytes], dict[str, ApprovedMessage]]:
        """Sealed boxes of the round reached, by destination, and what is in those that are new.

        Boxes that have left before are the same again. New ones are entered in the site's accounts
        and noted in the job's record before they are returned.
        """
        t = session.reached
        if (stored := session.store.boxes(t)) is not None:
            return stored, {}
        releases = self._all(session)
        self._note(session, t, b"".join(releases[name].content for name in sorted(releases)))
        if session.job.needs_all:
            self.runs.enter(session.job.key, session.fingerprint)
        sealed = {
            name: self._sealed(release, session, name, "site") for name, release in releases.items()
        }
        session.store.keep_boxes(t, sealed)
        return sealed, releases

    def result(self, session: Any, collector: str) -> tuple[bytes, ApprovedMessage]:
        """The final model, sealed for the researcher who collects it."""
        self.releases.enter(session.fingerprint, session.n_models + (not session.job.needs_all))
        release = self.passed(session.message(), session)
        return self._sealed(release, session, collector, "researcher"), release

    def _note(self, session: Any, t: int, content: bytes) -> None:
        """No second answer: other content for a round that was released is refused."""
        mark = digest(content)
        if session.released.get(t, mark) != mark:
            raise Refused(f"another message of round {t} has already left this site")
        if t not in session.released:
            session.store.note(t, released=mark)
            session.released[t] = mark

    def _sealed(self, release: ApprovedMessage, session: Any, name: str, role: Role) -> bytes:
        key = session.key if role == "site" else session.job.key  # who collects knows of no leave
        address = Address(key, session.reached, self.site, name)
        return self.key.seal(release.content, self.roster.sealing_key(name, role), address)


def _model(point: ReleasePoint, message: ModelMessage, session: Any) -> tuple[Message, int]:
    """Small components merged, the rest rounded; silence where there are too few people."""
    mixture, gate = message.mixture, point.gate
    point.releases.enter(session.fingerprint, session.n_models)
    allowed, merged = gate.merged(
        mixture, session.support, session.feasible, may_merge=may_merge(session.given)
    )
    if allowed is None:
        return Silence(mixture.n_components, mixture.n_features), merged
    count = gate.threshold(mixture.n_features)
    coarse = rounded(allowed, gate.rounding, count, point.secret, session.feasible)
    # Half as many or twice as many: no finer.
    rows = float(2.0 ** np.rint(np.log2(message.rows))) if message.rows > 0 else 0.0
    return ModelMessage(coarse, rows), merged


def _private(point: ReleasePoint, message: PrivateModelMessage, session: Any):
    """As it is: noise has made it private, and the gate would look at the rows again."""
    point.releases.enter(session.fingerprint, session.n_models)
    return message, 0


def _whole(point: ReleasePoint, message: IntegerMessage, session: Any) -> tuple[Message, int]:
    """As it is: whom this site listens to, and who belongs together."""
    del point, session
    return message, 0


def _share(point: ReleasePoint, share: SumShare, session: Any) -> tuple[Message, int]:
    """Rounded, then masked: nobody sees more than the sum over all members."""
    point.sums.enter(session.fingerprint, share.members, _number(session), share.cost)
    d = len(session.job.features)
    errors = point.gate.rounding * np.sqrt(point.gate.threshold(d)) * share.coarseness
    values = to_grid(share.values, errors, uniform(point.secret, len(share.values)))
    return _masked(point, share, values, session), 0


def _noisy(point: ReleasePoint, share: NoisyShare, session: Any) -> tuple[Message, int]:
    """Noise, then masks; charged once.

    The noise of any members but `colluders` makes up what the ledger is charged for. It is secret
    and always the same for the same share, so that a share that is sent again tells nothing new.
    """
    noise, number = session.job.privacy["noise"], _number(session)
    if not point.sums.knows(session.fingerprint, share.members, number):
        point.ledger.charge(noise, 1)
    point.sums.enter(session.fingerprint, share.members, number, 1)
    n = len(share.members)
    deviation = noise * SENSITIVITY / np.sqrt(n - colluders(n))
    said = [session.fingerprint, *map(str, number), *sorted(share.members)]
    content = point.secret + "|".join(said).encode() + share.values.tobytes()
    drawn = deviation * normal(hashlib.sha256(content).digest(), len(share.values))
    # A whole number added to a whole number: no trace of either is left in low bits.
    values = from_fixed(to_fixed(share.values)) + from_fixed(to_fixed(drawn))
    return _masked(point, share, values, session), 0


def colluders(n: int) -> int:
    """Members whose noise a private sum of `n` can do without: fewer than half."""
    return (n - 1) // 2


def _number(session: Any) -> tuple[int, int]:
    """By the exchange, which all members are in: not all of them have been in the same sums."""
    return session.reached, session.attempt


def _masked(
    point: ReleasePoint, share: SumShare | NoisyShare, values: np.ndarray, session: Any
) -> MaskedShare:
    context = b"fedmixtures masks v1" + session.job.key.encode()
    secrets = {
        name: point.key.shared(point.roster.sealing_key(name, "site"), context)
        for name in share.members - {point.site}
    }
    name = SumName(session.job.key, *_number(session), tuple(sorted(share.members)))
    return MaskedShare(masked(values, point.site, secrets, name), share.seen)


RULES: dict[type, Callable[..., tuple[Message, int]]] = {
    ModelMessage: _model,
    PrivateModelMessage: _private,
    IntegerMessage: _whole,
    SumShare: _share,
    NoisyShare: _noisy,
}
"""By which rule each type of message leaves."""
PRIVATE = (PrivateModelMessage, NoisyShare)
"""All that leaves in a job with differential privacy."""
