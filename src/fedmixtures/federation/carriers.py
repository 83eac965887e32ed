"""The carriers by name, each of which is loaded only if it is asked for."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fedmixtures import _checks
from fedmixtures.federation.driving import AbstractDriver, Listener

NVFLARE, GRPC = "nvflare", "grpc"
CARRIERS = NVFLARE, GRPC
NEEDS = {NVFLARE: ("nvflare", "cryptography"), GRPC: ("grpc", "cryptography")}


def check_installed(carrier: str) -> None:
    """Say what to install, before any work."""
    _checks.one_of("carrier", carrier, CARRIERS)
    for name in NEEDS[carrier]:
        if find_spec(name) is None:
            raise ValueError(
                f"the package {name!r} is missing. Install what silos need: "
                f'pip install "fedmixtures[{carrier},cli,report]"'
            )


def driver_of(
    carrier: str, kit: Path, user: str, listener: Listener | None = None
) -> AbstractDriver:
    """The researcher's side of a carrier; `user` is the name in the kit."""
    check_installed(carrier)
    if carrier == GRPC:
        from fedmixtures.federation.grpc.driver import GrpcDriver

        return GrpcDriver(kit, listener)
    from fedmixtures.federation.nvflare.driver import NVFlareDriver

    return NVFlareDriver(kit, user, listener)
