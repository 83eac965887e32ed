"""What a federation is asked to do, as plain JSON: read by every site, by the hub, by the driver.

The key of a job is a digest of all of it. Boxes are sealed under that key, so that sites which were
given different jobs cannot read each other. A researcher signs the whole job: method, rounds,
features, units, seed, start, neighbours. This module needs no JAX: the hub uses it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tomllib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmixtures.federation.wire.sealing import SiteKey

FORMAT = 1
KINDS = "neighbours", "protocol"
"""Rounds of models between neighbours alone, or whatever a `Protocol` asks for."""
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MAX_SITES, MAX_ROUNDS, MAX_COMPONENTS, MAX_FEATURES = 500, 100_000, 256, 1024
REQUIRED = ("name", "features", "sites", "edges", "components")
OPTIONAL = ("seed", "max_stale", "collector", "privacy", "serial", "expires", "missing")
OF_METHOD = ("method", "covariance", "settings", "feasible")
ENTRIES = (*REQUIRED, *OPTIONAL, *OF_METHOD, "rounds", "shift", "scale")
"""Of a job as a TOML file."""


class JobError(ValueError):
    """A job that makes no sense, or that nobody known has signed."""


@dataclass(frozen=True)
class Job:
    """A fit: who takes part, who listens to whom, and what every node runs."""

    name: str
    n_components: dict[str, int]
    """Components of every site; its keys are the sites."""
    edges: tuple[tuple[str, str, float], ...]
    features: tuple[str, ...]
    """What the columns mean, in order; every site maps its own column names to them."""
    method: dict[str, Any]
    """The encoded method object, with its feasible set."""
    start: dict[str, Any]
    """The encoded start object."""
    kind: str = "neighbours"
    """Of the method, as whoever cannot make it has to know: one of `KINDS`."""
    n_rounds: int = 40
    """Of a method of rounds; a protocol ends by itself."""
    seed: int = 0
    max_stale: int = 3
    """Rounds a silent neighbour's last model is used again."""
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    """Agreed numbers by which every site shifts and divides its columns; empty for none."""
    privacy: dict[str, float] | None = None
    """Differential privacy of every node's steps: `clip` and `noise` (in units of sensitivity)."""
    collector: str | None = None
    """Who receives the final models, by a name of the rosters; None for nobody."""
    serial: int = 0
    """Of jobs that are otherwise the same: one that is run again, on other rows, is signed anew."""
    expires: str | None = None
    """The last day (UTC) on which a site begins or goes on with it, as YYYY-MM-DD; None: never."""
    missing: bool = False
    """Whether cells may be missing where sites add up: sums then also count what is there."""
    format: int = field(default=FORMAT)

    def __post_init__(self):
        _check(self)

    @property
    def is_expired(self) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and datetime.now(UTC).date().isoformat() > self.expires

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(sorted(self.n_components))

    @property
    def last_round(self) -> int:
        """The round after which no site goes on."""
        return MAX_ROUNDS if self.needs_all else self.n_rounds

    @property
    def releases(self) -> int:
        """Models that leave a site at most.

        One before the first round, of GTV one after each, the last once more if there is a
        collector.
        """
        rounds = 0 if self.needs_all else self.n_rounds
        return rounds + 1 + (self.collector is not None)

    @property
    def most_components(self) -> int:
        """Component slots of every message."""
        return max(self.n_components.values())

    def neighbours(self, site: str) -> dict[str, float]:
        """Neighbours of a site with the weights of the edges."""
        found = {}
        for a, b, weight in self.edges:
            if site in (a, b):
                found[b if site == a else a] = weight
        return found

    @property
    def needs_all(self) -> bool:
        """Whether no site can be left out on the way: sums without it would show its share."""
        return self.kind == "protocol"

    @cached_property
    def reach(self) -> int:
        """How far apart two sites' rounds can be: the longest shortest path of the graph."""
        near = {site: self.neighbours(site) for site in self.sites}
        return max(_depth(near, site) for site in self.sites)

    def to_json(self) -> str:
        """One text for one job: keys sorted, no spaces."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def key(self) -> str:
        """Digest of everything above."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    @classmethod
    def from_plain(cls, plain: Any) -> Job:
        """A job from parsed JSON; `JobError` says what is wrong with it."""
        if not isinstance(plain, Mapping):
            raise JobError("a job is a JSON object")
        known = {f.name for f in fields(cls)}
        unknown = sorted(str(name) for name in set(plain) - known)
        if unknown:
            raise JobError(f"a job has no entry {unknown[0]!r}")
        try:
            given = dict(plain)
            given["edges"] = tuple(tuple(edge) for edge in given["edges"])
            for name in ("features", "shift", "scale"):
                given[name] = tuple(given.get(name, ()))
            return cls(**given)
        except JobError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise JobError(f"the job is incomplete or malformed: {str(error)[:200]}") from None


