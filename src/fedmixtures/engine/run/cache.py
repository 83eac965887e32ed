"""Compiled programs kept between processes, so that a second run starts at once.

JAX can store compiled programs on disk. We switch that on for the length of a fit only, in the
user's cache folder, and only where JAX has no such folder set already; JAX's settings outside a fit
stay as they are. ``FEDMIXTURES_CACHE=off`` switches it off, any other value names another folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

FOLDER = "jax_compilation_cache_dir"
SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,  # our programs are many and small
    "jax_persistent_cache_min_entry_size_bytes": 0,
}


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
    """Keep what is compiled inside this block; leave a cache that the user has set alone."""
    folder = None if getattr(jax.config, FOLDER) else cache_folder()
    if folder is None:
        yield
        return
    from jax.experimental.compilation_cache import compilation_cache as jax_cache

    before = {name: getattr(jax.config, name) for name in SETTINGS}
    try:
        jax.config.update(FOLDER, str(folder))
        for name, value in SETTINGS.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()  # JAX decides once whether there is a cache
        yield
    finally:
        jax.config.update(FOLDER, None)
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()
