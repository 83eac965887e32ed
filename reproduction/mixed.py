"""Categorical columns: a table of shares in every cluster, against three ways to do without.

``python -m reproduction.mixed --tables FOLDER --penguins CSV`` (the file of the package
palmerpenguins) writes ``results/mixed``. The same rows are fitted by the default method with
categories as they are, as codes (numbers 0, 1, 2 ...), as one-hot numbers (without the first value,
so that they are not collinear), and without these columns. A density of codes is no probability,
so two numbers are compared that mean the same in all of them, both of rows that were held out, mean
over nodes:

- *measurements*: log-density of the continuous cells, given the categories of the row (without
  categories: the log-density of these cells);
- *categories*: log-probability of a category given all other cells of the row, mean over cells. For
  codes and one-hot numbers densities at the values that there are, divided by their sum over these
  values. To compare with: the shares of the values at the node, each counted once more.

The adjusted Rand index compares clusters of the held-out rows with a label that no fit saw; beside
it that of k-prototypes (Huang, "Extensions to the k-means algorithm for clustering large data sets
with categorical values", 1998) of all rows together, with ten starts.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score

from fedmixtures import FitWarning, NetworkGaussianMixture
from fedmixtures.metrics import median_interval
from reproduction.columns import split
from reproduction.page import made as how_made

WAYS = {
    "categories": "categories",
    "codes": "codes as numbers",
    "one-hot": "one-hot as numbers",
    "without": "without them",
}
MEASURES = {"measurements": "measurements", "cells": "categories", "ari": "ARI"}
HEART = ["age", "trestbps", "chol", "thalach", "oldpeak"]
HEART_CODES = ["sex", "cp", "fbs", "restecg", "exang", "slope", "ca", "thal"]
HEART_SPREAD = {"oldpeak": 0.1, "trestbps": 2.0, "age": 1.0, "chol": 1.0, "thalach": 1.0}
PENGUINS = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
K = 3
TRAIN = 100
"""Training rows of a node at most."""


class Mixed(NamedTuple):
    """A table: numbers, categories as codes from zero on (NaN: missing), nodes and a label."""

    numbers: np.ndarray
    codes: np.ndarray
    nodes: np.ndarray
    label: np.ndarray

    def at(self, rows: np.ndarray) -> Mixed:
        """Some of the rows."""
        return Mixed(*(part[rows] for part in self))


def heart(folder: Path) -> Mixed:
    """All 13 columns of four hospitals; the label is whether a vessel is narrowed."""
    frame, rng = pd.read_csv(folder / "heart_disease.csv"), np.random.default_rng(22)
    for column, width in HEART_SPREAD.items():
        frame[column] += width * (rng.random(len(frame)) - 0.5)
    return _of(frame, HEART, HEART_CODES, frame["target"] > 0)


def penguins(file: Path) -> Mixed:
    """Four measurements and the sex, three islands; the label is the species."""
    frame = pd.read_csv(file).dropna(subset=PENGUINS).rename(columns={"island": "node"})
    return _of(frame, PENGUINS, ["sex"], frame["species"])


def _of(frame: pd.DataFrame, numbers: list[str], words: list[str], label: Any) -> Mixed:
    codes = np.stack([pd.factorize(frame[name], sort=True)[0] for name in words], 1).astype(float)
    codes[codes < 0] = np.nan
    rows = frame[numbers].to_numpy(float)
    return Mixed(rows, codes, frame["node"].to_numpy(str), np.asarray(label))


def simulated(seed: int) -> Mixed:
    """Six nodes in two blocks with other shares of three clusters; three numbers, four codes."""
    rng, sizes = np.random.default_rng([24, seed]), (2, 3, 3, 4)
    nodes = np.repeat(np.arange(6), 200)
    shares = rng.dirichlet(np.full(3, 2.0), size=2)
    cluster = np.array([rng.choice(3, p=shares[i // 3]) for i in nodes])
    centres = 1.2 * rng.standard_normal((3, 3))
    numbers = centres[cluster] + rng.standard_normal((len(nodes), 3))
    codes = []
    for size in sizes:
        table = (0.05 + rng.dirichlet(np.full(size, 0.7), size=3)) / (1 + 0.05 * size)
        codes.append((rng.random(len(nodes))[:, None] > table.cumsum(1)[cluster, :-1]).sum(1))
    return Mixed(numbers, np.stack(codes, 1).astype(float), nodes, cluster)


def tables(folder: Path, birds: Path) -> Iterator[tuple[str, Any]]:
    """Name, and the table of a seed."""
    if (folder / "heart_disease.csv").exists():
        whole = heart(folder)
        yield "heart disease", lambda seed: whole
    if birds.exists():
        measured = penguins(birds)
        yield "penguins with sex", lambda seed: measured
    yield "simulated", simulated


def as_table(way: str, numbers: np.ndarray, codes: np.ndarray, sizes: list[int]) -> Any:
    """Rows as a way hands them to the fit."""
    if way == "without":
        return numbers
    if way == "one-hot":
        parts = [numbers]
        for code, size in zip(codes.T, sizes, strict=True):
            block = (code[:, None] == np.arange(1, size)).astype(float)
            block[np.isnan(code)] = np.nan
            parts.append(block)
        return np.concatenate(parts, axis=1)
    return np.concatenate([numbers, codes], axis=1)


def outcome(way: str, train: Mixed, test: Mixed, sizes: list[int], seed: int) -> dict[str, float]:
    """What a way comes to on the held-out rows of one split."""
    d, (n, n_codes) = train.numbers.shape[1], test.codes.shape
    named = {"categorical": list(range(d, d + n_codes))} if way == "categories" else {}
    settings = {"graph": "full", "transforms": "none", "random_state": seed, **named}
    make = lambda numbers, codes: as_table(way, numbers, codes, sizes)
    model = NetworkGaussianMixture(K, **settings)
    model.fit(make(train.numbers, train.codes), nodes=train.nodes)
    whole = model.score_samples(make(test.numbers, test.codes), nodes=test.nodes)
    ari = adjusted_rand_score(
        test.label, model.predict(make(test.numbers, test.codes), nodes=test.nodes)
    )
    found = {"measurements": _by_node(whole, test.nodes), "ari": float(ari)}
    if way == "without":
        return found | {"cells": _by_node(_frequencies(train, test, sizes), test.nodes)}
    nothing = np.full_like(test.numbers, np.nan)
    some = ~np.isnan(test.codes).all(1)
    apart = np.zeros(n)
    apart[some] = model.score_samples(make(nothing[some], test.codes[some]), nodes=test.nodes[some])
    found["measurements"] = _by_node(whole - apart, test.nodes)
    total, cells = np.zeros(n), np.zeros(n)
    for j, size in enumerate(sizes):
        known = ~np.isnan(test.codes[:, j])
        each = []
        for value in range(size):
            codes = test.codes[known].copy()
            codes[:, j] = value
            each.append(
                model.score_samples(make(test.numbers[known], codes), nodes=test.nodes[known])
            )
        total[known] += whole[known] - np.logaddexp.reduce(each)
        cells += known
    found["cells"] = _by_node(total / np.maximum(cells, 1), test.nodes)
    return found


def _frequencies(train: Mixed, test: Mixed, sizes: list[int]) -> np.ndarray:
    """Of every row the mean log-share, at its node, of the categories it has."""
    total, cells = np.zeros(len(test.codes)), np.zeros(len(test.codes))
    for node in np.unique(test.nodes):
        own, asked = train.codes[train.nodes == node], test.nodes == node
        for j, size in enumerate(sizes):
            count = 1.0 + np.array([(own[:, j] == value).sum() for value in range(size)])
            code = test.codes[asked, j]
            share = np.log(count / count.sum())[np.nan_to_num(code).astype(int)]
            total[asked] += np.where(np.isnan(code), 0.0, share)
            cells[asked] += ~np.isnan(code)
    return total / np.maximum(cells, 1)


def _by_node(values: np.ndarray, nodes: np.ndarray) -> float:
    """Mean over nodes of their means."""
    return float(pd.Series(values).groupby(nodes).mean().mean())


def k_prototypes(train: Mixed, test: Mixed, k: int, seed: int, n_init: int = 10) -> np.ndarray:
    """Clusters of the test rows; of a row with gaps the cells that are there are compared.

    Squared distance of standardised numbers, and half a unit for each category that differs.
    """
    centre, spread = np.nanmean(train.numbers, 0), np.nanstd(train.numbers, 0)
    x, z = ((part.numbers - centre) / spread for part in (train, test))
    rng, best = np.random.default_rng(seed), (np.inf, np.zeros(0), np.zeros(0))

    def distance(numbers: np.ndarray, codes: np.ndarray, means: Any, modes: Any) -> np.ndarray:
        far = np.nan_to_num(np.square(numbers[:, None] - means)).sum(-1)
        differs = (codes[:, None] != modes) & ~np.isnan(codes)[:, None] & ~np.isnan(modes)
        return far + 0.5 * differs.sum(-1)

    for _ in range(n_init):
        first = rng.choice(len(x), size=k, replace=False)
        means, modes = np.nan_to_num(x[first]), train.codes[first].copy()
        member, far = np.full(len(x), -1), np.zeros((len(x), k))
        for _ in range(100):
            far = distance(x, train.codes, means, modes)
            if (far.argmin(1) == member).all():
                break
            member = far.argmin(1)
            for c in range(k):
                own = member == c
                if own.any():
                    seen = ~np.isnan(x[own]).all(0)
                    means[c, seen] = np.nanmean(x[own][:, seen], 0)
                    modes[c] = [_mode(code) for code in train.codes[own].T]
        cost = far.min(1).sum()
        if cost < best[0]:
            best = cost, means.copy(), modes.copy()
    return distance(z, test.codes, *best[1:]).argmin(1)


def _mode(codes: np.ndarray) -> float:
    known = codes[~np.isnan(codes)].astype(int)
    return float(np.bincount(known).argmax()) if len(known) else np.nan


def main() -> None:
    """Run all, write numbers and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--penguins", type=Path, default=Path("palmerpenguins.csv"))
    parser.add_argument("--out", type=Path, default=Path("results/mixed"))
    parser.add_argument("--seeds", type=int, nargs="+", default=(10, 11, 12, 13, 14))
    asked = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    file = asked.out / "result.json"
    done: dict[str, Any] = {"made": {"seeds": []}, "tables": {}}
    if file.exists():
        done = json.loads(file.read_text("utf-8"))
    found, seeds = done["tables"], list(done["made"]["seeds"])
    for seed in asked.seeds:  # one that is there already is not run again
        if seed in seeds:
            continue
        for name, table in tables(asked.tables, asked.penguins):
            for way, values in one_split(table(seed), seed).items():
                for measure, value in values.items():
                    found.setdefault(name, {}).setdefault(way, {}).setdefault(measure, [])
                    found[name][way][measure].append(value)
        seeds.append(seed)
        made = how_made("python -m reproduction.mixed --tables FOLDER --penguins CSV") | {
            "seeds": seeds
        }
        asked.out.mkdir(parents=True, exist_ok=True)
        result = json.dumps({"made": made, "tables": found}, indent=1)
        file.write_text(result + "\n", "utf-8")
        (asked.out / "table.md").write_text(page(found, made), "utf-8")