@dataclass(frozen=True)
class SignedJob:
    """A job with its researcher's signature on all of it."""

    job: Job
    signer: str
    signature: str

    @classmethod
    def by(cls, signer: str, key: SiteKey, job: Job) -> SignedJob:
        """The job signed in the name of `signer`."""
        return cls(job, signer, key.sign(_to_sign(signer, job)))

    @property
    def content(self) -> bytes:
        """What the signature is of."""
        return _to_sign(self.signer, self.job)

    def to_plain(self) -> dict[str, Any]:
        """Entries of a request that shows this job to a site."""
        plain = json.loads(self.job.to_json())
        return {"job": plain, "signer": self.signer, "signature": self.signature}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SignedJob:
        """The signed job of a request; whose signature it is has not been looked at."""
        signer, signature = plain.get("signer"), plain.get("signature")
        if not isinstance(signer, str) or not isinstance(signature, str):
            raise JobError("the job is not signed: a researcher on the sites' rosters must sign it")
        return cls(Job.from_plain(plain.get("job")), signer, signature)


def _to_sign(signer: str, job: Job) -> bytes:
    return b"fedmixtures job v1" + json.dumps([signer, job.to_json()]).encode()


def _check(job: Job) -> None:
    """Sizes within bounds, names that exist, numbers that are numbers."""
    wrong = _wrong_sites(job) or _wrong_numbers(job)
    if wrong:
        raise JobError(wrong)


def _wrong_sites(job: Job) -> str:
    if job.format != FORMAT:
        return f"the job has format {job.format!r}, this version reads {FORMAT}"
    if not isinstance(job.name, str) or not SITE_NAME.fullmatch(job.name):
        return "the name of a job is made of letters, digits, '_', '.' and '-', at most 63"
    sites = job.n_components
    if not isinstance(sites, dict) or not 1 <= len(sites) <= MAX_SITES:
        return f"a job has 1 to {MAX_SITES} sites"
    for site, k in sites.items():
        if not isinstance(site, str) or not SITE_NAME.fullmatch(site):
            return f"{str(site)[:80]!r} is no site name: letters, digits, '_', '.' and '-'"
        if not _whole(k, 1, MAX_COMPONENTS):
            return f"n_components of {site!r} must be 1 to {MAX_COMPONENTS}"
    pairs = set()
    for edge in job.edges:
        if len(edge) != 3 or edge[0] == edge[1] or not {edge[0], edge[1]} <= set(sites):
            return "an edge is (site, another site, weight), between sites of the job"
        if not _real(edge[2]) or edge[2] <= 0:
            return "the weight of an edge is a positive number"
        pairs.add(frozenset(edge[:2]))
    if len(pairs) != len(job.edges):
        return "an edge comes twice"
    if job.collector is not None and not isinstance(job.collector, str):
        return "`collector` is a name or nothing"
    return ""


