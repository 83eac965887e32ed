"""Protocols go on where they were stopped: after every request, from a file, with the same bits."""

import json
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures import FitWarning, Mixture, NetworkGaussianMixture, solve
from fedmixtures.data import homogeneous
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.run.stages import put_together, taken_apart
from fedmixtures.graph.generate import ring
from fedmixtures.io import runs
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import Protocol, Stage, Sum

SCENARIO = homogeneous(n_nodes=4, n_components=2, n_train=30, seed=0)
DATA = NodeData.from_rows(SCENARIO.X, SCENARIO.nodes)
STAGES = ["own", "everyone", "personal", "listen", "near", "group"]


def run(**options):
    return solve("trust", DATA, ring(4), n_components=2, **{"seed": 1} | options)


def assert_same(ours, theirs):
    for a, b in zip(ours.theta.parts, theirs.theta.parts, strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("weights", "evidence", "prequential"):
        a, b = getattr(ours.levels, name), getattr(theirs.levels, name)
        np.testing.assert_array_equal(a, b)
    for name, of in theirs.diagnostics.edges.items():
        np.testing.assert_array_equal(ours.diagnostics.edges[name], of)
    assert ours.traffic == theirs.traffic


@pytest.fixture(scope="module")
def whole():
    seen = []
    return run(watch=seen.append), len(seen) - 1  # its exchanges


def test_killed_after_any_request_it_ends_with_the_same_bits(whole, tmp_path):
    """A kill leaves what is on disk: gone on with from everything that was there in between."""
    whole, n_requests = whole
    path, on_disk = tmp_path / "checkpoint", []
    run(
        checkpoint=lambda kept: runs.write_checkpoint(path, kept),
        watch=lambda _: on_disk.append(path.read_bytes() if path.exists() else None),
    )
    assert len(on_disk) == n_requests + 1  # after each, and at the end
    for content in dict.fromkeys(on_disk):
        if content is None:  # it begins anew
            continue
        path.write_bytes(content)
        assert_same(run(resume=runs.read_checkpoint(path)), whole)
    assert len(set(on_disk)) == len(STAGES)  # none first; `near` is followed by no request


def test_what_was_done_is_not_done_again(whole):
    whole, n_requests = whole
    kept, seen = [], []
    run(checkpoint=kept.append)
    assert [name for name, _, _ in kept[-1].stages] == STAGES
    for before, after in zip(kept, kept[1:], strict=False):
        assert before.stages == after.stages[: len(before.stages)]
    assert_same(run(resume=kept[-1], watch=seen.append), whole)
    skipped = n_requests - (len(seen) - 1)
    assert skipped > n_requests / 2
    assert seen[-1].round == whole.n_rounds


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"n_components": 3},
        {"dtype": "float32"},
        {"network": None},
        {"method": fm.TrustThenPool(n_folds=3)},
        {"data": NodeData.from_rows(SCENARIO.X + 1e-9, SCENARIO.nodes)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_run_is_not_gone_on_with(other):
    kept = []
    run(checkpoint=kept.append)
    given = {"method": "trust", "data": DATA, "network": ring(4), "n_components": 2, "seed": 1}
    with pytest.raises(ValueError, match="`resume` comes from another run"):
        solve(**given | other, resume=kept[0])


def test_another_version_is_not_gone_on_with(tmp_path, monkeypatch):
    kept = []
    run(checkpoint=kept.append)
    path = runs.write_checkpoint(tmp_path / "checkpoint", kept[0])
    monkeypatch.setattr("fedmixtures.io.runs.__version__", "9.0")
    with pytest.raises(
        ValueError, match=r"was written by fedmixtures .*, and this is 9\.0\. Go on"
    ):
        runs.read_checkpoint(path)


def interrupted(after: str, **options):
    """Stopped by Ctrl-C as soon as a stage has ended."""

    def stop(checkpoint):
        if checkpoint.stages[-1][0] == after:
            raise KeyboardInterrupt

    return run(checkpoint=stop, **options)


def test_ctrl_c_keeps_the_last_mixtures(whole):
    whole, _ = whole
    own, near = (
        solve(fm.TrustThenPool(levels=(level,)), DATA, ring(4), n_components=2, seed=1)
        for level in ("own", "personal")
    )
    for stage, kept, expected in (("own", "own", own), ("listen", "personal", near)):
        with pytest.warns(FitWarning, match=f"interrupted; returning .* of the step '{kept}'"):
            solution = interrupted(stage, keep_interrupted=True)
        assert solution.status == "interrupted"
        assert solution.levels is None
        assert 0 < solution.n_rounds < whole.n_rounds
        np.testing.assert_array_equal(solution.theta.means, expected.theta.means)
    with pytest.raises(KeyboardInterrupt):
        interrupted("own")


def test_the_estimator_goes_on_from_its_file(tmp_path):
    path = tmp_path / "checkpoint"
    given = {"n_components": 2, "graph": ring(4), "random_state": 0, "checkpoint": path}

    class Leaves(Exception):  # noqa: N818
        pass

    def leave(record):
        if record["round"] > 40:
            raise Leaves

    fitted = lambda **more: NetworkGaussianMixture(**given | more)
    with pytest.raises(Leaves):
        fitted(on_round=leave).fit(SCENARIO.X, nodes=SCENARIO.nodes)
    reached = runs.read_checkpoint(path)
    assert 0 < len(reached.stages) < len(STAGES)
    model = fitted().fit(SCENARIO.X, nodes=SCENARIO.nodes, resume=path)
    straight = fitted(checkpoint=None).fit(SCENARIO.X, nodes=SCENARIO.nodes)
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(straight, name))
    assert model.traffic_ == straight.traffic_


