"""`jit` with the settings our kernels are written for, and how to compile as rarely as possible.

Sizes are rounded up, and compiled programs kept between processes, so that a second run starts at
once.
"""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from fedmixtures.kernels import dispatch
from fedmixtures.mixture.linear import UNROLLED
from fedmixtures.mixture.mixture import Mixture

QUICK = {"xla_cpu_use_fusion_emitters": False}
"""For kernels that are written out: programs about as fast as with them (MMD up to a tenth slower,
KL up to a tenth faster), compiled in two thirds of the time. With many features, where kernels are
loops, programs would take up to twice as long."""
CPU_OPTIONS: dict[str, Any] = {
    # Sums over the last axis become vector loops: additions may change their order, and nothing
    # else may. Infinities, NaN, division and functions stay as IEEE 754 has them, but for what is
    # written as x - x, which becomes zero whatever x is.
    "xla_cpu_enable_fast_math": True,
    "xla_cpu_fast_math_honor_infs": True,
    "xla_cpu_fast_math_honor_nans": True,
    "xla_cpu_fast_math_honor_division": True,
    "xla_cpu_fast_math_honor_functions": True,
    "xla_cpu_enable_fast_min_max": False,
    "xla_cpu_prefer_vector_width": 512,
}
FOLDER = "jax_compilation_cache_dir"
CACHE_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,  # our programs are many and small
    "jax_persistent_cache_min_entry_size_bytes": 0,
}


MAPS, MOST_MAPS, LOOK_EVERY = Path("/proc/self/maps"), 40_000, 10.0
"""Every compiled program maps memory, and where a Linux process has 65,530 maps XLA crashes. More
than this, looked at every so many seconds, and programs are forgotten."""
_looked = 0.0


class jit:
    """Compile like `equinox.filter_jit`, with half the work a call; on a CPU with `CPU_OPTIONS`.

    Arrays among the arguments are traced, all else is held static; results are arrays.
    """

    def __init__(self, function: Callable, reorder: bool = True, quick: bool | None = None):
        """With `QUICK` or not; None decides by the features of mixtures among the arguments."""
        self.function = function  # as it is, for whoever compiles it together with more
        self._reorder, self._quick, self._of_kind = reorder, quick, {}
        update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        """Run it."""
        return self._jitted(args)(*_parted(args, kwargs))

    def lower(self, *args, **kwargs):
        """The program for these arguments, to look at or to compile."""
        return self._jitted(args).lower(*_parted(args, kwargs))

    def _jitted(self, args: tuple) -> Any:
        on_cpu = dispatch.on_cpu()
        quick = _few_features(args) if on_cpu and self._quick is None else self._quick
        kind = on_cpu, bool(quick)
        if kind not in self._of_kind:
            options = _known(self._reorder, kind[1]) if on_cpu else None
            self._of_kind[kind] = jax.jit(
                _of_parts(self.function), static_argnums=1, compiler_options=options
            )
        return self._of_kind[kind]


def _parted(*trees: Any) -> tuple[list[Any], tuple[tuple, Any]]:
    """The leaves that are arrays, and the others with what all stand in."""
    leaves, tree = jax.tree.flatten(trees)
    arrays = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
    others = (None if b is not None else a for a, b in zip(leaves, arrays, strict=True))
    return arrays, (tuple(others), tree)


def _of_parts(function: Callable) -> Callable:
    """The function of what `_parted` gives."""

    def joined(arrays, rest):
        others, tree = rest
        both = zip(arrays, others, strict=True)
        args, kwargs = jax.tree.unflatten(tree, [b if a is None else a for a, b in both])
        return function(*args, **kwargs)

    joined.__name__ = function.__name__  # that of the program, in profiles
    return joined


jit_in_order = partial(jit, reorder=False)
"""`jit` that adds up sums in the order in which they are written."""


def _few_features(args: tuple) -> bool:
    """Whether there are mixtures among the arguments, for which kernels are written out."""
    is_mixture = lambda node: isinstance(node, Mixture)
    mixtures = filter(is_mixture, jax.tree.leaves(args, is_leaf=is_mixture))
    return max((m.n_features for m in mixtures), default=UNROLLED + 1) <= UNROLLED


@cache
def _known(reorder: bool, quick: bool) -> dict[str, Any]:
    """Those options that this release of the compiler has."""
    more = QUICK if quick and _accepts(QUICK) else {}
    return {**_reordering(), **more} if reorder else more


@cache
def _reordering() -> dict[str, Any]:
    if _accepts(CPU_OPTIONS):
        return CPU_OPTIONS
    known = {name: value for name, value in CPU_OPTIONS.items() if _accepts({name: value})}
    # Half of the settings of fast arithmetic would be less careful than none.
    careful = all(name in known for name in CPU_OPTIONS if "honor" in name or "min_max" in name)
    if not careful:
        known.pop("xla_cpu_enable_fast_math", None)
    return known


def _accepts(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def rounded_up(n: int | np.integer) -> int:
    """The next number on a grid of four steps per doubling: at most a quarter more."""
    n = int(n)
    if n <= 8:
        return max(n, 1)
    step = 1 << ((n - 1).bit_length() - 3)
    return -(-n // step) * step


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None if switched off or not writable."""
    chosen = os.environ.get("FEDMIXTURES_CACHE", "")
    if chosen.lower() == "off":
        return None
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = Path(chosen) if chosen else Path(user) / "fedmixtures"
    folder = base / f"xla-{jax.__version__}-{_machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _machine() -> str:
    """Programs are compiled for one kind of processor; homes are shared between several."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    text = f"{platform.machine()} {platform.processor()} {flags}"
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


@contextmanager
def compilation_cache() -> Iterator[None]:
    """Keep what is compiled inside this block on disk, in the user's cache folder.

    Only where JAX has no such folder set already; JAX's settings outside the block stay as they
    are. ``FEDMIXTURES_CACHE=off`` switches it off, any other value names another folder.
    """
    forget_programs()
    folder = None if getattr(jax.config, FOLDER) else cache_folder()
    if folder is None:
        yield
        return
    from jax.experimental.compilation_cache import compilation_cache as jax_cache

    before = {name: getattr(jax.config, name) for name in CACHE_SETTINGS}
    try:
        jax.config.update(FOLDER, str(folder))
        for name, value in CACHE_SETTINGS.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()  # JAX decides once whether there is a cache
        yield
    finally:
        jax.config.update(FOLDER, None)
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()


def forget_programs() -> None:
    """Drop what was compiled in this process where it has become too much for Linux."""
    global _looked
    now = time.monotonic()
    if now - _looked < LOOK_EVERY or not MAPS.exists():
        return
    _looked = now
    if MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
