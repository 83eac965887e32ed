"""Kernels are tried before they are relied on, and left out with a warning if they fail."""

import jax
import jax.numpy as jnp
import pytest

from fedmixtures.kernels import dispatch, trial
from fedmixtures.kernels.gpu import clustering, drawing, likelihood, matching, pair_sums
from fedmixtures.mixture.arithmetic import precision

KERNELS = [matching, drawing, pair_sums, likelihood, clustering]


@pytest.mark.parametrize("module", KERNELS)
def test_a_sound_kernel_passes_its_trial(module):
    module.trial(2, 2, "float32", interpret=True)


@pytest.mark.parametrize("module", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_can_be_written_for_a_gpu(monkeypatch, module, dtype):
    """Not compiled, for which it takes the GPU's compiler, but put into its language."""

    def written(kernel, plain, dtype, *inputs):
        with precision(dtype):
            program = jax.jit(kernel).trace(*inputs).lower(lowering_platforms=("cuda",))
        assert "mosaic_gpu" in program.as_text()

    monkeypatch.setattr(module, "compare", written)
    module.trial(3, 2, dtype)


@pytest.mark.skipif(not dispatch.on_gpu(), reason="says what a GPU uses, and there is none here")
@pytest.mark.parametrize("module", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gpu_uses_the_kernel(module, dtype):
    assert trial.passes(module.trial, 5, 2, dtype)
    assert trial.outcomes()[f"{module.__name__}, k=5, d=2, {dtype}"] == "kernel"


def test_a_wrong_kernel_fails_its_trial(monkeypatch):
    monkeypatch.setattr(pair_sums, "LOG2_E", 1.44)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        pair_sums.trial(2, 2, "float64", interpret=True)


def test_what_fails_is_left_out_with_one_warning():
    tried = []

    def refused(k, d, dtype):
        tried.append((k, d, dtype))
        raise RuntimeError("no such instruction")

    with pytest.warns(RuntimeWarning, match="k=3, d=2, float32.*no such instruction"):
        assert not trial.passes(refused, 3, 2, "float32")
    assert not trial.passes(refused, 3, 2, "float32")  # no second warning: it would be an error
    assert tried == [(3, 2, "float32")]
    assert trial.passes(lambda k, d, dtype: None, 3, 7, "float32")
    found = trial.outcomes()
    assert found[f"{__name__}, k=3, d=2, float32"] == "no such instruction"
    assert found[f"{__name__}, k=3, d=7, float32"] == "kernel"


def test_a_trial_can_run_while_a_program_is_compiled_around_it():
    def adds(k, d, dtype):
        assert float(jnp.ones(k).sum()) == k  # a number, not a piece of the program

    double_if_sound = lambda x: 2 * x if trial.passes(adds, 4, 1, "float32") else x
    assert float(jax.jit(double_if_sound)(3.0)) == 6.0
