"""`fedmixtures federate try` as a new user runs it: from an empty folder, with no settings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from federated import record

pytest.importorskip("cyclopts")
pytest.importorskip("nvflare")


def a_command(*arguments, cwd: Path) -> subprocess.CompletedProcess:
    command = [str(Path(sys.executable).parent / "fedmixtures"), "federate", "try", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)


@pytest.mark.silos
def test_one_command_from_an_empty_folder(tmp_path, home):
    began = time.time()
    done = a_command("-n", "3", cwd=tmp_path)
    took = time.time() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "round: site-1" in done.stdout
    assert "Open federation-try/report.html" in done.stdout
    assert (tmp_path / "federation-try" / "report.html").stat().st_size > 10_000
    for site in ("site-1", "site-2", "site-3"):
        log = tmp_path / "federation-try" / "federation" / "sites" / site / "state" / "log.jsonl"
        sent = [line for line in map(json.loads, log.read_text().splitlines()) if "bytes" in line]
        assert sent
        assert all({"round", "to", "bytes"} <= set(line) for line in sent)
    record("try", seed=0, command_line="federate try -n 3",
           seconds=took, printed=done.stdout.splitlines())  # fmt: skip


def test_events_are_told_in_words():
    from fedmixtures.cli.federate_try import ConsoleListener

    words = ConsoleListener().words
    progress = {
        "a": {"round": 3, "waiting_for": ["b"], "rejected": {}},
        "b": {"round": 2, "waiting_for": [], "rejected": {}},
    }
    assert words("progress", progress) == "round: a 3   b 2   waiting for b"
    assert words("segment ended", {"outcome": "lost", "sites": ["b"]}) == "lost b; going on"
    ended = {"outcome": "completed", "absent": ["b"], "held": {"a": 3}}
    assert "completed without b (a stands after round 3" in words("segment ended", ended)
    assert words("segment ended", {"outcome": "completed", "absent": []}) == "completed"


def test_what_cannot_run_is_refused_before_certificates_are_made(tmp_path):
    rows = "\n".join(f"h{i % 3},{i},{i % 5 if i % 3 or i < 9 else ''}" for i in range(60))
    (tmp_path / "data.csv").write_text(f"hospital,a,b\n{rows}\n")
    done = a_command("data.csv", "--nodes", "hospital", "--out", "try", cwd=tmp_path)
    assert done.returncode == 2
    assert "site 'h0' has too few rows with values of" in " ".join(done.stderr.split())
    assert not (tmp_path / "try").exists()
