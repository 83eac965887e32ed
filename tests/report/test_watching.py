"""Runs as they are watched: in the terminal, and on a page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedmixtures.federation.watching import AT, as_page, in_lines, look

pytest.importorskip("cryptography")
RUNNING = {
    "hospital-1": {"round": 41, "at": "sums", "waiting_for": ["hospital-2"], "left": [4, 499],
                   "rejected": {"hospital-2": 3}, "reasons": {"hospital-2": "no <b>model</b>"}},
    "hospital-2": {"round": 40, "at": "network", "waiting_for": [], "left": [5, 500],
                   "rejected": {}, "reasons": {}},
}  # fmt: skip
ENDED = {"outcome": "refused", "reasons": {"hospital-1": "2 components allowed"}}


class Hub:
    """As a driver sees a hub with a job under way, one that was refused, one of somebody else."""

    asked = 0

    def connected(self):
        return ["hospital-1", "hospital-2"]

    def jobs(self):
        listed = ("FINISHED:COMPLETED", "FINISHED:COMPLETED", "RUNNING")
        names = zip(("others", "earlier", "bmi-groups"), listed, strict=True)
        return [
            {"job_id": str(i), "job_name": name, "status": status, "submit_time": f"2026-{i}"}
            for i, (name, status) in enumerate(names)
        ]

    def progress(self, job_id):
        assert job_id == "2"
        return RUNNING

    def ended(self, job_id):
        Hub.asked += 1
        if job_id == "0":
            raise PermissionError("not yours")
        return ENDED


@pytest.fixture
def seen():
    return look(Hub())


def test_lines_say_who_is_where_and_what_was_refused(seen):
    text = "\n".join(in_lines(seen))
    assert "connected: hospital-1, hospital-2" in text
    assert "earlier  refused\n  hospital-1 refused the job: 2 components allowed" in text
    assert (
        "hospital-1: round 41; adding up under masks; waits for hospital-2; refused 3 from "
        "hospital-2 (no <b>model</b>); budget left: 4 jobs, 499 models" in text
    )
    assert "others  finished:completed" in text


def test_how_a_job_has_ended_is_asked_for_once():
    known, Hub.asked = {}, 0
    for _ in range(3):
        look(Hub(), known)
    assert Hub.asked == 2


def test_the_page_in_a_browser_follows_and_runs_nothing(seen, opened):
    text = as_page(seen, 2.0)
    page = opened(text)
    assert page.complaints == []
    assert page.locator("h2").all_text_contents() == [
        "bmi-groups: running", "earlier: refused", "others: finished:completed",
    ]  # fmt: skip
    row = page.locator("tbody tr").first.locator("th, td").all_text_contents()
    assert row == ["hospital-1", "41", AT["sums"], "hospital-2",
                   "refused 3 from hospital-2 (no <b>model</b>)", "4 jobs, 499 models"]  # fmt: skip
    assert page.locator(".wrong").text_content().endswith("2 components allowed")
    assert page.locator("script, td b").count() == 0
    assert 'http-equiv="refresh" content="2"' in text
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.body.scrollWidth") <= 390
    assert not re.search(r"rows?[:=] ?\d", text)  # nothing about rows
    changed = as_page(look(Hub()), 2.0).replace(">41<", ">42<")
    Path(page.url.removeprefix("file://")).write_text(changed, encoding="utf-8")
    page.get_by_text("42", exact=True).wait_for(timeout=15_000)
