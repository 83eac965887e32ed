"""How many devices a fit of the command line is spread over."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from fedmixtures import _checks

if TYPE_CHECKING:
    from fedmixtures.cli.settings import FitSettings

MANY_NODES = 500
"""From so many nodes on a second core saves more than it costs to set up."""


def offer_cores() -> None:
    """Make every core of this machine a device of JAX; before anything else uses it."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # JAX runs already, with the devices it has
        jax.config.update("jax_num_cpu_devices", cores or 1)


def chosen(settings: FitSettings, n_nodes: int) -> FitSettings:
    """The settings with a number of devices: all for many nodes, else one."""
    import jax

    if settings.devices is not None:
        _checks.whole("--devices", settings.devices)
        return settings
    return replace(settings, devices=jax.device_count() if n_nodes >= MANY_NODES else 1)
