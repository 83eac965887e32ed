"""`fedmixtures federate`: fits between silos, on one machine to try, or between institutions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from fedmixtures.cli.main import say

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


@federate.command(name="try")
def try_(
    *data: str,
    n: Annotated[int, Parameter(name=["-n", "--sites"])] = 3,
    nodes: str | None = None,
    graph: str = "full",
    k: Annotated[str, Parameter(name=["--k", "-k"])] = "3",
    method: Annotated[str | None, Parameter(name=["--method", "-m"])] = None,
    covariance: str = "full",
    alpha: str | None = None,
    features: str | None = None,
    rounds: int | None = None,
    standardize: bool | None = None,
    seed: int = 0,
    carrier: Carrier = "nvflare",
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("federation-try"),
) -> None:
    """A real federation on this machine: a hub and sites as processes, mutual TLS, sealed models.

    Example: `fedmixtures federate try -n 3` uses made-up rows. With your own table:
    `fedmixtures federate try data.csv --nodes hospital --k 4`

    Parameters
    ----------
    data
        A table with a node column, or one file per site. Every site gets its rows in a file of its
        own. Without any, rows are made up.
    n
        Number of sites with made-up rows.
    nodes
        Column that names the site of each row.
    graph
        Who listens to whom, as for `fedmixtures fit`.
    k
        Components of every site.
    method
        trust, gtv-mmd, gtv-kl or gtv-euclidean. Unless given, trust; with --alpha, gtv-mmd.
    covariance
        full, tied, diag or spherical, as for `fedmixtures fit`.
    alpha
        How much sites listen to each other.
    features
        Columns to use, as a,b,c.
    rounds
        Exchanges between sites, 20 unless given; trust knows itself when it is done.
    standardize
        As for `fedmixtures fit`. (Between real sites nobody sees all rows: there the job's `shift`
        and `scale` do this.)
    seed
        Seeds everything random.
    carrier
        nvflare, or grpc: a hub of our own that keeps nothing.
    out
        New folder for the report; kits, keys and states of the sites go into it too.
    """
    need_nvflare()
    from fedmixtures.cli.federate_try import run_try
    from fedmixtures.cli.fit import WITH_ALPHA, FitSettings, default_method, names

    method = method or (default_method() if alpha is None else WITH_ALPHA)
    settings = FitSettings(
        data=data, nodes=nodes, features=names(features), graph=graph, method=method, k=k,
        covariance=covariance, alpha=alpha, rounds=rounds, standardize=standardize, seed=seed,
    )  # fmt: skip
    say(f"Note: {WARNING}", "yellow")
    with silos():
        run_try(settings, n, out, carrier)


@federate.command
def submit(
    job: Path,
    *,
    kit: Path,
    user: str,
    key: Path = Path("site.key"),
    patience: float = 300.0,
    carrier: Carrier = "nvflare",
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("federation"),
) -> None:
    """Submit a job, watch it, go on after faults; sealed results are kept in a folder.

    Parameters
    ----------
    job
        The job as TOML: see the page "Three hospitals". Its `shift` and `scale` are what
        --standardize is in one process: nobody sees all rows to take them from, so give round
        numbers that everybody knows.
    kit
        The researcher's kit: the link `kit` in the folder of `federate join`.
    user
        The researcher's name in the kit and on the sites' rosters.
    key
        The researcher's private key, which signs the job.
    patience
        Seconds to wait for sites that are away before going on without them.
    carrier
        What the hub and the sites run: nvflare (start.sh) or grpc (federate serve).
    out
        New folder for the sealed results; `federate collect` opens them.
    """
    from fedmixtures.cli.federate_try import ConsoleListener
    from fedmixtures.federation.carriers import driver_of
    from fedmixtures.federation.job import SignedJob, read_job
    from fedmixtures.federation.wire.sealing import SiteKey

    say(f"Note: {WARNING}", "yellow")
    wanted = read_job(job)
    signed = SignedJob.by(user, SiteKey.load(key), wanted)
    if not wanted.scale and not wanted.needs_all:
        say(
            "Note: the job has no `scale`. Step sizes and bandwidths of the couplings are made for "
            "features of order one: where yours are not, give `shift` and `scale`.",
            "yellow",
        )
    if out.exists():
        raise ValueError(f"{str(out)!r} already exists. Choose another folder with --out.")
    with silos(), closing(driver_of(carrier, kit, user, ConsoleListener())) as driver:
        record = driver.fit(signed, patience=patience)
    out.mkdir(parents=True)
    (out / "job.json").write_text(wanted.to_json())
    for site, frame in record.results.items():
        (out / f"{site}.fmx").write_bytes(frame)
    say(f"Done. Open what the sites released: fedmixtures federate collect {out}")


@federate.command
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


@federate.command
def status(*, kit: Path, user: str, carrier: Carrier = "nvflare") -> None:
    """Which sites are connected and which round running jobs have reached.

    Parameters
    ----------
    kit
        The researcher's kit.
    user
        The researcher's name in the kit.
    carrier
        What the hub runs: nvflare or grpc.
    """
    from fedmixtures.federation.carriers import driver_of
    from fedmixtures.federation.watching import in_lines, look

    with silos(), closing(driver_of(carrier, kit, user)) as driver:
        driver.open(patience=20.0)
        for line in in_lines(look(driver)):
            say(line)


@federate.command
def watch(
    *,
    kit: Path,
    user: str,
    page: Path | None = None,
    every: float = 2.0,
    looks: int | None = None,
    carrier: Carrier = "nvflare",
) -> None:
    """Watch runs: who is there, which step, what was refused and why, what budgets have left.

    Nothing about rows is shown: the hub does not know it. Ctrl-C ends it, and no run with it.

    Parameters
    ----------
    kit
        The researcher's kit: the link `kit` in the folder of `federate join`.
    user
        The researcher's name in the kit.
    page
        Also write a page to this file, again at every look; a browser that shows it follows.
    every
        Seconds between two looks.
    looks
        End after so many; unless given, go on.
    carrier
        What the hub runs: nvflare or grpc.
    """
    import time
    from itertools import count, islice

    from rich.live import Live

    from fedmixtures.cli.main import console
    from fedmixtures.federation.carriers import driver_of
    from fedmixtures.federation.watching import as_page, in_lines, look
    from fedmixtures.io.runs import write_text

    with silos(), closing(driver_of(carrier, kit, user)) as driver, Live(console=console()) as live:
        driver.open(patience=20.0)
        known: dict[str, dict] = {}
        for number in islice(count(), looks):
            time.sleep(every if number else 0.0)
            seen = look(driver, known)
            live.update("\n".join(in_lines(seen)))
            if page is not None:
                write_text(page, as_page(seen, every))


@federate.command
def collect(
    folder: Path,
    *,
    key: Path = Path("site.key"),
    roster: Path = Path("roster.toml"),
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
) -> None:
    """Open what sites have released to the job's collector: their final models, gated.

    They are written in the units of the columns, whatever shift and scale the job has: as JSON, and
    as a run in the folder `run` that `fedmixtures predict`, `score`, `explain` and `export` take.

    Parameters
    ----------
    folder
        Folder of `federate submit`.
    key
        The collector's private key.
    roster
        Public keys of the sites.
    out
        File to write the mixtures to, as JSON; by default `models.json` in the folder.
    """
    need_nvflare()
    import json

    from fedmixtures.federation.collected import as_plain, write_run
    from fedmixtures.federation.driving import open_results
    from fedmixtures.federation.job import Job
    from fedmixtures.federation.wire.roster import Roster
    from fedmixtures.federation.wire.sealing import SiteKey

    job = Job.from_plain(json.loads((folder / "job.json").read_text()))
    results = {path.stem: path.read_bytes() for path in folder.glob("*.fmx")}
    models = open_results(job, results, SiteKey.load(key), Roster.load(roster))
    plain = as_plain(job, models)
    for site in job.sites:
        known = f"{len(plain[site]['weights'])} components" if site in plain else "released nothing"
        say(f"{site}: {known}")
    out = out or folder / "models.json"
    out.write_text(json.dumps(plain, indent=1))
    say(f"Wrote {out}")
    if plain:
        say(f"and a run of these sites: fedmixtures predict {write_run(folder, job, models)}")


@federate.command
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


@federate.command
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


@federate.command
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


@federate.command
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


@federate.command
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


@federate.command
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
