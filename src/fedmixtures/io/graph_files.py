"""Who listens to whom, from files: edge lists as CSV, GraphML; and numbers per node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.graph import from_edges
from fedmixtures.graph.network import Network
from fedmixtures.io.arrow import read_frame

ENDS = ("source", "target")


def read_graph(graph: str | None, labels: Sequence[Label], allow_isolated: bool = False) -> Any:
    """What `--graph` stands for: a name such as ``full`` or ``none``, or a file of edges.

    Labels of the file are matched to those of the data by how they are written.
    """
    if graph in (None, "full", "none") or graph.split(":")[0] == "knn":
        return graph
    path = Path(graph)
    if not path.is_file():
        raise ValueError(
            f"--graph is {graph!r}, which is no file. Give a CSV of edges (source,target,weight), "
            "a GraphML file, full, none, or knn:5 for the five nearest nodes."
        )
    if path.stat().st_size == 0:
        raise ValueError(f"{path.name} is empty. Give a header source,target and one edge a line.")
    graphml = path.suffix.lower() in (".graphml", ".xml")
    edges, named = _from_graphml(path) if graphml else (_from_csv(path), None)
    return _joined(edges, named, labels, path.name, allow_isolated)


def read_counts(path: Path, labels: Sequence[Label]) -> dict[Label, int]:
    """A number of components per node, from a CSV with the columns node and k."""
    frame = read_frame(path, as_text=True)
    if len(frame.column_names) < 2:
        raise ValueError(f"{path.name} needs two columns, node and k, with one line per node.")
    known = {str(label): label for label in labels}
    counts: dict[Label, int] = {}
    for name, value in zip(*(frame.column(i).to_pylist() for i in (0, 1)), strict=True):
        if name not in known:
            raise ValueError(
                f"{path.name} names node {name!r}, which holds no rows. Nodes with rows are "
                f"{_checks.listed(labels)}."
            )
        if not value or not value.isdigit() or int(value) < 1:
            raise ValueError(
                f"{path.name} gives node {name!r} k={value!r}. Give a whole number of at least 1."
            )
        counts[known[name]] = int(value)
    missing = [label for label in labels if label not in counts]
    if missing:
        raise ValueError(f"{path.name} names no k for node {_checks.listed(missing)}.")
    return counts


def _from_csv(path: Path) -> list[tuple[str, str, float]]:
    frame = read_frame(path, as_text=True)
    columns = {name.strip().lower(): frame.column(name).to_pylist() for name in frame.column_names}
    if not set(ENDS) <= set(columns):
        raise ValueError(
            f"{path.name} has the columns {_checks.listed(frame.column_names)}. An edge list needs "
            "a header line source,target or source,target,weight, with commas."
        )
    weights = columns.get("weight", ["1"] * frame.num_rows)
    edges = []
    for line, (a, b, w) in enumerate(
        zip(columns["source"], columns["target"], weights, strict=True), start=2
    ):
        try:
            edges.append((str(a), str(b), float(w)))
        except (TypeError, ValueError):
            raise ValueError(
                f"line {line} of {path.name} has the weight {w!r}. Give a positive number."
            ) from None
    return edges


def _from_graphml(path: Path) -> tuple[list[tuple[str, str, float]], list[str]]:
    import networkx

    try:
        graph = networkx.read_graphml(path)
    except Exception as error:
        raise ValueError(f"{path.name} could not be read as GraphML: {error}.") from None
    if graph.is_directed():
        raise ValueError(
            f"{path.name} is a directed graph, but neighbours listen to each other. "
            'Write it with edgedefault="undirected".'
        )
    edges = [(str(a), str(b), float(w)) for a, b, w in graph.edges(data="weight", default=1.0)]
    return edges, [str(node) for node in graph.nodes]


def _joined(
    edges: list, named: list[str] | None, labels: Sequence[Label], file: str, allow_isolated: bool
) -> Network:
    """The network on the nodes that hold rows; a node that only one side knows is an error."""
    known = {str(label): label for label in labels}
    mentioned = dict.fromkeys(named or [end for a, b, _ in edges for end in (a, b)])
    idle = [name for name in mentioned if name not in known]
    if idle:
        raise ValueError(
            f"{file} names node {_checks.listed(idle)}, which holds no rows. Correct the name, "
            f"remove its edges, or give it rows. Nodes with rows are {_checks.listed(labels)}."
        )
    alone = [label for label in labels if str(label) not in mentioned]
    if alone and not allow_isolated:
        raise ValueError(
            f"{file} has no edge for node {_checks.listed(alone)}, though there are rows. Add an "
            "edge, or say that such nodes are meant to stand alone: --allow-isolated"
        )
    return from_edges([(known[a], known[b], w) for a, b, w in edges], labels)
