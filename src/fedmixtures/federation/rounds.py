"""The rounds of a fit, without a carrier: what a site asks of its node, and what it has to send.

A carrier moves parcels between sites and decides how long to wait; everything else is here. The one
of `in_process` hands them over in a dictionary, that of `nvflare` through a hub. No JAX in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedmixtures.federation.job import Job, SignedJob
from fedmixtures.federation.wire.frames import Frame, request

Ask = Callable[[Frame], Frame]
"""A node: request in, reply out."""


class NodeRefused(RuntimeError):
    """A node refused a request."""

    def __init__(self, reply: Frame):
        super().__init__(str(reply.head.get("reason")))
        self.reply = reply


@dataclass(frozen=True)
class Parcel:
    """A sealed box with what is written on it, which only the receiving node can verify."""

    source: str
    destination: str
    round: int
    box: bytes


def asked(ask: Ask, frame: Frame) -> Frame:
    """The reply to a request; a refusal is raised."""
    reply = ask(frame)
    if reply.head.get("kind") == "refused":
        raise NodeRefused(reply)
    return reply


def hello(signed: SignedJob) -> Frame:
    """The request that shows a job to a site."""
    return request("hello", **signed.to_plain())


def common_round(replies: Mapping[str, Frame]) -> int:
    """The largest round that all sites can go back to, from their replies to `hello`."""
    return max(set.intersection(*(set(reply.head["rounds"]) for reply in replies.values())))


def with_parcels(frame: Frame, parcels: Sequence[Parcel]) -> Frame:
    """A request with the boxes that came for the node."""
    listed = [{"source": p.source, "round": p.round, "box": f"{i}"} for i, p in enumerate(parcels)]
    boxes = {f"{i}": parcel.box for i, parcel in enumerate(parcels)}
    return Frame({**frame.head, "messages": listed}, boxes=boxes)


def parcels_of(reply: Frame) -> list[Parcel]:
    """What a node's reply asks to be carried."""
    site = reply.head["site"]
    return [
        Parcel(site, entry["destination"], entry["round"], reply.boxes[entry["box"]])
        for entry in reply.head.get("boxes", ())
    ]


class SiteRounds:
    """One site's part in a fit.

    Parameters
    ----------
    ask
        The site's node.
    job
        A job that the node has accepted.
    site
        Name of the site.
    present
        Sites that take part just now.
    """

    def __init__(self, ask: Ask, job: Job, site: str, present: Iterable[str]):
        self.ask, self.job, self.site = ask, job, site
        self.present = set(present)
        self.partners = set(job.neighbours(site))
        self.fresh: set[str] = set()
        self.round = -1
        self.at = ""
        """What the site is at: what its last messages are of."""
        self.reply: Frame | None = None

    @property
    def neighbours(self) -> set[str]:
        """Sites that this one exchanges messages with just now, as far as they are there."""
        return self.partners & self.present

    @property
    def is_over(self) -> bool:
        """Whether this site has done all it can: all rounds, or nobody is there to speak to it."""
        over = self.reply is not None and bool(self.reply.head.get("over"))
        alone = bool(self.partners) and not self.neighbours
        return over or self.round >= self.job.last_round or alone

    @property
    def missing(self) -> set[str]:
        """Neighbours whose message of this round has not come."""
        return self.neighbours - self.fresh

    def begin(self, t: int) -> list[Parcel]:
        """Stand after round `t`; what is to be sent."""
        present = sorted(self.present | {self.site})
        frame = request("share", job=self.job.key, round=t, present=present)
        return self._stands(asked(self.ask, frame))

    def take(self, parcels: Sequence[Parcel]) -> list[dict[str, str]]:
        """Show the node what came; what it rejected, and why."""
        frame = request("take", job=self.job.key, round=self.round)
        reply = asked(self.ask, with_parcels(frame, parcels))
        self.fresh = set(reply.head["fresh"])
        return reply.head["rejected"]

    def step(self, parcels: Sequence[Parcel] = ()) -> list[Parcel]:
        """One round; what is to be sent, nothing if the node holds because it heard nobody."""
        frame = request("step", job=self.job.key, round=self.round)
        reply = asked(self.ask, with_parcels(frame, parcels))
        if reply.head["held"]:
            self.reply = reply
            return []
        return self._stands(reply)

    def result(self) -> Frame:
        """The final model, sealed for the job's collector where the site allows it."""
        return asked(self.ask, request("result", job=self.job.key))

    def _stands(self, reply: Frame) -> list[Parcel]:
        self.reply, self.round, self.fresh = reply, reply.head["round"], set()
        self.partners = set(reply.head["partners"])
        self.at = reply.head.get("step") or self.at
        return parcels_of(reply)
