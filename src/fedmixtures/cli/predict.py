"""`fedmixtures predict`: components of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def predict(
    run: Path,
    /,
    *data: str,
    nodes: Annotated[str | None, Parameter(name=["--nodes", "-n"])] = None,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("predictions.parquet"),
    delimiter: str | None = None,
) -> None:
    """Assign new rows to the components of their node, with probabilities and log-density.

    Example: `fedmixtures predict run/ new.csv --out new-components.csv`

    Parameters
    ----------
    run
        Folder of a fitted run.
    data
        New rows, in the form the run was fitted on.
    nodes
        Column that names the node; by default the one of the run.
    out
        File to write, Parquet or CSV by its ending; it must not exist yet.
    delimiter
        Between the cells of a CSV; by default that of the run.
    """
    import numpy as np

    from fedmixtures._ties import first_greatest
    from fedmixtures.cli.console import say
    from fedmixtures.cli.loaded import load_run
    from fedmixtures.io.runs import write_assignments
    from fedmixtures.io.tables import read_table

    model, settings, features = load_run(run)
    if out.exists():
        raise ValueError(f"{str(out)!r} already exists and is left as it is. Choose another --out.")
    column = nodes or settings.nodes
    table = read_table(data, column, features, delimiter or settings.delimiter, constant_ok=True)
    joint, _ = model._log_joint(table.rows, table.nodes)
    density = np.logaddexp.reduce(joint, axis=1)
    columns = {
        "row": np.arange(table.n_rows),
        "node": table.nodes,
        "component": first_greatest(joint, scale=1.0),
        "log_density": density,
    }
    write_assignments(out, columns, np.exp(joint - density[:, None]), overwrite=False)
    say(
        f"{table.n_rows:,} rows of {len(np.unique(table.nodes)):,} nodes, mean log-density "
        f"{density.mean():.3f}. Written to {out}"
    )
