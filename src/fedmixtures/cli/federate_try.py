"""`fedmixtures federate try`: from a table to processes, a live fit and the usual report."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.cli.fit import FitSettings, with_rounds
from fedmixtures.cli.fitting import Fitted, Watch, compared_with, write_run
from fedmixtures.cli.main import say
from fedmixtures.cli.prepare import Task, prepare, print_summary
from fedmixtures.engine.options import in_rounds
from fedmixtures.engine.solution import Solution, Traffic
from fedmixtures.federation.carriers import check_installed
from fedmixtures.federation.explain import what_left
from fedmixtures.federation.job import Job
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.job_program import gaps_refused, make_job, program_of
from fedmixtures.federation.node.kept import models_of
from fedmixtures.federation.node.store import json_lines
from fedmixtures.federation.one_machine import COLLECTOR, OneMachine
from fedmixtures.io.runs import RunFolder
from fedmixtures.io.tables import Table
from fedmixtures.mixture.mixture import Mixture

ROUNDS_OF_A_TRY = 20
"""Of a method in rounds, unless given: sites on one machine share its cores."""


class ConsoleListener:
    """Prints what the driver reports, each line once."""

    def __init__(self):
        self.began, self.last = time.monotonic(), ""

    def __call__(self, event: str, what: dict[str, Any]) -> None:
        """Print a line if it says something new."""
        line = self.words(event, what)
        if line and line != self.last:
            self.last = line
            say(f"{time.monotonic() - self.began:6.1f} s  {line}")

    def words(self, event: str, what: dict[str, Any]) -> str:
        """One line for one event."""
        if event == "progress":
            sites = [f"{site} {how['round']}" for site, how in sorted(what.items())]
            silent = sorted({s for how in what.values() for s in how["waiting_for"]})
            late = f"   waiting for {', '.join(silent)}" if silent else ""
            return f"round: {'   '.join(sites)}{late}"
        if event == "waiting for sites":
            return f"waiting for {', '.join(what['missing'])}"
        if event == "segment":
            again = f" again (segment {what['number'] + 1})" if what["number"] else ""
            return f"submitted{again}: {', '.join(what['sites'])}"
        if event == "segment ended":
            if what["outcome"] == "lost":
                return f"lost {', '.join(what.get('sites') or ['something'])}; going on"
            away = f" without {', '.join(what['absent'])}" if what.get("absent") else ""
            held = [f"{site} stands after round {t}" for site, t in what.get("held", {}).items()]
            alone = f" ({', '.join(held)}: all its neighbours are away)" if held else ""
            return f"{what['outcome']}{away}{alone}"
        return event


def run_try(settings: FitSettings, n: int, out: Path, carrier: str) -> None:
    """Check, provision, start, fit, stop, report."""
    check_installed(carrier)
    if settings.data:
        settings = dataclasses.replace(settings, transforms="none")  # sites know none
        table = settings.read_table()
        if table.categories is not None:
            named = [table.features[i] for i in table.categories.positions]
            raise ValueError(
                f"no categories between sites yet, and these columns hold words: "
                f"{_checks.listed(named)}. Leave them out with --drop {','.join(named)}, or give 0 "
                "and 1 in their place."
            )
    else:
        table = made_up(n, settings.seed)
        settings = dataclasses.replace(settings, data=("made-up rows",), nodes="site")
    table = dataclasses.replace(table, nodes=np.array([str(label) for label in table.nodes]))
    task = prepare(settings, table)
    settings = dataclasses.replace(settings, standardize=task.problem.scale is not None)
    if settings.rounds is None and in_rounds(task.problem.method):
        settings = dataclasses.replace(settings, rounds=ROUNDS_OF_A_TRY)
    settings = with_rounds(settings, task.problem.method)
    job = job_of(task, settings)
    refused = gaps_refused(program_of(job), job)
    if refused and task.problem.data.has_gaps:
        raise ValueError(f"there are {refused}, or take --method gtv-mmd.")
    train = task.problem.fitted_data
    own = {str(name): train.of(i)[0] for i, name in enumerate(train.labels)}
    if job.needs_all:
        check_columns(own, table.features)
    folder = RunFolder.create(out)
    print_summary(task, settings)
    say("Making certificates and keys; starting a hub and the sites.")
    home = folder.path / "federation"
    machine = OneMachine(home, own, table.features, listener=ConsoleListener(), carrier=carrier)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the sites are stopped too
    with machine:
        record = machine.fit(job, patience=60.0)
        models = machine.collected(job, record)
    silent = [name for name in task.labels if models.get(name) is None]
    if silent:
        raise ValueError(
            f"{', '.join(silent)} released no model: fewer rows than the release gate asks for."
        )
    fitted = collected(task, job, models, machine)
    beside = compared_with(task, settings, fitted)
    left = tuple(what_left(config, job) for config in machine.configs())
    content = write_run(folder, settings, fitted, beside, left)
    say("")
    say(content["headline"], "bold")
    say(f"Open {folder.file('report.html')}")
    if own_models := models_of(machine.configs()[0]):
        say(f"What a site has for itself: fedmixtures explain {own_models[-1]}")


def check_columns(rows: dict[str, np.ndarray], features: tuple[str, ...]) -> None:
    """Say now what a site would refuse: columns of which a few of its rows have values."""
    for site, own in rows.items():
        if rare := Support(own).rare_together(Gate().own_count(len(features))):
            named = _checks.listed(sorted({features[c] for pair in rare for c in pair}))
            raise ValueError(
                f"site {site!r} has too few rows with values of {named}: leave a column that is "
                "nearly empty there empty (it is borrowed from the others), or fill it."
            )


def made_up(n: int, seed: int) -> Table:
    """Rows of `n` sites that share three groups but not their shares."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [4.0, 1.0], [1.0, 4.0]])
    labels = [f"site-{i + 1}" for i in range(n)]
    component = np.concatenate([rng.choice(3, 150, p=rng.dirichlet([6, 6, 6])) for _ in labels])
    rows = centres[component] + rng.standard_normal((150 * n, 2))
    count = np.arange(len(rows))
    return Table(rows, np.repeat(labels, 150), ("x", "y"), ("made-up rows",), 0 * count, count)


