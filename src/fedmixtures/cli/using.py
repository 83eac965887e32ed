"""What can be done with the model of a run where its network is not: `score`, `explain`, `adapt`.

A site between silos keeps its model of a job as such a run: see `federation/node/kept.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fedmixtures.cli.main import begin, say


def score(
    run: Path,
    /,
    *data: str,
    nodes: Annotated[str | None, Parameter(name=["--nodes", "-n"])] = None,
    delimiter: str | None = None,
) -> None:
    """Mean log-density of new rows at their nodes, beside that of the nodes' own rows alone.

    Example: `fedmixtures score run/ new.csv`

    Parameters
    ----------
    run
        Folder of a fitted run, or of a site's model.
    data
        New rows, in the form the run was fitted on.
    nodes
        Column that names the node; by default the one of the run.
    delimiter
        Between the cells of a CSV; by default that of the run.
    """
    begin(f"Reading {run} and {' '.join(data[:3]) or 'nothing'}")
    import numpy as np

    from fedmixtures.cli.fitting import load_run, new_rows
    from fedmixtures.estimators.scoring import user_densities
    from fedmixtures.estimators.solutions import own_level

    model, settings, features = load_run(run)
    table, rows = new_rows(model, settings, features, data, nodes, delimiter)
    own, asked = own_level(model.solution_), (model.transform_, rows)
    density = user_densities(model.solution_, *asked)
    alone = None if own is None else user_densities(own, *asked)
    for label in rows.labels:
        here = table.nodes == label
        beside = "" if alone is None else f"   own rows alone {alone[here].mean():9.3f}"
        say(f"  {label!s:<16} {density[here].mean():9.3f}{beside}   {here.sum():,} rows")
    gain = "" if alone is None else f", {np.mean(density - alone):+.3f} beside own rows alone"
    say(f"{table.n_rows:,} rows, mean log-density {density.mean():.3f}{gain}")


def explain(
    run: Path, /, *, node: Annotated[str | None, Parameter(name=["--node", "-n"])] = None
) -> None:
    """One node in words: whom it listens to, on what evidence, with which weight.

    Example: `fedmixtures explain run/ --node h07`

    Parameters
    ----------
    run
        Folder of a fitted run, or of a site's model.
    node
        Which node; it need not be said where there is one.
    """
    begin(f"Reading {run}")
    from fedmixtures.cli.fitting import load_run, node_label
    from fedmixtures.io.runs import RunFolder

    model, *_ = load_run(run)
    if node is None and len(model.nodes_) > 1:
        raise ValueError("give --node: this run has several.")
    label = model.nodes_[0] if node is None else node_label(model, node)
    say(model.explain(label))
    site = RunFolder.existing(run).read_config().get("site", {})
    if site.get("name") == str(label):
        for line in (*site["words"], f"What left: {site['left']}"):
            say(line)


def adapt(
    run: Path,
    /,
    *data: str,
    node: Annotated[str, Parameter(name=["--node", "-n"])],
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    delimiter: str | None = None,
) -> None:
    """Make new rows a node of the run, from what the network found; the others stay as they are.

    Example: `fedmixtures adapt run/ ward-7.csv --node ward-7 --out with-ward-7/`

    Parameters
    ----------
    run
        Folder of a fitted run, or of a site's model.
    data
        Rows of the new node.
    node
        Its name.
    out
        New folder for the model with that node.
    delimiter
        Between the cells of a CSV; by default that of the run.
    """
    begin(f"Reading {run} and {' '.join(data[:3]) or 'nothing'}")
    import warnings

    import pyarrow as pa

    from fedmixtures.cli.fitting import load_run, read_known
    from fedmixtures.engine.solution import FitWarning
    from fedmixtures.io.runs import RunFolder

    model, settings, features = load_run(run)
    table = read_known(model, features, data, None, delimiter or settings.delimiter)
    rows = pa.table(table.as_given())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        new: Any = model.adapt(rows, node)
    folder = RunFolder.create(out)
    new.save(folder.path)
    folder.write_config(RunFolder.existing(run).read_config() | {"adapted": node})
    for warning in caught:
        say(f"Note: {warning.message}", "yellow")
    say(new.explain(node))
    say(f"Written to {folder.path}: fedmixtures predict {folder.path} {node}.csv")
