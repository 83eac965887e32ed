"""The one place where something leaves a site: what is sealed is what passed the gate here.

A message goes in, typed; a `Release` comes out, and only a `Release` is sealed. A type of message
without a rule in `RULES` cannot leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedmixtures.federation.node.accounts import Releases
from fedmixtures.federation.node.gate import Gate, GateRefusal
from fedmixtures.federation.node.program import may_merge
from fedmixtures.federation.node.rounding import rounded
from fedmixtures.federation.node.session import Refused, Session
from fedmixtures.federation.node.store import digest
from fedmixtures.federation.wire.message import (
    Message,
    ModelMessage,
    PrivateModelMessage,
    Silence,
    encode_message,
)
from fedmixtures.federation.wire.roster import Role, Roster
from fedmixtures.federation.wire.sealing import Address, SiteKey


@dataclass(frozen=True)
class Release:
    """A message as it may leave, in bytes, and how many components were merged for it."""

    content: bytes
    merged: int


class ReleasePoint:
    """Gate, rounding, budget, record and seal of one site."""

    def __init__(
        self, site: str, key: SiteKey, roster: Roster, gate: Gate, releases: Releases, secret: bytes
    ):
        self.site, self.key, self.roster = site, key, roster
        self.gate, self.releases, self.secret = gate, releases, secret

    def passed(self, message: object, session: Session) -> Release:
        """The message as far as its rule lets it through."""
        rule = RULES.get(type(message))
        if rule is None:
            raise GateRefusal(f"the release gate knows no {type(message).__name__}")
        allowed, merged = rule(self, message, session)
        return Release(encode_message(allowed), merged)

    def boxes(self, session: Session) -> tuple[dict[str, bytes], int | None]:
        """Sealed boxes of the round reached, by neighbour, and the components merged for them.

        Boxes that have left before are the same again. New ones are entered in the site's account
        and noted in the job's record before they are returned.
        """
        t = session.reached
        if (stored := session.store.boxes(t)) is not None:
            return stored, None
        release = self.passed(session.message(), session)
        self._note(session, t, release)
        sealed = {name: self._sealed(release, session, name, "site") for name in session.slots}
        session.store.keep_boxes(t, sealed)
        return sealed, release.merged

    def result(self, session: Session, collector: str) -> tuple[bytes, int]:
        """The final model, sealed for the researcher who collects it."""
        release = self.passed(session.message(), session)
        self._note(session, session.reached, release)
        self.releases.enter(session.fingerprint, session.job.n_rounds + 1)
        return self._sealed(release, session, collector, "researcher"), release.merged

    def _note(self, session: Session, t: int, release: Release) -> None:
        """No second answer: other content for a round that was released is refused."""
        mark = digest(release.content)
        if session.released.get(t, mark) != mark:
            raise Refused(f"another model of round {t} has already left this site")
        self.releases.enter(session.fingerprint, t)
        if t not in session.released:
            session.store.note(t, released=mark)
            session.released[t] = mark

    def _sealed(self, release: Release, session: Session, name: str, role: Role) -> bytes:
        address = Address(session.job.key, session.reached, self.site, name)
        return self.key.seal(release.content, self.roster.sealing_key(name, role), address)


def _model(point: ReleasePoint, message: ModelMessage, session: Session) -> tuple[Message, int]:
    """Small components merged, the rest rounded; silence where there are too few people."""
    mixture, gate = message.mixture, point.gate
    allowed, merged = gate.merged(
        mixture, session.support, session.feasible, may_merge=may_merge(session.given)
    )
    if allowed is None:
        return Silence(mixture.n_components, mixture.n_features), merged
    count = gate.threshold(mixture.n_features)
    coarse = rounded(allowed, gate.rounding, count, point.secret, session.feasible)
    return ModelMessage(coarse), merged


def _private(point: ReleasePoint, message: PrivateModelMessage, session: Session):
    """As it is: noise has made it private, and the gate would look at the rows again."""
    del point, session
    return message, 0


RULES: dict[type, Callable[..., tuple[Message, int]]] = {
    ModelMessage: _model,
    PrivateModelMessage: _private,
}
"""By which rule each type of message leaves."""
