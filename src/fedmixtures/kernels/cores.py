"""How many of the machine's cores a thread may fill."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_shared = threading.local()


def own_cores() -> int:
    """All cores, or as many as NPROC says; a part of them inside `cores_shared_by`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(os.environ.get("NPROC") or cores or 1) // getattr(_shared, "by", 1))


@contextmanager
def cores_shared_by(n: int) -> Iterator[None]:
    """In this block `n` threads do the same as this one, each with its part of the nodes."""
    before, _shared.by = getattr(_shared, "by", 1), n
    try:
        yield
    finally:
        _shared.by = before
