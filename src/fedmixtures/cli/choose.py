"""`--k auto` and `--alpha auto`."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedmixtures.cli.console import console, say
from fedmixtures.cli.prepare import Task, choose_method
from fedmixtures.cli.settings import FitSettings
from fedmixtures.estimators.selection import select_alpha, select_components


def choose_automatic(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    """The task and settings with numbers where there was `auto`, chosen on training rows alone."""
    if settings.k == "auto":
        task, settings = _components(task, settings)
    if settings.alpha == "auto":
        task, settings = _alpha(task, settings)
    return task, settings


def _components(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    rows, nodes = task.train
    with console.status("choosing k") as status:
        found = select_components(
            rows,
            nodes,
            method=task.method,
            network=task.network,
            random_state=settings.seed,
            on_fit=lambda k: status.update(f"choosing k by BIC: {k}"),
        )
    numbers = found.n_components
    distinct = sorted(set(numbers.values()))
    k: Any = distinct[0] if len(distinct) == 1 else numbers
    words = distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}, by node"
    say(f"  k chosen by BIC on training rows: {words}")
    if max(distinct) == max(found.candidates):
        say(f"  (some nodes took the largest k tried, {max(found.candidates)})")
    by_node = {} if len(distinct) == 1 else {str(label): n for label, n in numbers.items()}
    text = str(k) if len(distinct) == 1 else "auto"
    return (
        dataclasses.replace(task, components=k),
        dataclasses.replace(settings, k=text, components=by_node),
    )


def _alpha(task: Task, settings: FitSettings) -> tuple[Task, FitSettings]:
    rows, nodes = task.train
    with console.status("choosing alpha") as status:
        found = select_alpha(
            rows,
            nodes,
            graph=task.network,
            n_components=task.components,
            method=task.method,
            n_rounds=settings.rounds,
            random_state=settings.seed,
            on_fit=lambda alpha, fold: status.update(
                f"choosing alpha: {alpha:g}, fold {fold + 1} of 3"
            ),
        )
    tried = ", ".join(
        f"{alpha:g}: {score - task.scale.log_volume:.3f}"
        for alpha, score in zip(found.alphas, found.scores, strict=True)
    )
    say(f"  alpha {found.alpha:g} chosen by held-out log-likelihood ({tried})")
    if found.at_edge:
        say("  (the largest alpha tried was the best: nodes may be alike enough to be pooled)")
    settings = dataclasses.replace(settings, alpha=str(found.alpha))
    return dataclasses.replace(task, method=choose_method(settings)), settings
