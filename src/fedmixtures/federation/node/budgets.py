"""What a site has spent on its rows in its whole life: releases here, epsilon in `ledger`.

Several jobs may run at once, in processes of their own: an account is read, checked and written
under a lock. A mark beside the site's key says that an account was begun, so that a deleted one is
noticed instead of being full again.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.federation.masked_sums import OpenedSets, SumRefused
from fedmixtures.io.storage import write_durably


class BudgetSpent(ValueError):
    """What is asked for is more than the site has left."""


class LockedRecord:
    """A JSON file that processes of one site share."""

    def __init__(self, path: Path, mark: Path | None = None):
        self.path, self.mark = path, mark

    @contextmanager
    def locked(self) -> Iterator[dict[str, Any]]:
        """The content, to be changed in place; written when the block ends without an error."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.read()
            before = json.dumps(content, sort_keys=True)
            yield content
            after = json.dumps(content, sort_keys=True)
            if after != before:
                if self.mark is not None and not self.mark.exists():
                    write_durably(self.mark, b"begun\n")
                write_durably(self.path, after.encode())

    def read(self) -> dict[str, Any]:
        """The content as it is just now."""
        try:
            return json.loads(self.path.read_text())
        except FileNotFoundError:
            if self.mark is not None and self.mark.exists():
                raise BudgetSpent(
                    f"this site's account {self.path.name!r} was begun and is gone: put it back "
                    "from a backup. Without it nothing leaves"
                ) from None
            return {}
        except ValueError:
            raise BudgetSpent(f"this site's account {self.path.name!r} is damaged") from None


@dataclass(frozen=True)
class ReleaseBudget:
    """How often something of one data set may leave the site, in all jobs together."""

    max_jobs: int = 5
    """Jobs that anything of the data set has left for, be it a single part of a sum."""
    max_models: int = 500
    max_sums: int = 40
    """Of one job over any one set of members; each of the statistics under up to four mixtures."""


class Releases:
    """Jobs that a data set was used in, and the models that left; entered before anything leaves.

    A job counts from the first thing that leaves for it, of whatever kind: whoever drops it then
    has had that.
    """

    def __init__(self, account: LockedRecord, budget: ReleaseBudget, data_set: str):
        self.account, self.budget, self.data_set = account, budget, data_set

    def expect(self, job: str, n_models: int) -> None:
        """Refuse a job that the budget does not last for."""
        self._afford(self.account.read().get(self.data_set, {}), job, n_models)

    def begin(self, job: str) -> None:
        """Something is about to leave for a job; for the same one again it costs nothing."""
        with self.account.locked() as content:
            jobs = content.setdefault(self.data_set, {})
            if job not in jobs:
                self._afford(jobs, job, 0)
                jobs[job] = 0

    def enter(self, job: str, item: int) -> None:
        """Model number `item` of a job is about to leave; the same one again costs nothing."""
        with self.account.locked() as content:
            jobs = content.setdefault(self.data_set, {})
            if jobs.get(job, 0) <= item:
                self._afford(jobs, job, item + 1)
                jobs[job] = item + 1

    def left(self) -> tuple[int, int]:
        """Jobs and models that are left."""
        jobs = self.account.read().get(self.data_set, {})
        return self.budget.max_jobs - len(jobs), self.budget.max_models - sum(jobs.values())

    def _afford(self, jobs: dict[str, int], job: str, n_models: int) -> None:
        others = {key: n for key, n in jobs.items() if key != job}
        if len(others) >= self.budget.max_jobs:
            raise BudgetSpent(
                f"{self.budget.max_jobs} jobs have had something of this data set, which is all "
                "that the site allows (max_jobs)"
            )
        total = sum(others.values()) + n_models
        if total > self.budget.max_models:
            raise BudgetSpent(
                f"the job would bring the models of this data set that left the site to {total}, "
                f"above the {self.budget.max_models} it allows (max_models)"
            )


class Versions:
    """Rows that something has left of, by version: no two of them differ by a few rows (or people).

    What has left of one, less what has left of the other, would be of those that one alone has,
    whatever sums and gates count in each.
    """

    def __init__(self, account: LockedRecord, data_set: str, least: int, marks: np.ndarray):
        self.account, self.data_set, self.least, self.marks = account, data_set, least, marks
        self.is_entered = False

    def expect(self) -> None:
        """Refuse rows that are neither those of an earlier version nor others by enough."""
        self._admit(self.account.read())

    def enter(self) -> None:
        """Something of these rows is about to leave."""
        if self.is_entered:
            return
        with self.account.locked() as content:
            self._admit(content)
            known = content.setdefault(self.data_set, [])
            text = base64.b64encode(self.marks.tobytes()).decode()
            known += [] if text in known else [text]
        self.is_entered = True

    def _admit(self, content: dict[str, Any]) -> None:
        for name, versions in content.items():
            for version in versions:
                n = n_others(np.frombuffer(base64.b64decode(version), np.uint64), self.marks)
                if n < self.least and (n > 0 or name != self.data_set):
                    raise VersionRefused(n, self.least)


class VersionRefused(BudgetSpent):
    """The rows are those of an earlier version but for a few."""

    def __init__(self, n: int, least: int):
        self.at_home = {"rows": n, "fewer_than": least}
        """What the site's own log says, and nobody else."""
        super().__init__(
            "its rows are nearly those that an earlier job has had something of: two jobs would "
            "tell of the few that are other. Its own log says how many there are; it can run jobs "
            "on the rows of then, or once as many are other as its gate asks for"
        )


