"""How programs are compiled: with which options, for whom, and what they may not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures.kernels import compiling
from fedmixtures.kernels.compiling import jit, jit_in_order
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture


def mixture(d):
    return Mixture(np.full((3, 2), 0.5), np.zeros((3, 2, d)), np.tile(np.eye(d), (3, 2, 1, 1)))


def test_this_release_of_the_compiler_knows_all_options():
    old = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12)
    quick = compiling.QUICK if old else {}  # since JAX 0.12 there is but one way to emit fusions
    assert compiling._known(True, True) == {**compiling.CPU_OPTIONS, **quick}
    assert compiling._known(True, False) == compiling.CPU_OPTIONS
    assert compiling._known(False, True) == quick
    assert compiling._known(False, False) == {}


def test_an_unknown_option_is_left_out_and_fast_arithmetic_with_its_safeguards(monkeypatch):
    assert not compiling._accepts({"xla_cpu_no_such_option": True})
    without = {
        name: value for name, value in compiling.CPU_OPTIONS.items() if "honor_nans" not in name
    }
    monkeypatch.setattr(
        compiling, "CPU_OPTIONS", {**without, "xla_cpu_fast_math_honor_nothing": True}
    )
    known = compiling._reordering.__wrapped__()
    assert "xla_cpu_enable_fast_math" not in known
    assert "xla_cpu_prefer_vector_width" in known


@pytest.mark.parametrize(("d", "few"), [(1, True), (4, True), (5, False), (10, False)])
def test_kernels_are_written_out_for_few_features(d, few):
    assert compiling._few_features((1, [mixture(d)], "text")) is few


def test_without_a_mixture_nothing_is_known_of_features():
    assert compiling._few_features((np.ones((3, 2)),)) is False


@pytest.mark.parametrize("compiled", [jit, jit_in_order])
def test_infinities_and_what_is_no_number_stay_what_they_are(compiled):
    """But for what is written as x - x, which `jit` takes as zero whatever x is."""
    values = np.array([1.0, np.inf, -np.inf, np.nan, 0.0])

    def look(x):
        return jnp.isnan(x), jnp.isinf(x), x - 1, jnp.maximum(x, 0.0), 1 / x, jnp.log(jnp.abs(x))

    with double(), np.errstate(all="ignore"):
        found = [np.asarray(part) for part in compiled(look)(jnp.asarray(values))]
        wanted = (
            np.isnan(values),
            np.isinf(values),
            values - 1,
            np.maximum(values, 0.0),
            1 / values,
            np.log(np.abs(values)),
        )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-15)


@pytest.mark.parametrize(("lines", "kept"), [(40_001, 0), (1_000, 1)])
def test_programs_are_forgotten_before_memory_maps_run_out(lines, kept, tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text("7f00 r-xp\n" * lines)
    monkeypatch.setattr(compiling, "MAPS", maps)
    monkeypatch.setattr(compiling, "_looked", -compiling.LOOK_EVERY)
    twice = jax.jit(lambda x: 2 * x)
    assert twice(1.0) == 2.0
    assert twice._cache_size() == 1
    compiling.forget_programs()
    assert twice._cache_size() == kept
    assert twice(1.0) == 2.0
