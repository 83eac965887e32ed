"""`fedmixtures methods`: what there is to choose from."""

from __future__ import annotations


def methods() -> None:
    """List the methods there are, with their settings.

    Example: `fedmixtures methods`, then `fedmixtures fit ... --method gtv-kl --set n_local_steps=1`
    """
    import dataclasses

    from rich.table import Table

    from fedmixtures.cli.console import console
    from fedmixtures.cli.settings import default_method
    from fedmixtures.estimators.resolve import METHODS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("method", "what it does", "settings"):
        table.add_column(head, vertical="top")
    default = default_method()
    for name, make in METHODS.items():
        method = make()
        line = (type(method).__doc__ or "").strip().splitlines()[0].rstrip(".")
        discrepancy = getattr(method, "discrepancy", None)
        if discrepancy is not None:
            line = f"{line}: {type(discrepancy).__name__}"
        if getattr(method, "moves_rows", False):
            line += " (rows leave their nodes)"
        settings = ", ".join(
            f"{f.name}={getattr(method, f.name)!r}"
            for f in dataclasses.fields(method)
            if isinstance(getattr(method, f.name), (int, float, str))
        )
        table.add_row(name, f"{line} (the default)" if name == default else line, settings)
    console.print(table)
