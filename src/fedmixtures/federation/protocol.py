"""Requests to a node, as the hub and the engines write them: no JAX in here."""

from __future__ import annotations

from typing import Any

from fedmixtures.federation.frames import Frame

SCHEMA = "fedmixtures.node.1"


def request(kind: str, **entries: Any) -> Frame:
    """The head of a request to a node."""
    return Frame({"schema": SCHEMA, "kind": kind, **entries})
