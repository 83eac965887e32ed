"""Commands of those who run a hub or a site: certificates, keys, what a job would release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fedmixtures.cli.federate import WARNING, need_nvflare
from fedmixtures.cli.main import say


def init_hub(folder: Path, *, host: str, port: int = 8002) -> None:
    """Make the hub: a certificate authority and the hub's own kit.

    Example: `fedmixtures federate init-hub hub --host hub.example.org`

    Parameters
    ----------
    folder
        New folder; its `ca` holds the authority's private key and stays at the hub.
    host
        Name under which the sites reach this machine.
    port
        Port the hub listens on, on all interfaces: let only the sites through the firewall.
    """
    need_nvflare()
    from fedmixtures.federation.nvflare import enrol

    kit, mark = enrol.init_hub(folder, host, port)
    say(f"Tell every site, by telephone: the authority's fingerprint is\n  {mark}")
    say(f"Sign their requests: fedmixtures federate approve REQUEST.zip --hub {folder}")
    say(f"Start the hub: {kit}/startup/start.sh (it listens on port {port} of all interfaces)")


def approve(
    request: Path,
    *,
    hub: Path,
    name: str | None = None,
    role: Literal["site", "researcher"] | None = None,
) -> None:
    """Sign the request of a site or a researcher, at the hub.

    Without `--name` and `--role` it shows what the request asks for, and signs nothing.

    Parameters
    ----------
    request
        The zip that `federate join` has made.
    hub
        Folder of `federate init-hub`.
    name
        Name that the certificate is to be for: that of whoever sent the request.
    role
        site (holds rows) or researcher (submits jobs).
    """
    need_nvflare()
    from fedmixtures.federation.nvflare import enrol

    asked_name, asked_role = enrol.read_request(request)
    say(f"The request asks for a certificate of {asked_name!r} as a {asked_role}.")
    if name is None or role is None:
        say(f"Nothing is signed. If that is right, add: --name {asked_name} --role {asked_role}")
        return
    say(f"Send back: {enrol.approve(hub, request, name, role)}")


def join(
    name: str,
    *,
    folder: Path | None = None,
    hub: str | None = None,
    researcher: Annotated[bool, Parameter(negative="")] = False,
    signed: Path | None = None,
    fingerprint: str | None = None,
    data: Path | None = None,
    columns: str | None = None,
) -> None:
    """Join a federation: first a request to the hub, then the kit from its answer.

    First: `fedmixtures federate join hospital-1 --hub hub.example.org:8002`

    Then: `fedmixtures federate join hospital-1 --signed hospital-1.signed.zip
    --fingerprint SHA256:... --data rows.csv --columns age,bmi`

    Parameters
    ----------
    name
        Name of the site; of a researcher, an e-mail address.
    folder
        Folder for keys and kit; by default named like the site.
    hub
        Name and port of the hub.
    researcher
        Join as a researcher, who submits jobs and holds no rows.
    signed
        The hub's answer.
    fingerprint
        Fingerprint of the hub's authority, as read out by telephone.
    data
        Table with this site's rows; it is read here and sent nowhere.
    columns
        Columns to use, in the order agreed between the sites.
    """
    need_nvflare()
    import shutil

    from fedmixtures.federation.nvflare import enrol
    from fedmixtures.federation.wire import sealing

    folder = folder or Path(name)
    if signed is None:
        host, _, port = (hub or "").partition(":")
        if not host or not port.isdigit():
            raise ValueError("give --hub as name:port, for example hub.example.org:8002")
        make = enrol.request_researcher if researcher else enrol.request_site
        made, public = make(folder, name, host, int(port))
        request = Path(made.name)
        if request.exists():
            raise ValueError(f"{str(request)!r} already exists: move it, then ask again.")
        shutil.copyfile(made, request)
        say(f"Send to the hub: {request}")
        say(f"Send to the other sites, not through the hub: {public}")
        say(f"and compare by telephone: {sealing.fingerprint(public)}")
        return
    if fingerprint is None:
        raise ValueError("give --fingerprint, as the hub's administrator reads it to you.")
    if researcher:
        kit = enrol.package(folder, name, signed, fingerprint)
        say(f"Your kit: {kit}")
        return
    if data is None or not columns:
        raise ValueError("give --data and --columns: which rows this site takes part with.")
    kit = enrol.finish_site(folder, name, signed, fingerprint, data, columns.split(","))
    say(f"Check what this site allows: {kit}/local/fedmixtures.toml")
    pin = f"fedmixtures federate trust NAME KEY --roster {folder}/roster.toml"
    say(f"Pin the other sites' keys: {pin}")
    say(f"and the researchers' (who may submit jobs): {pin} --researcher")
    say(f"Start the site: {kit}/startup/start.sh")


def trust(
    name: str,
    key: str,
    *,
    roster: Path = Path("roster.toml"),
    researcher: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Pin another site's or a researcher's public key.

    Only pinned sites can send models here or receive ours; only pinned researchers can sign jobs.

    Parameters
    ----------
    name
        Name of the site or researcher.
    key
        Its public key: 64 hexadecimal digits of a site, 128 of a researcher.
    roster
        This site's roster.
    researcher
        Pin a researcher.
    """
    need_nvflare()
    from fedmixtures.federation.wire.roster import pin

    mark = pin(roster, name, key, "researcher" if researcher else "site")
    say(f"Pinned. Compare by telephone with {name}: {mark}")


def serve(kit: Path, *, listen: str = "0.0.0.0") -> None:
    """Run a hub or a site by gRPC, from its kit; it stays in the foreground, for systemd.

    In place of NVFlare's `start.sh`: hub and sites of a federation must all be started alike.

    Parameters
    ----------
    kit
        The link `kit` in the folder of `federate join` or `federate init-hub`.
    listen
        Of a hub: the address it listens on; unless given, all of them.
    """
    from fedmixtures.federation.carriers import GRPC, check_installed

    check_installed(GRPC)
    import signal
    import sys

    from fedmixtures.federation.grpc import hub, site
    from fedmixtures.federation.grpc.kit import HUB, SITE, Kit

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = Kit(kit)
    name, role = found.name
    if role == HUB:
        server, _ = hub.served(found, listen)
        say(f"The hub {name} listens on {listen}:{found.hub.rpartition(':')[2]}")
        server.wait_for_termination()
    elif role == SITE:
        site.joined(found, say).run()
    else:
        raise ValueError(f"{str(kit)!r} is the kit of the {role} {name!r}: call federate submit.")


def explain(job: Path, *, site: Path) -> None:
    """One page: what a job would release of a site, how often, to whom, under which rule.

    Parameters
    ----------
    job
        The job as TOML, from the researcher.
    site
        The site's own file, `local/fedmixtures.toml` of its kit.
    """
    from fedmixtures.federation.explain import explain as page
    from fedmixtures.federation.job import read_job
    from fedmixtures.federation.node.site import SiteConfig

    say(f"Note: {WARNING}\n", "yellow")
    print(page(read_job(job), SiteConfig.load(site)), end="")


def models(*, site: Path) -> None:
    """The models that a site keeps of its jobs: folders that `fedmixtures predict` takes.

    Parameters
    ----------
    site
        The site's own file, `local/fedmixtures.toml` of its kit.
    """
    from fedmixtures.federation.node.kept import models_of
    from fedmixtures.federation.node.site import SiteConfig

    config = SiteConfig.load(site)
    found = models_of(config)
    if not found:
        say(f"No job has come to its end at {config.name} yet.")
    for folder in found:
        say(f"{folder}")
    if found:
        say(f"For example: fedmixtures explain {found[-1]}")
