"""What really left a site in a job, by the site's own log and accounts: one line for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedmixtures.federation.job import Job
from fedmixtures.federation.node.budgets import LockedRecord, Releases
from fedmixtures.federation.node.ledger import Ledger
from fedmixtures.federation.node.site import SiteConfig
from fedmixtures.federation.node.store import json_lines

KINDS = {
    "ModelMessage": "models",
    "PrivateModelMessage": "models with noise",
    "Silence": "messages that it has no model to tell",
    "Whole": "messages of whole numbers about the network",
    "MaskedShare": "masked parts of sums",
}


def what_left(config: SiteConfig, job: Job) -> str:
    """Rounds, kinds of messages, numbers, sums taken part in, and what is used of the budget."""
    log = [line for line in json_lines(config.state / "log.jsonl") if line.get("job") == job.key]
    sent = [line for line in log if line["event"] == "sent" and not line.get("again")]
    again = sum(bool(line.get("again")) for line in log)
    rounds = sorted({line["round"] for line in sent})
    if not rounds:
        return f"{config.name}: nothing left."
    told = [_told(kind, [s for s in sent if s["kind"] == kind]) for kind in KINDS]
    text = f"{config.name}, rounds {rounds[0]} to {rounds[-1]}: " + "; ".join(filter(None, told))
    if again:
        text += f"; boxes sent once more, unchanged: {again}"
    return f"{text}. Used of its budget: {_budget(config, job)}."


def _told(kind: str, lines: Sequence[dict[str, Any]]) -> str:
    """How many messages of one kind, how large, and to whom; a round's are one to each."""
    if not lines:
        return ""
    rounds = len({line["round"] for line in lines})
    numbers, to = max(line["numbers"] for line in lines), sorted({line["to"] for line in lines})
    if kind == "MaskedShare":
        size = f"at most {numbers} numbers each"
        return f"{KINDS[kind]}: {rounds}, {size}, of which {', '.join(to)} can read totals alone"
    size = f", at most {numbers} numbers each" if numbers else ""
    return f"{KINDS[kind]}: {rounds}{size}, to {', '.join(to)}"


def _budget(config: SiteConfig, job: Job) -> str:
    account = lambda name: LockedRecord(config.state / f"{name}.json", config.mark(name))
    allowed = config.releases
    jobs, models = Releases(account("releases"), allowed, config.data_set).left()
    text = (
        f"{allowed.max_jobs - jobs} of {allowed.max_jobs} jobs and {allowed.max_models - models} "
        f"of {allowed.max_models} models"
    )
    if job.privacy is not None:
        spent = Ledger(account("ledger"), config.privacy).epsilon()
        text += f", epsilon {spent:.2f} of {config.privacy.epsilon:g}"
    return text
