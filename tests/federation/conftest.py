"""Real silos leave nothing behind: looked after once, when all their tests are over."""

from __future__ import annotations

import os
import uuid

import pytest

MARK = "FEDMIXTURES_TEST_RUN"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder of the test's own: NVFlare's tools write into it."""
    before, os.environ["HOME"] = os.environ.get("HOME", "/"), str(tmp_path_factory.mktemp("home"))
    yield
    os.environ["HOME"] = before


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """Sites inside this process are never killed by force; those outside have their own."""
    wait, os.fsync = os.fsync, lambda file: None
    yield
    os.fsync = wait


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(request):
    """No process that a silo test started, and no listening socket of this process or its own."""
    silos = any(
        item.get_closest_marker(mark)
        for item in request.session.items
        for mark in ("silos", "deployed")
    )
    if not silos:
        yield
        return
    os.environ[MARK] = run = uuid.uuid4().hex
    yield
    del os.environ[MARK]
    left = _with_mark(run)
    assert not left, f"left behind: {left}"
    assert not _listening(os.getpid())
    if "FEDERATION_ALONE" in os.environ:  # nobody else is here: nothing at all may be left
        import psutil

        assert not [p for p in psutil.process_iter() if _lives(p) and p.pid != os.getpid()]
        assert not [c for c in psutil.net_connections() if c.status == psutil.CONN_LISTEN]


def _lives(process) -> bool:
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _with_mark(run: str) -> dict[int, str]:
    """Processes that were started with our mark in their environment."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                marked = f"{MARK}={run}".encode() in environment.read()
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                words = command.read()
        except OSError:
            continue
        if marked and int(pid) != os.getpid() and words:
            found[int(pid)] = words.replace(b"\x00", b" ").decode()[:200]
    return found


def _listening(pid: int) -> list:
    import psutil

    return [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