def _wrong_numbers(job: Job) -> str:
    texts = job.features
    if not 1 <= len(texts) <= MAX_FEATURES or not all(isinstance(text, str) for text in texts):
        return f"`features` names 1 to {MAX_FEATURES} columns"
    for name in ("shift", "scale"):
        values = getattr(job, name)
        if values and (len(values) != len(texts) or not all(_real(v) for v in values)):
            return f"`{name}` has one number per feature, or none at all"
    if any(value <= 0 for value in job.scale):
        return "`scale` is positive"
    if not _whole(job.n_rounds, 1, MAX_ROUNDS):
        return f"`n_rounds` must be 1 to {MAX_ROUNDS}"
    if not _whole(job.seed, 0, 2**32 - 1) or not _whole(job.max_stale, 0, MAX_ROUNDS):
        return "`seed` and `max_stale` are whole numbers from 0"
    if not isinstance(job.method, dict) or not isinstance(job.start, dict):
        return "`method` and `start` are encoded objects"
    if not _whole(job.serial, 0, 2**53):
        return "`serial` is a whole number from 0"
    if job.expires is not None and not _is_day(job.expires):
        return "`expires` is a day as YYYY-MM-DD, or nothing"
    if not isinstance(job.missing, bool):
        return "`missing` is true or false"
    if job.kind not in KINDS:
        return f"`kind` is one of {KINDS}"
    if job.privacy is not None and not (
        isinstance(job.privacy, dict)
        and set(job.privacy) == {"clip", "noise"}
        and all(_real(value) and value > 0 for value in job.privacy.values())
    ):
        return "`privacy` holds two positive numbers, `clip` and `noise`"
    return ""


def _whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_day(text: Any) -> bool:
    try:
        return isinstance(text, str) and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _real(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) < 1e300 and value == value


def _depth(near: Mapping[str, Sequence[str] | Mapping[str, float]], first: str) -> int:
    depth, queue = {first: 0}, deque([first])
    while queue:
        site = queue.popleft()
        for other in near[site]:
            if other not in depth:
                depth[other] = depth[site] + 1
                queue.append(other)
    return max(depth.values())


def read_job(path: str | Path) -> Job:
    """The researcher's job as a TOML file; every entry is checked."""
    from fedmixtures.estimators.resolve import resolve_method
    from fedmixtures.federation.node.job_program import make_job
    from fedmixtures.mixture.feasible import FeasibleSet

    path = Path(path)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{str(path)!r} is no valid TOML: {error}.") from None
    unknown = sorted(set(plain) - set(ENTRIES))
    if unknown:
        raise ValueError(f"{str(path)!r} has an unknown entry {unknown[0]!r}. Known: {ENTRIES}.")
    missing = [entry for entry in REQUIRED if entry not in plain]
    if missing:
        raise ValueError(f"{str(path)!r} lacks the entry {missing[0]!r}.")
    method = resolve_method(plain.get("method", "trust"), plain.get("covariance", "full"))
    settings: dict[str, Any] = dict(plain.get("settings", {}))
    if "feasible" in plain and not hasattr(method, "feasible"):
        raise ValueError(
            f"{str(path)!r} has bounds (feasible), which only GTV has: leave them out."
        )
    if hasattr(method, "feasible"):
        settings["feasible"] = FeasibleSet(**plain.get("feasible", {}))
    method = dataclasses.replace(method, **settings)
    components = plain["components"]
    if not isinstance(components, dict):
        components = dict.fromkeys(plain["sites"], components)
    optional = {entry: plain[entry] for entry in OPTIONAL if entry in plain}
    return make_job(
        method,
        name=plain["name"],
        n_components=components,
        edges=tuple((a, b, float(w[0]) if w else 1.0) for a, b, *w in plain["edges"]),
        features=tuple(plain["features"]),
        n_rounds=plain.get("rounds", 40),
        shift=tuple(plain.get("shift", ())),
        scale=tuple(plain.get("scale", ())),
        **optional,
    )
