"""One page for a site's administrator: what a job would release, how often, to whom, by which rule.

It is written from the job and the site's own file, by the same code that would refuse the job; what
has left, by the site's own log and accounts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmixtures.federation.job import Job, JobError
from fedmixtures.federation.node.budgets import BudgetSpent, Releases
from fedmixtures.federation.node.job_program import method_of, name_in, program_of
from fedmixtures.federation.node.ledger import Ledger, spent
from fedmixtures.federation.node.release import colluders
from fedmixtures.federation.node.site import JobRefused, SiteConfig
from fedmixtures.federation.node.store import json_lines
from fedmixtures.methods.protocol import Connect, PerNeighbour, Release, Sum, Walk, Whereabouts
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.mixture import Mixture

WIDTH = 88
KINDS = {
    "ModelMessage": "models",
    "PrivateModelMessage": "models with noise",
    "Silence": "messages that it has no model to tell",
    "PlaceMessage": "messages of about where rows lie",
    "IntegerMessage": "messages of whole numbers about the network",
    "MaskedShare": "masked parts of sums",
}


def explain(job: Job, config: SiteConfig) -> str:
    """The page."""
    site, d = config.name, len(job.features)
    neighbours = sorted(job.neighbours(site))
    lines = [
        f"Job {job.name!r}, as site {site!r} would run it",
        f"key {job.key} (for approved_jobs)",
        "",
        *_entry("Verdict", _verdict(job, config)),
        "",
        *_entry("Method", _method(job)),
        *_entry("Features", ", ".join(job.features) + _units(job)),
        *_entry("Data set", f"{config.data_set!r}, {config.data.name}, {_whose(config)}"),
        "",
        "WHAT LEAVES THIS SITE",
        *_entry("What", _what(job, config, d)),
        *_entry("How often", _how_often(job, config)),
        *_entry("To whom", _to_whom(job, config, neighbours)),
        *_entry("Rule", _rule(job, config, d)),
        *_entry("Budget", _budget(job, config)),
        "",
        "WHO LEARNS WHAT",
        *_entry("Neighbours", f"{_heard(job)}, and that this site is there."),
        *(_entry("Members", "of a sum: its total.") if job.needs_all else ()),
        *_entry(
            "Hub", "that this site takes part, the round it has reached, for whom it waits, whose "
            "messages it refused; sizes and times of boxes, which are all of one size in a round. "
            "No model.",
        ),
        *_entry("Nobody", _nobody(job)),
        "",
        "WHAT HAS LEFT SO FAR",
        *_entry("Log", what_left(config, job)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _heard(job: Job) -> str:
    if not job.needs_all:
        return "the models above"
    return "the totals of the sums" if _in_sums(job) else "the mixture above"


def _nobody(job: Job) -> str:
    counts = "exact row counts, parts of sums" if job.needs_all else "row counts, losses"
    return f"rows, {counts}."


def _entry(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)


def _verdict(job: Job, config: SiteConfig) -> str:
    try:
        program_of(job)
        config.permit(job, name_in(job))
        _releases(config).expect(job.key, job.releases)
    except (JobError, JobRefused, BudgetSpent) as refusal:
        return f"REFUSED. {refusal}."
    return (
        "allowed by this site's file, if a researcher on its roster has signed it. (The roster is "
        "looked at when the job comes.)"
    )


def _method(job: Job) -> str:
    method = job.method
    coupling = method["fields"].get("discrepancy") or {}
    kind = f" with {coupling['class']}" if "class" in coupling else ""
    start = (
        "a public start, the same everywhere" if job.privacy else "a k-means start from its rows"
    )
    rounds = f" {job.n_rounds} {'noisy sums' if _in_sums(job) else 'rounds'},"
    if job.needs_all and not _in_sums(job):
        rounds = ""  # it knows itself when it is done
    return (
        f"{method['class']}{kind},{rounds} {job.most_components} components, seed {job.seed}, from "
        f"{start}. All of this is in the signed part."
    )


def _units(job: Job) -> str:
    shift = f"; shifted by {list(job.shift)}" if job.shift else ""
    scale = f"; divided by {list(job.scale)}" if job.scale else ""
    return shift + scale or "; in the units of the columns"


def _whose(config: SiteConfig) -> str:
    if config.person is None:
        return "each row counted as a person of its own (no person column is named)"
    return f"people counted by the column {config.person!r}"


def _people(config: SiteConfig) -> str:
    return "rows" if config.person is None else "people"


def _sends(job: Job) -> set[type]:
    """Types of what the job's method says it sends."""
    return set(method_of(job).sends)


def _in_sums(job: Job) -> bool:
    """Whether nothing but sums with noise leaves."""
    return job.needs_all and job.privacy is not None


