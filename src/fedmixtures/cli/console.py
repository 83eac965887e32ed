"""What is printed: what was understood, progress, tables."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedmixtures import _checks

console = Console(highlight=False, emoji=False)  # ":CD:" in a fingerprint is no disc


def say(text: str, style: str | None = None) -> None:
    """Print a line."""
    console.print(text, style=style, soft_wrap=True, markup=False)


def understood(task: Any, settings: Any, methods: str | None = None) -> None:
    """Say what was understood, before anything long begins."""
    table, network = task.table, task.network
    labels, counts = np.unique(table.nodes, return_counts=True)
    counts = counts.tolist()
    least = counts.index(min(counts))
    parts = [len(part) for part in network.components()]
    held = int(task.held_out.sum())
    own = int((~task.held_out[table.nodes == labels[least]]).sum())
    learning = f", {own:,} of them to learn from" if held else ""
    k = task.components
    if settings.k == "auto" and not settings.components:
        by_rows = task.method.has_levels
        components = "chosen by held-out rows" if by_rows else "chosen per node by BIC"
    elif isinstance(k, dict):
        components = f"{min(k.values())} to {max(k.values())}, by node"
    else:
        components = str(k)
    connected = (
        "connected"
        if len(parts) == 1
        else f"{len(parts)} separate parts, the largest of {max(parts)}"
    )
    lines = {
        "rows": f"{table.n_rows:,} ({held:,} held out to judge by)"
        if held
        else f"{table.n_rows:,}",
        "nodes": f"{len(labels):,}; the smallest is {_checks.plain(labels[least])!r} with "
        f"{counts[least]:,} row{'s' * (counts[least] != 1)}" + learning,
        "features": _checks.listed(table.features, 6).replace("'", ""),
        **missing_line(table),
        "edges": f"{network.n_edges:,}; {connected}",
        "components": components,
        "method": methods or method_line(task.method, settings),
    }
    if settings.standardize:
        lines["scale"] = (
            "each feature divided by its standard deviation over all nodes together, for the fit "
            "alone; between sites `shift` and `scale` of the job do this"
        )
    for name, text in lines.items():
        console.print(f"  [dim]{name:<11}[/dim]", end="")
        console.print(text, soft_wrap=True, markup=False)


def missing_line(table: Any) -> dict[str, str]:
    """How many cells are missing, and in which columns, where any is."""
    gone = np.isnan(table.rows).sum(0)
    if not gone.any():
        return {}
    most = sorted(zip(gone.tolist(), table.features, strict=True), key=lambda one: -one[0])
    named = _checks.listed((f"{name} ({n:,})" for n, name in most if n), 4).replace("'", "")
    share = gone.sum() / table.rows.size
    return {"missing": f"{gone.sum():,} cells ({share:.1%}), taken as missing at random: {named}"}


def hint_scale(task: Any, settings: Any) -> None:
    """Say so where features are far from the order of one that step sizes are made for."""
    from fedmixtures.cli.prepare import as_they_are

    good = as_they_are(task.data)
    far = [f for f, fine in zip(task.table.features, good, strict=True) if not fine]
    if far and hasattr(task.method, "learning_rate") and not settings.standardize:
        say(
            f"Note: the spread of {_checks.listed(far)} is far from 1, where step sizes and "
            "bandwidths are made for. Leave --no-standardize out.",
            "yellow",
        )


def method_line(method: Any, settings: Any) -> str:
    """Name and coupling of a method."""
    alpha = getattr(method, "alpha", None)
    if settings.alpha == "auto":
        return f"{settings.method}, alpha chosen on every node's own held-out rows"
    listens = "" if alpha is None else f", alpha {alpha:g} (how much nodes listen; 0 is not at all)"
    return settings.method + listens


class RoundsBar:
    """Progress over rounds: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, done: int = 0):
        self.total, self.objective, self.held_out = total, None, None
        self.last = time.monotonic()
        self.bar = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("rounds", total=max(total, 1), completed=done, numbers="")

    def __enter__(self) -> RoundsBar:
        self.bar.__enter__()
        if not console.is_terminal:
            say("fitting; what is compiled for the first time takes a while", "dim")
        return self

    def __exit__(self, *details: Any) -> None:
        self.bar.__exit__(*details)

    def announce(self, words: str) -> None:
        """Show what a method without rounds is at."""
        self.bar.update(self.task, numbers=words)

    def reached(self, number: int, objective: float | None, held_out: float | None) -> None:
        """Show the round reached, its objective and the held-out log-likelihood."""
        numbers = "" if objective is None else f"objective {objective:.4f}"
        if held_out is not None and np.isfinite(held_out):
            numbers += f"  held-out log-likelihood {held_out:.4f}"
        self.bar.update(self.task, completed=number, numbers=numbers.strip())
        late = time.monotonic() - self.last > 10
        if not console.is_terminal and late:
            self.last = time.monotonic()
            say(f"round {number}/{self.total}  {numbers.strip()}")


def short(value: float | int | None, digits: int = 3) -> str:
    """A number for a table."""
    return "–" if value is None or not np.isfinite(value) else f"{value:,.{digits}f}"


def size(count: float | int) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
