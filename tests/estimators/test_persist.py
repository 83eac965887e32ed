"""Model files that somebody else wrote: one clear error, whatever they hold."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

import fedmixtures


def rewritten(path, change):
    """The file with a header (and arrays) changed by `change(header, arrays)`."""
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["fedmixtures"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    text = change(header, arrays)
    path.write_bytes(save(arrays, {"fedmixtures": text or json.dumps(header)}))
    return path


def nested(depth):
    return "[" * depth + "]" * depth


HOSTILE = {
    "no-labels": lambda h, a: h.pop("labels"),
    "no-params": lambda h, a: h.pop("params"),
    "no-format": lambda h, a: h.pop("format"),
    "labels-of-another-kind": lambda h, a: h.update(labels=3),
    "labels-unhashable": lambda h, a: h.update(labels=[{"array": [1]}, {"array": [2]}, 3]),
    "too-few-labels": lambda h, a: h.update(labels=["a"]),
    "unknown-parameter": lambda h, a: h["params"].update(shell="rm"),
    "a-class-without-fields": lambda h, a: h.update(traffic={"class": "Traffic"}),
    "wrong-fields": lambda h, a: h.update(traffic={"class": "Traffic", "fields": {"x": 1}}),
    "a-map-of-numbers": lambda h, a: h.update(certificate={"map": [1, 2]}),
    "params-a-list": lambda h, a: h.update(params=[1]),
    "feature-names-a-number": lambda h, a: h.update(feature_names=5),
    "no-means": lambda h, a: a.pop("means"),
    "flat-means": lambda h, a: a.update(means=np.zeros(3)),
    "edges-out-of-range": lambda h, a: a.update(source=np.array([7, 8])),
    "nan-weights": lambda h, a: a.update(weights=np.full((3, 2), np.nan)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_does_not_fit_is_one_clear_error(fitted, tmp_path, name):
    path = fitted.save(tmp_path / "model.safetensors")

    def change(header, arrays):
        HOSTILE[name](header, arrays)

    with pytest.raises(ValueError, match="does not hold a whole fedmixtures model"):
        fedmixtures.load(rewritten(path, change))


@pytest.mark.parametrize("text", [nested(100_000), "{", "3", '"model"'])
def test_a_header_that_is_no_header(fitted, tmp_path, text):
    path = fitted.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="is damaged|does not hold a fedmixtures model"):
        fedmixtures.load(rewritten(path, lambda header, arrays: text))


def test_values_nested_too_deep(fitted, tmp_path):
    path = fitted.save(tmp_path / "model.safetensors")
    deep = json.loads(nested(900))
    with pytest.raises(ValueError, match="does not hold a whole fedmixtures model|is damaged"):
        fedmixtures.load(rewritten(path, lambda h, a: h.update(labels=deep)))


def test_what_is_saved_comes_back(case, fitted, tmp_path):
    model = fedmixtures.load(fitted.save(tmp_path))
    np.testing.assert_array_equal(model.means_, fitted.means_)
    assert model.converged_ == fitted.converged_
    assert model.traffic_ == fitted.traffic_
    assert model.tol == fitted.tol