def marks_of(rows: np.ndarray, people: np.ndarray | None, secret: bytes) -> np.ndarray:
    """Sorted, a number for each row (or for all rows of a person), which tells it from others."""
    mark = lambda content: hashlib.blake2b(content, digest_size=8, key=secret).digest()
    found = [mark(row.tobytes()) for row in np.ascontiguousarray(rows, np.float64)]
    if people is not None:
        mine: dict[int, list[bytes]] = {}
        for person, one in zip(people.tolist(), found, strict=True):
            mine.setdefault(person, []).append(one)
        found = [mark(b"".join(sorted(of))) for of in mine.values()]
    return np.sort(np.frombuffer(b"".join(found), np.uint64))


def n_others(a: np.ndarray, b: np.ndarray) -> int:
    """How many of one version the other has not; the larger of both numbers."""
    both, place = np.unique(np.concatenate([a, b]), return_inverse=True)
    more = np.bincount(place[: len(a)], minlength=len(both))
    more = more - np.bincount(place[len(a) :], minlength=len(both))
    return int(max(more[more > 0].sum(), -more[more < 0].sum()))


class Sums:
    """Masked sums that this site took part in, by job and members; entered before a share leaves.

    Totals of masses and moments do not depend on the mixture, so that two member sets over the same
    rows, in whatever jobs, must differ by nobody or by at least three sites.
    """

    def __init__(self, account: LockedRecord, most: int, data_set: str):
        self.account, self.most, self.data_set = account, most, data_set
        self._noted: set[tuple[str, str]] = set()

    def knows(self, job: str, members: frozenset[str], number: tuple[int, int]) -> bool:
        """Whether a sum has been entered."""
        sets = self.account.read().get(self.data_set, {})
        return _text(number) in sets.get("|".join(sorted(members)), {}).get(job, {})

    def expect(self, job: str, members: frozenset[str]) -> None:
        """Refuse a sum over these members, before anything is said of it."""
        self._admit(self.account.read(), job, members)

    def _admit(self, content: dict[str, Any], job: str, members: frozenset[str]) -> None:
        """Differencing: against sets that have been opened, and all that this job has had."""
        sets = content.get(self.data_set, {})
        known = [*content.get(self._known, []), *(key for key in sets if job in sets[key])]
        OpenedSets([frozenset(key.split("|")) for key in known]).admit(members)
        for key, heard in content.get(self._heard, {}).items():
            if key not in known:  # who showed nothing may have added up what all others showed
                withheld = frozenset(key.split("|")) - set(heard)
                OpenedSets([frozenset(heard)]).admit(members - withheld)

    @property
    def _known(self) -> str:
        return f"{self.data_set} opened"

    @property
    def _heard(self) -> str:
        return f"{self.data_set} heard"

    def heard(self, members: frozenset[str], of: set[str]) -> None:
        """These have shown their shares of a sum over the members, this site among them."""
        key = "|".join(sorted(members))
        if all((key, name) in self._noted for name in of):
            return
        with self.account.locked() as content:
            if key not in content.get(self._known, []):
                known = content.setdefault(self._heard, {})
                known[key] = sorted({*known.get(key, []), *of})
        self._noted |= {(key, name) for name in of}

    def opened(self, members: frozenset[str]) -> None:
        """All members have shown their shares: a total over them is known.

        Who vanishes before makes nobody's set used up, so that the others can go on without it.
        """
        key = "|".join(sorted(members))
        if key not in self.account.read().get(self._known, []):
            with self.account.locked() as content:
                content.setdefault(self._known, []).append(key)
                content.get(self._heard, {}).pop(key, None)

    def enter(self, job: str, members: frozenset[str], number: tuple[int, int], cost: int) -> None:
        """A sum of a job, by exchange and attempt, is about to take place; again it is free."""
        with self.account.locked() as content:
            self._admit(content, job, members)
            sets = content.setdefault(self.data_set, {})
            sums = sets.setdefault("|".join(sorted(members)), {}).setdefault(job, {})
            sums.setdefault(_text(number), cost)
            if sum(sums.values()) > self.most:
                raise BudgetSpent(
                    f"the job asks for more than {self.most} sums over the same members, which is "
                    "all that the site allows (max_sums)"
                )


class Runs:
    """Which rows each job with masked sums has run on here; entered before a share leaves.

    A job has its masks once. Two shares under the same ones subtract to what has changed at this
    site, so that a job is run on the rows it was begun with or not at all.
    """

    def __init__(self, account: LockedRecord):
        self.account = account

    def expect(self, job: str, rows: str, on_record: bool) -> None:
        """Refuse a job that has run on other rows, or whose record of what left is gone."""
        known = self.account.read().get(job)
        self._same(known, rows)
        if known is not None and not on_record:
            raise SumRefused(
                "this job has run here, and the record of what left for it is gone: put it back "
                "from a backup, or give the job another name or seed"
            )

    def enter(self, job: str, rows: str) -> None:
        """A share of these rows is about to leave."""
        with self.account.locked() as content:
            self._same(content.setdefault(job, rows), rows)

    def _same(self, known: str | None, rows: str) -> None:
        if known not in (None, rows):
            raise SumRefused(
                "this job has run here on other rows. Under the same masks once more it would show "
                "what has changed since: give the job another name or seed"
            )


def _text(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
