"""Settings for all tests: several CPU devices, strict broadcasting, few compiled programs."""

import gc
import os
import shutil
import tempfile
from importlib.metadata import version

# Most of the time goes into compiling. Programs that are not optimised, in one piece, take half of
# it, and the old way of fusing saves a third (kernels.compiling says more). as_processor.sh asks
# for optimised ones, since those round in other ways. XLA ends the process at a flag that it does
# not know: JAX 0.11 no longer has all of them.
flags = os.environ.get("XLA_FLAGS", "")
if "optimization_level" not in flags:
    flags += " --xla_backend_optimization_level=0"
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = flags

# Programs compiled by one process of a test run serve all of them; every run begins with none.
OWN_CACHE = "FEDMIXTURES_CACHE" not in os.environ
if OWN_CACHE:  # true in the first process only: the others inherit it
    os.environ["FEDMIXTURES_CACHE"] = tempfile.mkdtemp(prefix="fedmixtures-tests-")

import jax  # noqa: E402 (after its flags)
import pytest  # noqa: E402 (after its flags)

from fedmixtures.kernels.compiling import (  # noqa: E402 (after JAX's flags)
    FOLDER,
    cache_folder,
    forget_programs,
)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 3)
jax.devices()  # from now on the number stays
if (folder := cache_folder()) is not None:
    jax.config.update(FOLDER, str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)

gc.set_threshold(100_000, 20, 100)  # tracing makes many objects, and few cycles


def pytest_collection_modifyitems(items):
    """What mostly waits for other processes begins first."""
    items.sort(key=lambda item: item.get_closest_marker("deployed") is None)


def pytest_unconfigure():
    """The programs of this run go with it."""
    if OWN_CACHE:
        shutil.rmtree(os.environ["FEDMIXTURES_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_forgotten():
    """Between modules too, where tests compile outside of fits."""
    yield
    forget_programs()