@dataclass(frozen=True)
class Found:
    mixture: Mixture
    gain: np.ndarray
    more: dict


def test_results_of_stages_come_back_as_they_were():
    lost = Mixture(*(jnp.full(shape, jnp.nan) for shape in ((2,), (2, 1), (2, 1, 1))))
    gain = np.arange(6.0).reshape(2, 3).T
    found = Found(lost, gain, {"twice": (gain, None), "number": 3, "one": np.float64(0.5)})
    classes = {"Found": Found, "Mixture": Mixture}
    form, arrays = taken_apart(found, classes)
    assert len(arrays) == 5  # the gain once
    back = put_together(json.loads(json.dumps(form)), [np.asarray(a) for a in arrays], classes)
    assert np.isnan(back.mixture.means).all()
    assert isinstance(back.mixture.means, type(lost.means))
    np.testing.assert_array_equal(back.gain, gain)
    assert back.gain.flags.c_contiguous
    assert back.more["twice"][0] is back.gain
    assert (back.more["twice"][1], back.more["number"], back.more["one"]) == (None, 3, 0.5)
    with pytest.raises(TypeError, match="a stage found a Found, which its protocol does not name"):
        taken_apart(found, {})


class Twice(Protocol):
    """Two stages of one name."""

    def run(self, block):
        for _ in range(2):
            total = yield Stage("sum", lambda: self.total(block))
        raise AssertionError(total)

    def total(self, block):
        return (yield Sum(block.data.total_weights()))


class Silent(Protocol):
    """No stage that has mixtures."""

    def run(self, block):
        yield Stage("rows", lambda: block.data.total_weights())
        raise KeyboardInterrupt
        yield Outcome


def test_what_stages_must_be():
    with pytest.raises(ValueError, match="two stages named 'sum'. Give each a name of its own"):
        solve(Twice(), DATA, ring(4), n_components=1)
    with pytest.raises(KeyboardInterrupt):  # there is nothing to keep
        solve(Silent(), DATA, ring(4), n_components=1, keep_interrupted=True)
