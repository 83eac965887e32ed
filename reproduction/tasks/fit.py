"""Fit methods on problems: every seed of every cell of a method at once where it allows that."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.data.scenarios import Scenario
from fedmixtures.discrepancy import KL, MMD
from fedmixtures.engine.options import used
from fedmixtures.engine.run.watch import FAR, Progress
from fedmixtures.engine.solution import FitWarning, History, Solution, Status
from fedmixtures.engine.solve import solve
from fedmixtures.kernels.compiling import jit_in_order
from fedmixtures.methods.base import Method
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.methods.programs import NodeProgram
from fedmixtures.methods.registry import METHODS
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.m_step import ShapePrior
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks import measure, situation
from reproduction.tasks.union import Part, Union

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One seed of one cell."""

    settings: dict[str, Any]
    seed: int

    @property
    def scenario(self) -> Scenario:
        """Rows and truth."""
        return situation.scenario(self.settings, self.seed)

    def part(self) -> Part:
        """What a solver needs of it."""
        scenario = self.scenario
        text = f"{sorted(self.settings['data'].items())} {sorted(self.settings['graph'].items())}"
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return Part(
            f"{digest}-{self.seed}",
            NodeData.from_rows(scenario.X, scenario.nodes),
            situation.network(self.settings["graph"], scenario.n_nodes, self.seed),
            situation.start(self.settings, self.seed),
        )


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[Numbers]:
    """The numbers of each run, in their order; all have the same method, options and rounds."""
    own = [Run(settings, seed) for settings, seed in runs]
    settings = own[0].settings
    if settings["method"] == "start":
        return iter(_start(own))
    method = build(settings)
    if isinstance(method.program(), NodeProgram):
        return iter(_union(method, own))
    return (_alone(method, run) for run in own)


def build(settings: dict[str, Any]) -> Method:
    """The method with its options."""
    method, gtv = METHODS[settings["method"]](), settings["gtv"]
    if isinstance(method, GTVMin):
        discrepancy = method.discrepancy
        if isinstance(discrepancy, KL):
            discrepancy = KL(gtv["n_samples"])
        elif isinstance(discrepancy, MMD):
            discrepancy = MMD(tuple(gtv["bandwidths"]))
        method = GTVMin(
            discrepancy,
            n_local_steps=gtv["n_local_steps"],
            learning_rate=gtv["learning_rate"],
            feasible=feasible(gtv),
        )
    return with_options(method, settings["options"])


def with_options(method: Method, options: dict[str, Any]) -> Method:
    """The method with other options; ``prior = true`` stands for a `ShapePrior`."""
    read = lambda name, value: ShapePrior() if name == "prior" and value is True else value
    return replace(method, **{name: read(name, value) for name, value in options.items()})


def feasible(gtv: dict[str, Any]) -> FeasibleSet:
    """The bounds of Assumption 1 of an experiment."""
    names = ("min_weight", "max_mean_norm", "min_variance", "max_variance")
    return FeasibleSet(**{name: gtv[name] for name in names})


def _start(runs: Sequence[Run]) -> list[Numbers]:
    """Round 0: the k-means start, moved into the feasible set."""
    starts = [situation.start(run.settings, run.seed).parts for run in runs]
    theta = Mixture(*map(np.concatenate, zip(*starts, strict=True)))
    with double():
        theta = jit_in_order(feasible(runs[0].settings["gtv"]).project)(theta)
    return _finished(theta.to_numpy(), runs)


def _union(method: Method, runs: Sequence[Run]) -> list[Numbers]:
    """All runs in one solve; if one of them runs away, each on its own."""
    union = Union.of([run.part() for run in runs])
    rounds: list[list[dict[str, float]]] = []
    watch = {}
    if runs[0].settings["record"] == "rounds":
        scenarios = [run.scenario for run in runs]
        look = each_round(lambda theta: rounds.append(measure.round_numbers(theta, scenarios)))
        watch = {"watch": look, "report_every": 1}
    how = {"n_rounds": runs[0].settings["n_rounds"], "keep_nodes": True, **watch}
    solution = quiet_solve(method, union.rows, union.network, union.theta, **how)
    program = method.program()
    away = [ran_away(solution.history, program.pull_share, span) for span in union.spans]
    if program.descends and (solution.status is not Status.COMPLETED or any(away)):
        if len(runs) == 1:
            return [_diverged(solution)]
        return [numbers for run in runs for numbers in _union(method, [run])]
    numbers = _finished(solution.theta, runs, method.has_likelihood)
    for i, own in enumerate(numbers):
        own |= {name: [r[i][name] for r in rounds] for name in (rounds[0][0] if rounds else ())}
    return numbers


def _alone(method: Method, run: Run) -> Numbers:
    """One run by itself, with the seed as the user would give it."""
    part = run.part()
    components = [run.settings["n_components"]] * part.rows.n_nodes
    theta = part.theta if method.needs_start else None
    how = {"n_components": components, "n_rounds": run.settings["n_rounds"], "seed": run.seed}
    solution = quiet_solve(method, part.rows, part.network, theta, **how)
    if solution.status is not Status.COMPLETED:
        return _diverged(solution)
    return _finished(solution.theta, [run], method.has_likelihood)[0]


def each_round(look: Callable[[Mixture], Any]) -> Callable[[Progress], None]:
    """A watch that shows `look` the mixtures of the start and after every round, once."""
    return lambda progress: None if progress.final else look(progress.theta)


def quiet_solve(method: Method, *arguments: Any, **how: Any) -> Solution:
    """`solve` without its warnings; options of all methods of a table, each takes its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the status is kept with the numbers
        return solve(method, *arguments, **used(method, **how))


def _finished(theta: Mixture, runs: Sequence[Run], likelihood: bool = True) -> list[Numbers]:
    numbers = measure.final_numbers(theta, [run.scenario for run in runs], likelihood)
    return [{**own, "status": "completed"} for own in numbers]


def _diverged(solution: Solution) -> Numbers:
    """Nothing is measured of a run that went wrong; what was wrong is kept."""
    return {**dict.fromkeys(measure.FINAL), "status": "diverged", "message": solution.message}


def ran_away(history: History, pull_share: float, span: slice) -> bool:
    """The engine's own rule for the objective of a run, applied to one part of a union."""
    assert history.node_fit is not None
    assert history.node_pull is not None
    objective = (history.node_fit + pull_share * history.node_pull)[:, span].sum(1)
    limit = objective[0] + FAR * (abs(objective[0]) + span.stop - span.start)
    return bool(not np.isfinite(objective).all() or (objective > limit).any())