def one_split(whole: Mixed, seed: int) -> dict[str, dict[str, float]]:
    """What every way comes to."""
    sizes = [int(np.nanmax(code)) + 1 for code in whole.codes.T]
    train, test = (whole.at(rows) for rows in split(whole.nodes, seed, TRAIN))
    found = {way: outcome(way, train, test, sizes, seed) for way in WAYS}
    ari = adjusted_rand_score(test.label, k_prototypes(train, test, K, seed))
    return found | {"k-prototypes": {"ari": float(ari)}}


def page(found: dict[str, Any], made: dict[str, Any]) -> str:
    """Medians over splits as a table; in brackets the paired difference to categories."""
    heads = [f"{name}: {words}" for name in found for words in MEASURES.values()]
    lines = ["|  | " + " | ".join(heads) + " |", "| --- " * (len(heads) + 1) + "|"]
    for way in (*WAYS, "k-prototypes"):
        cells = []
        for of in found.values():
            for measure in MEASURES:
                values, best = of[way].get(measure), of["categories"][measure]
                if values is None:
                    cells.append("—")
                    continue
                gap = median_interval(np.subtract(values, best))
                beside = "" if way == "categories" else f" ({gap[0]:+.3f})"
                cells.append(f"{np.median(values):.3f}{beside}")
        words = WAYS.get(way, way)
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    seeds = f"splits {made['seeds'][0]} to {made['seeds'][-1]}"
    lines += ["", f"Made by `{made['command']}` on {made['date']}, {seeds}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
