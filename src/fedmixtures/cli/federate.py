"""`fedmixtures federate`: fits between silos, on one machine to try, or between institutions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from cyclopts import App

WARNING = (
    "Members should trust each other to follow the protocol: what a dishonest one can do, and what "
    "stops it, is in docs/privacy.md."
)

Carrier = Literal["nvflare", "grpc"]

federate = App(
    name="federate",
    help=f"{WARNING}\n\nRun between silos: rows stay at their site, sealed models travel through a "
    "hub.",
)


def need_nvflare() -> None:
    """Say what to install, before any work: kits are NVFlare's, whoever carries."""
    from fedmixtures.federation.carriers import NVFLARE, check_installed

    check_installed(NVFLARE)


@contextmanager
def silos() -> Iterator[None]:
    """What went wrong between silos is said in words; what NVFlare logs on the way is not."""
    import logging

    from fedmixtures.federation.driving import FederationError

    logging.getLogger().addHandler(logging.NullHandler())
    try:
        yield
    except FederationError as error:
        raise ValueError(str(error)) from None


COMMANDS = {
    "try": "federate_jobs:try_",
    "submit": "federate_jobs:submit",
    "status": "federate_jobs:status",
    "watch": "federate_jobs:watch",
    "collect": "federate_jobs:collect",
    "explain": "federate_sites:explain",
    "models": "federate_sites:models",
    "init-hub": "federate_sites:init_hub",
    "serve": "federate_sites:serve",
    "approve": "federate_sites:approve",
    "join": "federate_sites:join",
    "trust": "federate_sites:trust",
}
for _name, _function in COMMANDS.items():
    federate.command(f"fedmixtures.cli.{_function}", name=_name)
