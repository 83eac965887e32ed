"""Every option of a run, with every registered method: it does something, or is refused by name."""

import inspect

import jax
import numpy as np
import pytest

from fedmixtures import IFCA, MMD, FedKMeans, GTVMin, NetworkGaussianMixture, solve
from fedmixtures.data import homogeneous
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.options import IDLE, in_rounds, plays_a_part, used
from fedmixtures.engine.run import loop
from fedmixtures.engine.run.watch import Checkpoint
from fedmixtures.graph.generate import ring
from fedmixtures.methods.registry import METHODS
from helpers import QUICK_TRUST

OTHER_SETTINGS = {"ifca": lambda: IFCA(n_groups=2), "trust": lambda: QUICK_TRUST}
NAMES = sorted(METHODS)
WHAT_IS_FITTED = {"method", "data", "network", "init", "n_components", "seed"}
SCENARIO = homogeneous(n_nodes=4, n_components=2, n_train=30, seed=0)
DATA = NodeData.from_rows(SCENARIO.X, SCENARIO.nodes)
FEW = 4


def made(name):
    return OTHER_SETTINGS.get(name, METHODS[name])()


def run(name, **options):
    method = made(name)
    options = used(method, n_rounds=FEW) | options
    return solve(method, DATA, ring(4), n_components=2, seed=1, **options)


def parts(solution):
    return [np.asarray(part) for part in solution.theta.parts]


def rounds_are_counted(name, monkeypatch):
    assert run(name, n_rounds=2).n_rounds == 2


def a_wide_tolerance_stops_early(name, monkeypatch):
    solution = run(name, n_rounds=30, tol=1e6)
    assert solution.converged
    assert solution.n_rounds < 30


