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

from fedmixtures.federation.masked_sums import (
    SumName,
    commitment,
    from_fixed,
    masked,
    to_fixed,
)
from fedmixtures.federation.node.budgets import Releases, Runs, Sums
from fedmixtures.federation.node.gate import Gate, GateRefusal
from fedmixtures.federation.node.job_program import may_merge
from fedmixtures.federation.node.ledger import Ledger
from fedmixtures.federation.node.private_pool import SENSITIVITY
from fedmixtures.federation.node.protocol_session import ProtocolSession
from fedmixtures.federation.node.rounding import normal, rounded, to_grid, uniform
from fedmixtures.federation.node.session import Refused
from fedmixtures.federation.node.store import digest
from fedmixtures.federation.node.summing import NoisyShare, Promise, SumShare
from fedmixtures.federation.node.whereabouts import Place
from fedmixtures.federation.wire.message import (
    Commitment,
    IntegerMessage,
    MaskedShare,
    Message,
    ModelMessage,
    PlaceMessage,
    PrivateModelMessage,
    RunNonce,
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
        self.used: Callable[[], None] = lambda: None
        """Takes note that something of the site's rows is about to leave; set by the node."""

    def passed(self, message: object, session: Any) -> ApprovedMessage:
        """The message as far as its rule lets it through."""
        rule = RULES.get(type(message))
        if rule is None:
            raise GateRefusal(f"the release gate knows no {type(message).__name__}")
        if session.job.privacy is not None and type(message) not in PRIVATE:
            raise GateRefusal(f"a private job sends no {type(message).__name__}")
        allowed, merged = rule(self, message, session)
        if not isinstance(allowed, NOTHING):
            self.releases.begin(session.fingerprint)
            if session.job.privacy is None:
                self.used()
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

    def opened(self, session: ProtocolSession) -> None:
        """All members have shown their shares of a sum: from now on its total is known."""
        if session.exchange is not None and session.exchange.members is not None:
            self.sums.opened(session.exchange.members)

    def heard(self, session: ProtocolSession, source: str) -> None:
        """A member has shown its share of a sum that this site has shown its own of."""
        if session.exchange is not None and session.exchange.members is not None:
            self.sums.heard(session.exchange.members, {self.site, source})

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
        if session.job.needs_all and not all(
            isinstance(release.message, NOTHING) for release in releases.values()
        ):
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
    """Pass it unchanged: noise has made it private, and the gate would look at the rows again."""
    point.releases.enter(session.fingerprint, session.n_models)
    return message, 0


def _whole(point: ReleasePoint, message: IntegerMessage, session: Any) -> tuple[Message, int]:
    """Pass it unchanged: it says whom this site listens to, and who belongs together."""
    del point, session
    return message, 0


def _place(point: ReleasePoint, message: Place, session: Any) -> tuple[Message, int]:
    """Coarsely, and nothing of columns with fewer cells than the gate asks for."""
    least = point.gate.threshold(len(session.job.features))
    content = message.centre.tobytes() + message.spread.tobytes()
    secret = hashlib.sha256(point.secret + b"place" + content).digest()
    return PlaceMessage(message.coarse(least, secret)), 0


def _drawn(point: ReleasePoint, message: RunNonce, session: Any) -> tuple[Message, int]:
    """Pass it unchanged: it was drawn, and nothing of the rows is in it."""
    del point, session
    return message, 0


def _promise(point: ReleasePoint, promise: Promise, session: Any) -> tuple[Message, int]:
    """A digest of the share as it will be shown in the next exchange. It tells nothing: no charge.

    The share is refused here already if it could not be shown.
    """
    share = promise.share
    name = session.sum_name(share.members, 1)
    point.sums.expect(session.fingerprint, share.members)
    if isinstance(share, NoisyShare):
        values = _noised(point, share, session, name)
    else:
        values = _rounded(point, share, session)
    shown = _masked(point, share, values, name)
    return Commitment(commitment(name, point.site, shown.numbers)), 0


def _share(point: ReleasePoint, share: SumShare, session: Any) -> tuple[Message, int]:
    """Rounded, then masked: nobody sees more than the sum over all members."""
    name = session.sum_name(share.members)
    point.sums.enter(session.fingerprint, share.members, _number(name), share.cost)
    return _masked(point, share, _rounded(point, share, session), name), 0


def _noisy(point: ReleasePoint, share: NoisyShare, session: Any) -> tuple[Message, int]:
    """Noise, then masks; charged once."""
    name = session.sum_name(share.members)
    if not point.sums.knows(session.fingerprint, share.members, _number(name)):
        point.ledger.charge(session.job.privacy["noise"], 1)
    point.sums.enter(session.fingerprint, share.members, _number(name), 1)
    return _masked(point, share, _noised(point, share, session, name), name), 0


def _rounded(point: ReleasePoint, share: SumShare, session: Any) -> np.ndarray:
    """A share on its grid, by secret offsets of its own.

    The same numbers are rounded in the same way in whatever sum, so that asking again tells no
    more; other numbers in another way, so that no crossing of a grid line can be looked for.
    """
    d = len(session.job.features)
    errors = point.gate.rounding * np.sqrt(point.gate.threshold(d)) * share.coarseness
    secret = hashlib.sha256(point.secret + share.values.tobytes() + errors.tobytes()).digest()
    offsets = uniform(secret, len(share.values))
    return to_grid(share.values, errors, offsets if share.draws is None else offsets[share.draws])


def _noised(point: ReleasePoint, share: NoisyShare, session: Any, name: SumName) -> np.ndarray:
    """A share with noise.

    The noise of any members but `colluders` makes up what the ledger is charged for. It is secret
    and always the same for the same share, so that a share that is sent again tells nothing new.
    """
    n = len(share.members)
    deviation = session.job.privacy["noise"] * SENSITIVITY / np.sqrt(n - colluders(n))
    content = point.secret + session.fingerprint.encode() + name.encode() + share.values.tobytes()
    drawn = deviation * normal(hashlib.sha256(content).digest(), len(share.values))
    # A whole number added to a whole number: no trace of either is left in low bits.
    return from_fixed(to_fixed(share.values)) + from_fixed(to_fixed(drawn))


def colluders(n: int) -> int:
    """Members whose noise a private sum of `n` can do without: fewer than half."""
    return (n - 1) // 2


def _number(name: SumName) -> tuple[int, int]:
    """What a sum is entered under."""
    return name.number, name.attempt


def _masked(
    point: ReleasePoint, share: SumShare | NoisyShare, values: np.ndarray, name: SumName
) -> MaskedShare:
    context = b"fedmixtures masks v1" + name.job.encode()
    secrets = {
        other: point.key.shared(point.roster.sealing_key(other, "site"), context)
        for other in share.members - {point.site}
    }
    return MaskedShare(masked(values, point.site, secrets, name), share.seen)


RULES: dict[type, Callable[..., tuple[Message, int]]] = {
    ModelMessage: _model,
    PrivateModelMessage: _private,
    IntegerMessage: _whole,
    RunNonce: _drawn,
    Place: _place,
    Promise: _promise,
    SumShare: _share,
    NoisyShare: _noisy,
}
"""By which rule each type of message leaves."""
NOTHING = (RunNonce, Commitment)
"""What leaves without telling anything about rows, and so is not counted."""
PRIVATE = (PrivateModelMessage, RunNonce, Promise, NoisyShare)
"""All that leaves in a job with differential privacy."""
