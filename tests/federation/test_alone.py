"""Where `make federation` runs: loopback alone, and one folder to write to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from federated import record

pytestmark = [
    pytest.mark.silos,
    pytest.mark.skipif("FEDERATION_ALONE" not in os.environ, reason="`make federation` sets it up"),
]


def test_only_loopback_and_the_temporary_folder(tmp_path):
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    places = [Path(__file__).parent, Path.cwd(), Path("/tmp"), Path("/var/tmp"), Path("/")]
    closed = []
    for place in places:
        with pytest.raises(OSError, match="Read-only"):
            (place / "fedmixtures-was-here").write_text("x")
        closed.append(str(place))
    (tmp_path / "x").write_text("x")
    record("alone", interfaces=["lo"], writable=["the tests' temporary folder", "the results"],
           places_that_refuse_to_be_written=len(closed))  # fmt: skip
