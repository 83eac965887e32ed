"""The federation without a network: nodes of one process hand each other their parcels."""

from __future__ import annotations

from collections.abc import Mapping

from fedmixtures.federation.job import SignedJob
from fedmixtures.federation.node.node import Node
from fedmixtures.federation.rounds import Parcel, SiteRounds, asked, common_round, hello
from fedmixtures.federation.wire.frames import Frame


def ask(node: Node, frame: Frame) -> Frame:
    """Send a request to a node as bytes and read its reply; a refusal is raised."""
    return asked(lambda sent: Frame.decode(node.handle(sent.encode())), frame)


class InProcessRounds:
    """Carries parcels between nodes, round by round, all nodes in step."""

    def __init__(self, nodes: Mapping[str, Node], signed: SignedJob):
        self.nodes, self.signed, self.job = nodes, signed, signed.job
        self.waiting: dict[str, list[Parcel]] = {name: [] for name in nodes}
        to = lambda name: lambda frame: ask(self.nodes[name], frame)
        self.sites = {name: SiteRounds(to(name), self.job, name, nodes) for name in nodes}
        self.replies: dict[str, Frame] = {}

    def begin(self) -> int:
        """Say hello, go to the largest common round, share it; returns the round reached.

        It is the next one where sites have left for good.
        """
        first = common_round({n: ask(node, hello(self.signed)) for n, node in self.nodes.items()})
        for name in self.nodes:
            self.deliver(self.sites[name].begin(first))
        return max(site.round for site in self.sites.values())

    def deliver(self, parcels: list[Parcel]) -> None:
        """Put parcels where they are addressed to."""
        for parcel in parcels:
            if parcel.destination in self.waiting:
                self.waiting[parcel.destination].append(parcel)

    def parcels_for(self, name: str) -> list[Parcel]:
        """All that waits for a site, taken out."""
        waiting, self.waiting[name] = self.waiting[name], []
        return waiting

    def round(self, t: int) -> None:
        """Round `t` of every node."""
        waiting = {name: self.parcels_for(name) for name in self.nodes}
        sent = []
        for name in self.nodes:
            site = self.sites[name]
            site.round = t
            sent += site.step(waiting[name])
            if site.reply is not None:
                self.replies[name] = site.reply
        self.deliver(sent)

    def run(self) -> None:
        """The whole fit."""
        t = self.begin()
        while not all(site.is_over for site in self.sites.values()):
            self.round(t)
            t += 1
