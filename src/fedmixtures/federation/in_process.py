"""A dictionary of nodes that exchange frames: the federation without a network, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmixtures.federation.job import Job
from fedmixtures.federation.node.node import Node
from fedmixtures.federation.wire.frames import Frame, request


class NodeRefused(RuntimeError):
    """A node refused a request."""


def ask(node: Node, frame: Frame) -> Frame:
    """Send a request to a node and read its reply; a refusal is raised."""
    reply = Frame.decode(node.handle(frame.encode()))
    if reply.head["kind"] == "refused":
        raise NodeRefused(reply.head["reason"])
    return reply


class Exchange:
    """Carries boxes between nodes, round by round, all nodes in step."""

    def __init__(self, nodes: Mapping[str, Node], job: Job):
        self.nodes, self.job = nodes, job
        self.waiting: dict[str, list[tuple[dict[str, Any], bytes]]] = {name: [] for name in nodes}
        self.replies: dict[str, Frame] = {}

    def begin(self) -> int:
        """Say hello, go to the largest common round, share it; returns that round."""
        plain = self.job.to_json()
        hello = request("hello", job=_parsed(plain))
        rounds = [set(ask(node, hello).head["rounds"]) for node in self.nodes.values()]
        first = max(set.intersection(*rounds))
        for name, node in self.nodes.items():
            self.deliver(name, ask(node, request("share", job=self.job.key, round=first)))
        return first

    def deliver(self, source: str, reply: Frame) -> None:
        """Put a node's boxes where they are addressed to."""
        for entry in reply.head.get("boxes", ()):
            message = {"source": source, "round": entry["round"], "box": f"from {source}"}
            if entry["destination"] in self.waiting:
                self.waiting[entry["destination"]].append((message, reply.boxes[entry["box"]]))

    def step_frame(self, name: str, t: int) -> Frame:
        """The request of round `t` for one node, with all that waits for it."""
        waiting, self.waiting[name] = self.waiting[name], []
        head = request("step", job=self.job.key, round=t, messages=[m for m, _ in waiting]).head
        return Frame(head, boxes={m["box"]: box for m, box in waiting})

    def round(self, t: int) -> None:
        """One round of every node."""
        frames = {name: self.step_frame(name, t) for name in self.nodes}
        self.replies = {name: ask(self.nodes[name], frame) for name, frame in frames.items()}
        for name, reply in self.replies.items():
            self.deliver(name, reply)

    def run(self) -> None:
        """The whole fit."""
        for t in range(self.begin(), self.job.n_rounds):
            self.round(t)


def _parsed(text: str) -> Any:
    import json

    return json.loads(text)