def the_end_is_shown(name, monkeypatch):
    seen, ends = [], []

    def watch(progress):
        seen.append(progress)
        if progress.final:
            ends.append(progress.theta)

    solution = run(name, watch=watch)
    last = seen[-1]
    assert [progress.final for progress in seen] == [False] * (len(seen) - 1) + [True]
    for ours, theirs in zip(ends[0].parts, parts(solution), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert last.records[0]["round"] == last.round == solution.n_rounds
    assert last.records[0]["objective"] == pytest.approx(solution.history.objective[-1])


def words_are_said(name, monkeypatch):
    told = []
    run(name, announce=told.append)
    assert told


def reports_come_as_often_as_asked(name, monkeypatch):
    seen = []
    run(name, report_every=2, watch=seen.append)
    if in_rounds(made(name)):
        assert [progress.round for progress in seen] == [0, 2, 4, 4]
        return
    *shown, last, end = [len(progress.records) for progress in seen]
    assert set(shown) <= {2}
    assert (last in (1, 2), end) == (True, 1)


def checkpoints_come_as_it_goes(name, monkeypatch):
    kept = []
    solution = run(name, report_every=2, checkpoint=kept.append)
    reached = [checkpoint.round for checkpoint in kept]
    if in_rounds(made(name)):
        assert reached == [2, 4]
    else:  # one by stage; C-CoLME and others have their own fits alone before the first exchange
        assert reached == sorted(reached)
        assert len(reached) == len({name for name, _, _ in kept[-1].stages}) > 0
        assert reached[-1] <= solution.n_rounds


def a_checkpoint_is_gone_on_from(name, monkeypatch):
    kept = []
    whole = run(name, report_every=2, checkpoint=kept.append)
    rest = run(name, report_every=2, resume=kept[0])
    for ours, theirs in zip(parts(rest), parts(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert rest.traffic == whole.traffic


def every_node_is_kept(name, monkeypatch):
    history = run(name, keep_nodes=True).history
    assert history.node_fit.shape == (len(history), 4)
    np.testing.assert_allclose(history.node_fit.sum(1), history.fit, rtol=1e-12)
    assert (run(name).history.node_fit is None) == in_rounds(made(name))


def an_interrupted_run_is_kept(name, monkeypatch):
    reached = []

    def stop(checkpoint):
        reached.append(checkpoint.round)
        raise KeyboardInterrupt

    with pytest.warns(match="interrupted"):
        solution = run(name, report_every=2, checkpoint=stop, keep_interrupted=True)
    assert (solution.status, solution.n_rounds) == ("interrupted", reached[0])
    assert np.isfinite(solution.history.objective[-1])


def nodes_are_spread(name, monkeypatch):
    assert run(name, devices=jax.devices()[:2]).shards is not None


def blocks_have_the_size_asked_for(name, monkeypatch):
    sizes = []

    def build(data, network, dtype, size, seed, build=loop.build_layout):
        sizes.append(size)
        return build(data, network, dtype, size, seed)

    monkeypatch.setattr(loop, "build_layout", build)
    run(name, block_size=1)
    assert sizes == [1]


def single_precision_is_coarser(name, monkeypatch):
    single, double = parts(run(name, dtype="float32")), parts(run(name))
    apart = max(np.abs(a - b).max() for a, b in zip(single, double, strict=True))
    assert 1e-9 < apart < 1e-2  # far above the rounding of doubles


NO_RUN = Checkpoint(2, "", (), {})
OPTIONS = {
    "n_rounds": (3, rounds_are_counted),
    "tol": (1e-3, a_wide_tolerance_stops_early),
    "watch": (print, the_end_is_shown),
    "announce": (print, words_are_said),
    "report_every": (2, reports_come_as_often_as_asked),
    "checkpoint": (print, checkpoints_come_as_it_goes),
    "resume": (NO_RUN, a_checkpoint_is_gone_on_from),
    "keep_nodes": (True, every_node_is_kept),
    "keep_interrupted": (True, an_interrupted_run_is_kept),
    "devices": (tuple(jax.devices()[:2]), nodes_are_spread),
    "block_size": (1, blocks_have_the_size_asked_for),
    "dtype": ("float32", single_precision_is_coarser),
}


def test_no_option_is_left_out():
    assert set(inspect.signature(solve).parameters) == WHAT_IS_FITTED | set(OPTIONS)
    assert set(IDLE) <= set(OPTIONS) | {"rounds"}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_an_option_does_something_or_is_refused(name, option, monkeypatch):
    value, effect = OPTIONS[option]
    if plays_a_part(option, made(name)):
        effect(name, monkeypatch)
        return
    with pytest.raises(ValueError, match=rf"^`{option}` is .*, but {type(made(name)).__name__} "):
        solve(made(name), DATA, ring(4), n_components=2, **{option: value})


def test_what_is_refused_where():
    """So that nothing is refused that has a meaning, and the other way round."""
    idle = lambda name: {option for option in OPTIONS if not plays_a_part(option, made(name))}
    rounds = {"n_rounds", "tol"}
    turns = {"report_every", "checkpoint", "resume", "keep_interrupted"}
    assert idle("gtv-mmd") == idle("consensus-em") == set()
    assert idle("fedem") == {"devices"}
    assert idle("trust") == rounds | {"block_size"}
    assert idle("c-colme") == rounds | {"devices", "block_size"}
    assert idle("dfmr") == idle("c-colme") | {"dtype"}
    assert idle("local") == idle("dfmr") | turns
    assert plays_a_part("devices", FedKMeans())
    assert not plays_a_part("devices", FedKMeans(server=True))


OF_THE_ESTIMATOR = {
    "n_rounds": 40,
    "tol": 1e-6,
    "report_every": 1,
    "keep_interrupted": True,
    "checkpoint": "file",
    "devices": 2,
    "dtype": "float32",
}


@pytest.mark.parametrize("option", [*OF_THE_ESTIMATOR, "resume"])
@pytest.mark.parametrize("name", NAMES)
def test_the_estimator_refuses_before_it_reads_a_row(name, option):
    given = {option: OF_THE_ESTIMATOR[option]} if option != "resume" else {}
    model = NetworkGaussianMixture(2, method=made(name), **given)
    kind = type(made(name)).__name__
    if plays_a_part(option, made(name)):
        if option != "resume":
            model._settings(None)
        return
    with pytest.raises(ValueError, match=rf"^`{option}` is .*, but {kind} .*Leave it out"):
        model.fit(None, resume="file" if option == "resume" else None)


@pytest.mark.parametrize("name", NAMES)
def test_without_options_everything_is_accepted(name):
    settings = NetworkGaussianMixture(method=made(name))._settings(None)
    assert settings.get("n_rounds") == (40 if in_rounds(made(name)) else None)
    assert settings.get("tol") == (1e-6 if in_rounds(made(name)) else None)


def test_a_method_with_a_setting_of_that_name_is_named():
    with pytest.raises(ValueError, match=r"give it to the method itself: CColME\(n_rounds=...\)"):
        NetworkGaussianMixture(method="c-colme", n_rounds=3).fit(None)


def test_on_round_is_shown_every_exchange_and_the_end():
    seen = []
    model = NetworkGaussianMixture(2, graph=ring(4), on_round=seen.append, random_state=0)
    model.fit(SCENARIO.X, nodes=SCENARIO.nodes)
    steps, end = seen[:-1], seen[-1]
    assert {record["step"] for record in steps} <= {"broadcast", "per neighbour", "connect", "sum"}
    assert len(steps) == sum(kind["requests"] for kind in model.traffic_.kinds.values())
    assert steps[-1]["round"] == end["round"] == model.n_iter_
    assert end["objective"] == pytest.approx(model.history_.objective[-1])


def test_a_protocol_has_no_mixtures_before_its_end():
    seen = []
    run("trust", watch=seen.append)
    with pytest.raises(ValueError, match="at its end"):
        _ = seen[0].theta


def test_a_search_reports_as_often_as_asked():
    method, seen = GTVMin(MMD(), learning_rate="auto"), []
    run_of = {"n_components": 2, "n_rounds": 5, "report_every": 2}
    solve(method, DATA, ring(4), watch=seen.append, **run_of)
    assert [progress.round for progress in seen] == [0, 2, 4, 5, 5]
    assert [r["round"] for progress in seen for r in progress.records] == [0, 1, 2, 3, 4, 5]


def test_devices_and_blocks_exclude_each_other():
    with pytest.raises(ValueError, match="`block_size` is 1, but nodes that are spread over 2"):
        run("gtv-mmd", devices=jax.devices()[:2], block_size=1)


def test_a_single_device_is_the_one_jax_runs_on():
    for name in ("gtv-mmd", "fedem", "trust", "local"):
        run(name, devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="`devices` is .* alone, but JAX runs on"):
        run("gtv-mmd", devices=jax.devices()[1:2])
