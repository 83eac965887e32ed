"""Settings for all tests: several CPU devices, strict broadcasting, few compiled programs."""

import gc
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 3)

MAPS, MOST_MAPS = Path("/proc/self/maps"), 25_000


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_forgotten():
    """Every compiled program maps memory, and a Linux process has 65,530 maps: then XLA crashes."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
