"""Which devices a fit runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedmixtures import _checks
from fedmixtures._types import Device


def resolve_devices(devices: Any) -> tuple[Device, ...]:
    """The devices meant by a number, by ``"all"`` or by themselves; none means JAX's default."""
    import jax

    if devices is None:
        return ()
    seen = jax.devices()
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        if not devices or not all(isinstance(device, jax.Device) for device in devices):
            raise ValueError(
                f'`devices` is {devices!r}. Give some of `jax.devices()`, a number, or "all".'
            )
        return tuple(devices)
    if isinstance(devices, str):
        _checks.one_of("devices", devices, ("all",))
        return tuple(seen)
    _checks.whole("devices", devices)
    if devices > len(seen):
        raise ValueError(
            f"`devices` is {devices}, but JAX sees {len(seen)} ({seen[0].platform}). Ask for at "
            f"most {len(seen)}; to use so many cores of a CPU, set the environment variable "
            f"JAX_NUM_CPU_DEVICES={devices} before Python starts."
        )
    return tuple(seen[:devices])
