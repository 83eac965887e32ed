"""A site's own configuration: where its rows are and how far it lets a job go. It always wins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.federation.job import Job
from fedmixtures.federation.node.budgets import (
    LockedRecord,
    ReleaseBudget,
    Versions,
    marks_of,
)
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.ledger import PrivacyBudget


class JobRefused(ValueError):
    """The job asks for more than the site allows."""


@dataclass(frozen=True)
class Limits:
    """What a job may ask of this site at most."""

    max_rounds: int = 1000
    max_components: int = 64
    methods: tuple[str, ...] | None = None
    """Names of the methods that may run, as in a job; None for all that are installed here."""
    neighbours: tuple[str, ...] | None = None
    """Sites that may receive this site's model; None for every site on the roster."""
    approved_jobs: tuple[str, ...] | None = None
    """Keys of the jobs that may run; None for every job that a researcher on the roster signed and
    that keeps to this file."""
    share_result: bool = False
    """Whether the final model may go to the job's collector."""
    require_privacy: bool = False
    """Whether only jobs with differential privacy are run; a section [privacy] says so too."""
    max_frame_bytes: int = 16 * 2**20


@dataclass(frozen=True)
class SiteConfig:
    """One TOML file with the sections data, limits, release_gate, releases and privacy."""

    name: str
    data: Path
    columns: tuple[str, ...]
    key: Path
    roster: Path
    state: Path
    person: str | None = None
    """Column that says whose a row is: people are counted then, not rows."""
    data_set: str = "rows"
    """Name of the data set: releases are counted by it, also when rows are added."""
    limits: Limits = field(default_factory=Limits)
    gate: Gate = field(default_factory=Gate)
    releases: ReleaseBudget = field(default_factory=ReleaseBudget)
    privacy: PrivacyBudget = field(default_factory=PrivacyBudget)

    @classmethod
    def load(cls, path: str | Path) -> SiteConfig:
        """Read the file; paths in it are relative to it."""
        path = Path(path)
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{str(path)!r} is no valid TOML: {error}.") from None
        sections = {"data", "limits", "release_gate", "releases", "privacy"}
        _known(path, "", plain, {"name", "key", "roster", "state", *sections})
        try:
            data = plain["data"]
            _known(path, "data", data, {"path", "columns", "person", "name"})
            limits = _section(path, "limits", Limits, plain)
            if "privacy" in plain:  # who gives a budget means it
                limits = replace(limits, require_privacy=True)
            return cls(
                name=plain["name"],
                data=path.parent / data["path"],
                columns=tuple(data["columns"]),
                key=path.parent / plain.get("key", "site.key"),
                roster=path.parent / plain.get("roster", "roster.toml"),
                state=path.parent / plain.get("state", "state"),
                person=data.get("person"),
                data_set=data.get("name", "rows"),
                limits=limits,
                gate=_section(path, "release_gate", Gate, plain),
                releases=_section(path, "releases", ReleaseBudget, plain),
                privacy=_section(path, "privacy", PrivacyBudget, plain),
            )
        except KeyError as missing:
            raise ValueError(f"{str(path)!r} lacks the entry {missing}.") from None

    def read_rows(self) -> Support:
        """Rows of this site, in the order of `columns`, and whose they are; empty cells are NaN."""
        from fedmixtures.io.tables import read_table

        table = read_table([str(self.data)], self.person, self.columns, constant_ok=True)
        if self.person is None:
            return Support(table.rows)
        return Support(table.rows, np.unique(table.nodes, return_inverse=True)[1].reshape(-1))

    def account(self, name: str) -> LockedRecord:
        """One of the site's accounts; that it was begun is kept apart from it."""
        return LockedRecord(self.state / f"{name}.json", self.key.parent / f".{self.name}.{name}")

    def versions(self, support: Support, secret: bytes) -> Versions:
        """The versions of the site's rows that something has left of, this one in view."""
        marks = marks_of(support.rows, support.people, secret)
        least = self.gate.threshold(len(self.columns))
        return Versions(self.account("rows"), self.data_set, least, marks)

    def permit(self, job: Job, method: str) -> None:
        """Refuse a job that asks for more than this file allows, with all the reasons at once."""
        limits, reasons = self.limits, []
        if self.name not in job.n_components:
            raise JobRefused(f"site {self.name!r} is no site of the job {job.name!r}")
        if limits.approved_jobs is not None and job.key not in limits.approved_jobs:
            reasons.append(f"the job {job.key} is not among approved_jobs")
        if job.n_rounds > limits.max_rounds and not job.needs_all:
            reasons.append(f"{job.n_rounds} rounds are asked for, {limits.max_rounds} allowed")
        if job.most_components > limits.max_components:
            asked = f"{job.most_components} components are asked for"
            reasons.append(f"{asked}, {limits.max_components} allowed")
        if limits.methods is not None and method not in limits.methods:
            allowed = ", ".join(limits.methods)
            reasons.append(f"the method {method!r} is not among those allowed: {allowed}")
        if limits.neighbours is not None:
            partners = set(job.sites) if job.needs_all else set(job.neighbours(self.name))
            strangers = sorted(partners - {self.name, *limits.neighbours})
            if strangers:
                reasons.append(f"no model may go to {_checks.listed(strangers)}")
        if len(job.features) != len(self.columns):
            reasons.append(
                f"the job has {len(job.features)} features, {len(self.columns)} are here"
            )
        if limits.require_privacy and job.privacy is None:
            reasons.append("only jobs with differential privacy are run here")
        if reasons:
            raise JobRefused(f"site {self.name!r} refuses the job: {'; '.join(reasons)}")


def _known(path: Path, section: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        where = f"[{section}] of {str(path)!r}" if section else repr(str(path))
        raise ValueError(f"{where} has an unknown entry {unknown[0]!r}. Known: {sorted(known)}.")


def _section(path: Path, name: str, kind: type, plain: Mapping[str, Any]) -> Any:
    """A section of the file as the record it stands for; entries of the wrong type are refused."""
    given = dict(plain.get(name, {}))
    default = kind()
    _known(path, name, given, set(vars(default)))
    for entry, value in given.items():
        if isinstance(value, list):
            given[entry] = value = tuple(value)
        wanted = type(getattr(default, entry))
        number = wanted is float and isinstance(value, int) and not isinstance(value, bool)
        if wanted is not type(None) and not isinstance(value, wanted) and not number:
            raise ValueError(
                f"[{name}] {entry} of {str(path)!r} is {value!r}. Give a {wanted.__name__}."
            )
    return kind(**given)