def _what(job: Job, config: SiteConfig, d: int) -> str:
    if _in_sums(job):
        return "its part of sums of clipped statistics over all sites, with noise; no model."
    k, kind = job.most_components, job.method["fields"].get("covariance_type", "full")
    numbers = k + k * d + TYPES[kind].compact(np.zeros((k, d, d))).size
    told, sums = _sends(job), ""
    if Release in told:
        sums += f" With it the number of {_people(config)}, rounded to a power of two."
    if Sum in told:
        sums += " And its part of sums of statistics over at least three sites."
    if Whereabouts in told:
        sums += " And of every column a coarse centre and spread, to half and a fifth of a spread."
    if not {Mixture, Release} & told:
        return sums.removeprefix(" And ") or "whole numbers about the network alone."
    return (
        f"a Gaussian mixture of this site's rows: at most {k} weights, {k} means and {k} "
        f"covariances ({kind}) of {d} features, {numbers} numbers.{sums}"
    )


def _how_often(job: Job, config: SiteConfig) -> str:
    if _in_sums(job):
        return f"parts of {job.n_rounds} sums."
    if job.needs_all:
        told = _sends(job)
        parts = {
            "centres and spreads once": Whereabouts in told,
            "the mixture once": Release in told,
            f"parts of at most {config.releases.max_sums} sums over the same members": Sum in told,
            "a bit to each neighbour, and who belongs to its group": {PerNeighbour, Connect, Walk}
            & told,
        }
        return "; ".join(part for part, is_sent in parts.items() if is_sent) + "."
    collected = job.collector is not None and config.limits.share_result
    result = f", and the last one once more to {job.collector}" if collected else ""
    return f"{job.n_rounds + 1} times to each neighbour: at the start and after each round{result}."


def _to_whom(job: Job, config: SiteConfig, neighbours: list[str]) -> str:
    sealed = f"{', '.join(neighbours) or 'nobody'}; sealed, each for one of them alone."
    parts = "all members of the sum, under masks that only the total takes off."
    if _in_sums(job):
        sealed = parts
    elif job.needs_all:
        sealed += f" Parts of sums: {parts}"
        if Whereabouts in _sends(job):
            sealed += " Centres and spreads: all sites."
    if job.collector is None:
        return f"{sealed} Nobody collects the final model."
    if config.limits.share_result:
        return f"{sealed} {job.collector} receives the final model (share_result = true)."
    return f"{sealed} {job.collector} asks for the final model and does not get it (share_result)."


def _rule(job: Job, config: SiteConfig, d: int) -> str:
    if job.privacy is not None:
        noise, clip = job.privacy["noise"], job.privacy["clip"]
        unit = "row" if config.person is None else "person"
        if job.needs_all:
            n = len(job.sites)
            return (
                f"differential privacy: what one {unit} adds to a sum is cut to the length of the "
                f"root of 3, and every total gets Gaussian noise of at least {noise:g} times what "
                f"one {unit} can move it by, even if {colluders(n)} of the {n} sites give theirs "
                "away."
            )
        return (
            f"differential privacy: each {unit}'s gradient is shortened to {clip:g}, and the mean "
            f"gets Gaussian noise of {noise:g} times what one {unit} can move it by, in every step."
        )
    gate = config.gate
    unit = _people(config)
    rounding = "as they are" if gate.rounding == 0 else (
        f"rounded by a secret offset to {gate.rounding:g} of the standard error that "
        f"{gate.threshold(d)} {unit} would give, or coarser"
    )  # fmt: skip
    masses = "" if not job.needs_all else (
        " Sums: masses first, and moments only of components with that many behind them."
    )  # fmt: skip
    if job.missing:
        masses += f" Where cells are missing, {unit} that have both of any two columns are counted."
    return (
        f"a component with fewer than {gate.threshold(d)} {unit} behind it is merged into its "
        f"nearest first; with fewer in all the site only listens. Numbers leave {rounding}.{masses}"
    )


def _budget(job: Job, config: SiteConfig) -> str:
    jobs, models = _releases(config).left()
    text = (
        f"this job takes 1 of {max(jobs, 0)} jobs and {job.releases} of {max(models, 0)} models "
        f"that are left of this data set (max_jobs = {config.releases.max_jobs}, max_models = "
        f"{config.releases.max_models})."
    )
    if job.privacy is not None:
        if _in_sums(job):
            cost = spent(((job.privacy["noise"], job.n_rounds),), config.privacy.delta)
            text += f" Its sums alone cost epsilon {cost:.2f} at delta {config.privacy.delta:g}."
        text += f" Epsilon in all jobs together: at most {config.privacy.epsilon:g}."
    return text


def _releases(config: SiteConfig) -> Releases:
    return Releases(config.account("releases"), config.releases, config.data_set)


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
    return f"{text}. Used of its budget: {_used(config, job)}."


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


def _used(config: SiteConfig, job: Job) -> str:
    allowed, (jobs, models) = config.releases, _releases(config).left()
    text = (
        f"{allowed.max_jobs - jobs} of {allowed.max_jobs} jobs and {allowed.max_models - models} "
        f"of {allowed.max_models} models"
    )
    if job.privacy is not None:
        epsilon = Ledger(config.account("ledger"), config.privacy).epsilon()
        text += f", epsilon {epsilon:.2f} of {config.privacy.epsilon:g}"
    return text
