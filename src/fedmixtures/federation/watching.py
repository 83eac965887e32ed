"""What can be seen of runs from the hub: as lines for a terminal, and as a page that stays fresh.

Who is there, what each site is at and for whom it waits, what was refused and why, what budgets
have left. Nothing here is about rows: the hub does not know it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

SEVERAL = 5
"""Jobs that are shown: the latest."""
AT = {
    "": "getting ready",
    "models": "telling its mixture",
    "network": "asking who listens to whom",
    "sums": "adding up under masks",
    "others": "at another step",
}
"""What a site is at, in words."""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem }
tr { border-bottom: 1px solid #8884 } td { overflow-wrap: anywhere } .quiet { opacity: .7 }
.scroll { overflow-x: auto }
.wrong { color: #c0392b }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e8e8e8 }
.wrong { color: #ff8a75 } }
"""


@dataclass(frozen=True)
class JobState:
    """A job as the hub lists it."""

    name: str
    status: str
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each has told: `Segment.told`."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why sites have refused the job."""

    @property
    def is_running(self) -> bool:
        """Whether it is under way."""
        return "RUNNING" in self.status


@dataclass(frozen=True)
class Snapshot:
    """What one look at the hub has found."""

    connected: list[str]
    runs: list[JobState]
    when: float


def look(driver: Any, known: dict[str, dict[str, Any]] | None = None) -> Snapshot:
    """Ask the hub; `known` keeps how jobs have ended, so that each is asked for once."""
    known, runs = {} if known is None else known, []
    listed = sorted(driver.jobs(), key=lambda job: str(job.get("submit_time", "")))
    for job in listed[-SEVERAL:]:
        name, status, number = (str(job.get(key, "")) for key in ("job_name", "status", "job_id"))
        if "RUNNING" in status:
            runs.append(JobState(name, status, driver.progress(number)))
            continue
        if number not in known and "FINISHED" in status:
            try:
                known[number] = driver.ended(number)
            except Exception:  # another researcher's
                known[number] = {}
        end = known.get(number, {})
        status = str(end.get("outcome", status)).lower()
        runs.append(JobState(name, status, end.get("progress", {}), end.get("reasons", {})))
    return Snapshot(driver.connected(), runs, time.time())


def in_lines(seen: Snapshot) -> list[str]:
    """For a terminal."""
    lines = [f"connected: {', '.join(seen.connected) or 'nobody'}"]
    for run in seen.runs:
        lines.append(f"{run.name}  {run.status}")
        for site, how in sorted(run.sites.items()):
            lines.append(f"  {site}: {'; '.join(told(how, run.is_running))}")
        lines += [f"  {site} refused the job: {why}" for site, why in sorted(run.refused.items())]
    return lines


def told(how: dict[str, Any], is_running: bool = True) -> Iterator[str]:
    """What one site is at, in a few words each."""
    yield f"round {how['round']}"
    if is_running:
        yield AT.get(how.get("at", ""), AT["others"])
    if waiting := how.get("waiting_for"):
        yield f"waits for {', '.join(waiting)}"
    yield from refusals(how)
    if left := how.get("left"):
        yield f"budget left: {left[0]} jobs, {left[1]} models"


def refusals(how: dict[str, Any]) -> Iterator[str]:
    """Messages that a site has refused, from whom, how often and why."""
    for source, n in sorted(how.get("rejected", {}).items()):
        why = how.get("reasons", {}).get(source)
        yield f"refused {n} from {source}" + (f" ({why})" if why else "")


def as_page(seen: Snapshot, every: float) -> str:
    """One HTML file without a script, which the browser reads again every so many seconds."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seen.when))
    body = "".join(_section(run) for run in reversed(seen.runs)) or "<p>No job yet.</p>"
    here = escape(", ".join(seen.connected) or "nobody")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta http-equiv="refresh" content="{max(1, round(every))}">'
        f"<title>Runs · fedmixtures</title><style>{STYLE}</style></head><body>"
        f"<h1>Runs</h1><p>Connected to the hub: <b>{here}</b></p>{body}"
        f'<p class="quiet">Seen {when}. Rows, models and row counts are not known to the hub.</p>'
        "</body></html>\n"
    )


def _section(run: JobState) -> str:
    """One job."""
    rows = "".join(_row(site, how, run.is_running) for site, how in sorted(run.sites.items()))
    head = "".join(
        f'<th scope="col">{words}</th>'
        for words in ("site", "round", "step", "waits for", "refused", "budget left")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    table = f'<div class="scroll">{table}</div>' if rows else ""
    reasons = "".join(
        f'<p class="wrong">{escape(site)} refused the job: {escape(why)}</p>'
        for site, why in sorted(run.refused.items())
    )
    return f"<h2>{escape(run.name)}: {escape(run.status.lower())}</h2>{reasons}{table}"


def _row(site: str, how: dict[str, Any], is_running: bool) -> str:
    left = how.get("left") or []
    cells = (
        str(how["round"]),
        AT.get(how.get("at", ""), AT["others"]) if is_running else "",
        ", ".join(how.get("waiting_for", [])),
        "; ".join(refusals(how)),
        f"{left[0]} jobs, {left[1]} models" if left else "",
    )
    return f'<tr><th scope="row">{escape(site)}</th>' + "".join(
        f"<td>{escape(cell)}</td>" for cell in cells
    ) + "</tr>"  # fmt: skip