def job_of(task: Task, settings: FitSettings) -> Job:
    """The job that fits this task between sites."""
    problem, network = task.problem, task.problem.network
    data, components = problem.fitted_data, problem.n_components
    ends = zip(network.source, network.target, network.weight, strict=True)
    return make_job(
        problem.method.bounded(data, components),
        name="try",
        n_components=dict(zip(data.labels, components, strict=True)),
        edges=tuple((network.labels[a], network.labels[b], float(w)) for a, b, w in ends),
        features=task.table.features,
        n_rounds=ROUNDS_OF_A_TRY if settings.rounds is None else settings.rounds,
        seed=settings.seed,
        collector=COLLECTOR,
        missing=data.has_gaps,
    )


def collected(task: Task, job: Job, models: dict[str, Mixture], machine: OneMachine) -> Fitted:
    """What came back, as the report knows it. Losses stay at the sites, so none are shown."""
    mixtures = {name: models[name] for name in task.labels}
    sent = traffic(machine, job)
    solution = Solution.collected(mixtures, sent.n_rounds, sent)
    problem = task.problem
    if problem.scale is not None:
        solution = solution.changed(problem.original, problem.log_volume)
    return Fitted.of(solution, Watch(task))


def traffic(machine: OneMachine, job: Job) -> Traffic:
    """Bytes that left each site, by its own log."""
    sent, largest, rounds = {}, 0, 0
    for config in machine.configs():
        log = [line for line in json_lines(config.state / "log.jsonl") if line["event"] == "sent"]
        sizes = [line["bytes"] for line in log]
        sent[config.name], largest = sum(sizes), max([largest, *sizes])
        rounds = max([rounds, *(line["round"] for line in log)])
    whom = "neighbours and sums" if job.needs_all else "neighbours"
    return Traffic(largest, sent, whom, rounds, simulated=False)
