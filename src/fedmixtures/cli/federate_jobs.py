"""Commands of a researcher: to try a federation, submit a job, watch it, collect what came."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedmixtures.cli.federate import WARNING, Carrier, need_nvflare, silos
from fedmixtures.cli.main import say


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
    drop: str | None = None,
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
    drop
        Columns to leave out, as a,b,c.
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
        data=data, nodes=nodes, features=names(features), drop=names(drop), graph=graph,
        method=method, k=k, covariance=covariance, alpha=alpha, rounds=rounds,
        standardize=standardize, seed=seed,
    )  # fmt: skip
    say(f"Note: {WARNING}", "yellow")
    with silos():
        run_try(settings, n, out, carrier)


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
