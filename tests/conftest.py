"""Settings for all tests: several CPU devices, strict broadcasting, few compiled programs."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

# Most of the time goes into compiling; this way it takes two thirds (kernels.compiling says more).
# JAX 0.11 no longer has the flag, and XLA ends the process at a flag that it does not know.
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"

import jax  # noqa: E402 (after its flags)
import pytest  # noqa: E402 (after its flags)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 3)
jax.devices()  # from now on the number stays

gc.set_threshold(100_000, 20, 100)  # tracing makes many objects, and few cycles

MAPS, MOST_MAPS = Path("/proc/self/maps"), 25_000


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_forgotten():
    """Every compiled program maps memory, and a Linux process has 65,530 maps: then XLA crashes."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
