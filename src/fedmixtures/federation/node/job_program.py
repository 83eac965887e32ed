"""From a job's encoded method to the program a node runs; nothing but classes of this package."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import AbstractDiscrepancy
from fedmixtures.federation.job import KINDS, Job, JobError
from fedmixtures.federation.masked_sums import SMALLEST_GROUP
from fedmixtures.federation.node.crossing import check_crosses
from fedmixtures.federation.node.private import PrivateGTVMin, public_start
from fedmixtures.federation.node.private_pool import PrivatePool
from fedmixtures.init import KMeansStart
from fedmixtures.io.storage import UnknownType, decode, encode
from fedmixtures.methods.base import Method
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.methods.programs import NodeProgram
from fedmixtures.methods.protocol import Protocol
from fedmixtures.methods.registry import name_of, registered_classes
from fedmixtures.methods.trust_then_pool import TrustThenPool
from fedmixtures.mixture.covariance_types import of_type
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.m_step import ShapePrior
from fedmixtures.mixture.mixture import Mixture

BOUNDS = FeasibleSet(min_weight=1e-9, max_mean_norm=1e6, min_variance=1e-9, max_variance=1e9)
"""Of mixtures of a method that has none, before they reach arithmetic: in units of order one."""
Program = NodeProgram | Protocol
MOST_STEPS, MOST_SAMPLES, MOST_PARTS = 10_000, 100_000, 64


def allowed_classes() -> dict[str, type]:
    """Classes a job may name: those that are registered here, and their settings."""
    import fedmixtures

    kinds = (Method, AbstractDiscrepancy, FeasibleSet, ShapePrior, KMeansStart)
    public = {name: getattr(fedmixtures, name) for name in fedmixtures.__all__}
    public = registered_classes() | public
    return {n: c for n, c in public.items() if isinstance(c, type) and issubclass(c, kinds)}


def decoded(plain: Any, kind: type, what: str) -> Any:
    """The object a job names; `JobError` for anything else."""
    try:
        value = decode(plain, allowed_classes())
    except UnknownType as unknown:
        raise JobError(
            f"the job's {what} needs {str(unknown)[:80]!r}, which nothing that is installed here "
            "registers: install the package that does, or give a job without it"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise JobError(f"the job's {what} cannot be made: {str(error)[:200]}") from None
    if not isinstance(value, kind):
        raise JobError(f"the job's {what} is a {type(value).__name__}")
    return value


def program_of(job: Job) -> Program:
    """The program of a job, checked for what a silo can run."""
    method = method_of(job)
    if isinstance(method, Protocol):
        return _protocol_of(job, method)
    program = method.program()
    check_crosses(program)
    if not isinstance(program, NodeProgram):
        raise JobError(f"{type(method).__name__} does not run between silos: it needs a hub")
    return _coupling_of(job, program) if isinstance(program, GTVMin) else _rounds_of(job, program)


def method_of(job: Job) -> Method:
    """The method of a job, of which nothing is known but that it can be made here."""
    method = decoded(job.method, Method, "method")
    if (job.kind == "protocol") != isinstance(method, Protocol):
        raise JobError(f"the job says {job.kind!r} of a method that is of another kind")
    return method


def name_in(job: Job) -> str:
    """The name that the job's method is registered by here: what a site's file allows."""
    name = name_of(method_of(job))
    if name is None:
        raise JobError(
            f"the job's method {job.method.get('class')!r} has no name here: register it "
            "(fedmixtures.register_method), or give a job without it"
        )
    return name


def _rounds_of(job: Job, program: NodeProgram) -> NodeProgram:
    """Any program in rounds that sends mixtures to neighbours alone."""
    if job.privacy is not None:
        raise JobError(f"{type(program).__name__} has no private form")
    return program


def _coupling_of(job: Job, program: GTVMin) -> GTVMin:
    """Algorithm 1, as far as a silo can run it."""
    if program.search is not None:
        raise JobError("learning_rate='auto' needs the whole objective. Give a number")
    _check_sizes(program)
    if program.feasible is None:
        raise JobError("the method has no feasible set. Give FeasibleSet(...) with the job")
    feasible = program.feasible
    program = program.within(feasible)
    try:
        feasible.check_components(job.most_components)
        program.discrepancy.check_components(list(job.n_components.values()))
    except ValueError as error:
        raise JobError(str(error)) from None
    if job.privacy is None:
        return program
    if program.solver != "gradient" or program.prior is not None:
        raise JobError(
            "noise for privacy is made for plain gradients of rows. Give solver='gradient' and no "
            "prior, or a job without privacy"
        )
    return PrivateGTVMin.of(program, job.privacy["clip"], job.privacy["noise"])


def _protocol_of(job: Job, method: Protocol) -> Protocol:
    """A protocol, or the private form of Trust-then-Pool."""
    name = type(method).__name__
    check_crosses(method)
    if len(set(job.n_components.values())) > 1:
        raise JobError(f"{name} has as many components at every site")
    if job.privacy is None:
        return method
    if not isinstance(method, TrustThenPool):
        raise JobError(f"{name} has no private form")
    if len(job.sites) < SMALLEST_GROUP:
        raise JobError(f"a private sum is over at least {SMALLEST_GROUP} sites")
    kind = {"covariance_type": method.covariance_type}
    return PrivatePool(method, job.privacy["clip"], job.privacy["noise"], job.n_rounds, **kind)


def gaps_refused(program: Program, job: Job) -> str:
    """Why rows with missing cells are not fitted by this program between sites; empty: they are."""
    if job.privacy is not None:
        return (
            "rows with missing cells, and noise for privacy is made for whole rows: fill them, "
            "leave them out, or give a job without privacy"
        )
    if not program.supports_missing:
        name = type(program).__name__
        return f"rows with missing cells, which {name} does not fit: fill them, or leave them out"
    if isinstance(program, Protocol) and not job.missing:
        return (
            "rows with missing cells, of which the job does not know: give it `missing = true`, so "
            "that sums also count the rows that have both of two columns"
        )
    return ""


def partners_of(program: Program, job: Job, site: str) -> list[str]:
    """Sites that messages of this one may go to: neighbours, and members of a sum."""
    everybody = [name for name in job.sites if name != site]
    return everybody if isinstance(program, Protocol) else sorted(job.neighbours(site))


def _check_sizes(program: GTVMin) -> None:
    """No setting of a job may ask for work or memory without end."""
    limits = {"n_local_steps": MOST_STEPS, "n_samples": MOST_SAMPLES}
    for holder in (program, program.discrepancy):
        for name, most in limits.items():
            if getattr(holder, name, 0) > most:
                raise JobError(f"`{name}` is above {most}")
        if len(getattr(holder, "bandwidths", ())) > MOST_PARTS:
            raise JobError(f"there are more than {MOST_PARTS} bandwidths")


def feasible_of(program: Program) -> FeasibleSet:
    """Bounds of all models of this program."""
    if isinstance(program, GTVMin) and program.feasible is None:
        raise JobError("the method has no feasible set. Give FeasibleSet(...) with the job")
    return program.bounds or replace(BOUNDS, covariance_type=program.covariance_type)


def may_merge(program: Program) -> bool:
    """Whether a mixture may lose a component on its way out."""
    coupling = getattr(program, "discrepancy", program)
    return isinstance(program, Protocol) or not coupling.needs_equal_components


def private_round(job: Job, program: Any) -> tuple[float, int]:
    """What a round is charged for: its noise, and how many steps have it."""
    if job.privacy is None:
        raise JobError("the job has no differential privacy")
    return job.privacy["noise"], program.n_local_steps


def starting_mixture(job: Job, program: Program, site: str, rows: np.ndarray) -> Mixture:
    """Where this node begins; without a look at the rows if they are under privacy."""
    k, d = job.n_components[site], len(job.features)
    if job.privacy is not None:
        return public_start(k, d, job.seed).padded(job.most_components)
    start = decoded(job.start, KMeansStart, "start")
    if start.n_init > 1000:
        raise JobError("`n_init` is above 1000")
    data = NodeData.from_rows(rows, np.full(len(rows), site))
    theta = start.mixtures(data, [k], job.seed, feasible_of(program).min_variance)
    return of_type(theta.at(0), program.covariance_type).padded(job.most_components)


def make_job(method: Method, start: KMeansStart | None = None, **entries: Any) -> Job:
    """A job from objects; `entries` as for `Job`."""
    given = {"method": encode(method), "start": encode(start or KMeansStart())}
    job = Job(**given, kind=KINDS[isinstance(method, Protocol)], **entries)
    job = Job.from_plain(json.loads(job.to_json()))
    program_of(job)  # refuse before anything is sent
    return job
