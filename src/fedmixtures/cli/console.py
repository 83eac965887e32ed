"""What is printed before a fit: what was understood; and how tables look."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmixtures import _checks

console = Console(highlight=False, emoji=False)  # ":CD:" in a fingerprint is no disc


def new_table(*heads: str) -> Table:
    """A table of names and, under these heads, numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def short(value: float) -> str:
    """A number for a table."""
    return f"{value:,.3f}" if np.isfinite(value) else "–"


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


def method_line(method: Any, settings: Any) -> str:
    """Name and coupling of a method."""
    alpha = getattr(method, "alpha", None)
    if settings.alpha == "auto":
        return f"{settings.method}, alpha chosen on every node's own held-out rows"
    listens = "" if alpha is None else f", alpha {alpha:g} (how much nodes listen; 0 is not at all)"
    return settings.method + listens
