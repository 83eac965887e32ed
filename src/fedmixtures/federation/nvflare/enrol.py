"""Real sites: certificates by NVFlare's own tools, private keys made and kept where they are used.

The hub makes a certificate authority. Every site (and the researcher) makes its keys and a request;
the hub approves the request; the site packs its kit from the answer. Our own sealing key is made in
the same step, and its public half goes to the other sites, not through the hub.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from fedmixtures.federation.node.budgets import ReleaseBudget
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.node.site import SiteConfig
from fedmixtures.federation.nvflare.kits import (
    EXECUTOR,
    PROJECT,
    SITE_FILE,
    check_site,
    nvflare,
    secure,
    secure_hub,
)
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import SiteKey
from fedmixtures.io.storage import write_durably

PROFILE, AUTHORITY = "profile.yaml", "ca"
KIT = "kit"
"""In the folder of whoever has joined: what `--kit` names, and what is started."""
ROLES_OF_CERTIFICATES = {"server": "hub", "client": "site", "lead": "researcher"}
"""What NVFlare's types of certificates are here; a request for any other is refused."""


def init_hub(folder: Path, host: str, port: int) -> tuple[Path, str]:
    """The authority and the hub's own kit; returns the kit and the authority's fingerprint."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / AUTHORITY).exists():
        raise ValueError(f"{str(folder)!r} already holds a hub's authority. Choose another folder.")
    profile = {
        "name": PROJECT,
        "scheme": "http",
        "connection_security": "mtls",
        "server": _server(host, port),
    }
    (folder / PROFILE).write_text(json.dumps(profile, indent=2))
    printed = nvflare(
        "cert", "init", "--profile", str(folder / PROFILE), "-o", str(folder / AUTHORITY)
    )
    mark = _fingerprint_in(printed)
    hub = {"name": host, "type": "server", "org": "hub", "default_host": host}
    request(folder, hub | {"fed_learn_port": port})
    signed = approve(folder, folder / host / f"{host}.request.zip", host, "hub")
    kit = package(folder, host, signed, mark)
    secure_hub(kit)
    return kit, mark


def request(folder: Path, participant: dict) -> Path:
    """Keys and a request to the hub; the zip holds no private key."""
    folder.mkdir(parents=True, exist_ok=True)
    name = participant["name"]
    definition = folder / f"{name}.yaml"
    definition.write_text(json.dumps({"name": PROJECT, "participants": [participant]}, indent=2))
    nvflare("cert", "request", "-p", str(definition), "--out", str(folder / name))
    return folder / name / f"{name}.request.zip"


def request_site(folder: Path, name: str, host: str, port: int) -> tuple[Path, str]:
    """A site's request, and its public sealing key."""
    organisation = re.sub(r"\W", "_", name)
    participant = {"name": name, "type": "client", "org": organisation}
    path = request(folder, participant | {"server": _server(host, port)})
    return path, _own_key(folder).public


def request_researcher(folder: Path, name: str, host: str, port: int) -> tuple[Path, str]:
    """A researcher's request (a name like an e-mail address), and the public identity."""
    participant = {"name": name, "type": "admin", "role": "lead", "org": "research"}
    path = request(folder, participant | {"server": _server(host, port)})
    return path, _own_key(folder).identity


def read_request(zip_file: Path) -> tuple[str, str]:
    """Name and role that a request asks for, from the certificate request that would be signed."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    request = _only(zip_file, ".csr", "request of `federate join`")
    try:
        subject = x509.load_pem_x509_csr(request).subject
    except ValueError as error:
        raise ValueError(f"{str(zip_file)!r} holds a damaged request: {error}") from None
    entry = lambda kind: [str(part.value) for part in subject.get_attributes_for_oid(kind)]
    name, kind = entry(NameOID.COMMON_NAME), entry(x509.ObjectIdentifier("1.2.840.113549.1.9.2"))
    return "".join(name), ROLES_OF_CERTIFICATES.get("".join(kind), "".join(kind) or "nothing")


def read_answer(zip_file: Path) -> str:
    """The name that a hub's answer is for, from the certificate in it."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    what = "answer of `federate approve`"
    found = _only(zip_file, ".crt", what)
    try:
        subject = x509.load_pem_x509_certificate(found).subject
    except ValueError as error:
        raise ValueError(f"{str(zip_file)!r} holds a damaged certificate: {error}") from None
    return "".join(str(p.value) for p in subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _only(zip_file: Path, ending: str, what: str) -> bytes:
    """The one file with this ending in a zip that is to be a request, or an answer."""
    try:
        with zipfile.ZipFile(zip_file) as content:
            paths = [name for name in content.namelist() if name.endswith(ending)]
            if len(paths) == 1:
                return content.read(paths[0])
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(zip_file)!r}.") from None
    except (OSError, zipfile.BadZipFile):
        pass
    raise ValueError(f"{str(zip_file)!r} is no {what}. Ask whoever sent it for that file.")


def approve(folder: Path, zip_file: Path, name: str, role: str) -> Path:
    """Sign a request, at the hub, if it asks for this name and role and no other."""
    found = read_request(zip_file)
    if found != (name, role):
        raise ValueError(
            f"{str(zip_file)!r} asks for a certificate of {found[0]!r} as a {found[1]}, not of "
            f"{name!r} as a {role}. Ask whoever sent it."
        )
    out = zip_file.with_name(zip_file.name.replace(".request.zip", ".signed.zip"))
    nvflare(
        "cert", "approve", str(zip_file), "-c", str(folder / AUTHORITY),
        "--profile", str(folder / PROFILE), "--out", str(out),
    )  # fmt: skip
    return out


def package(folder: Path, name: str, signed: Path, mark: str) -> Path:
    """The kit from the hub's answer, if its authority has the fingerprint that was agreed.

    It is in NVFlare's own folders, and the link ``kit`` leads to it.
    """
    if (found := read_answer(signed)) != name:
        raise ValueError(f"{str(signed)!r} is the hub's answer to {found!r}, not to {name!r}.")
    if not (folder / name).is_dir():
        raise ValueError(
            f"{str(folder)!r} holds no request of {name!r}: its private key is where `federate "
            f"join {name} --hub ...` was called. Call this there."
        )
    try:
        nvflare(
            "package", str(signed), "-w", str(folder / "kits"),
            "--request-dir", str(folder / name), "--fingerprint", mark,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(
            f"the kit of {name!r} could not be packed. Is --fingerprint what the hub's "
            f"administrator reads out, and {str(signed)!r} the answer to your last request? {error}"
        ) from None
    kit = Path("kits", PROJECT, "prod_00", name)
    (folder / KIT).unlink(missing_ok=True)
    (folder / KIT).symlink_to(kit, target_is_directory=True)
    return folder / KIT


def finish_site(
    folder: Path, name: str, signed: Path, mark: str, data: Path, columns: Sequence[str]
) -> Path:
    """Pack a site's kit, close it to all but our executor, and write its configuration."""
    kit = package(folder, name, signed, mark)
    secure(kit, EXECUTOR)
    text = site_file(folder.absolute(), name, data.absolute(), columns)
    write_durably(kit / "local" / SITE_FILE, text.encode())
    SiteConfig.load(kit / "local" / SITE_FILE).read_rows()  # say now what is wrong with them
    if not (folder / "roster.toml").exists():
        Roster({name: SiteKey.load(folder / "site.key").public}).save(folder / "roster.toml")
    wrong = check_site(kit)
    if wrong:
        raise ValueError(f"the kit is not safe: {'; '.join(wrong)}")
    return kit


def site_file(folder: Path, name: str, data: Path, columns: Sequence[str]) -> str:
    """The file of a site that has just joined: the default method alone, each line explained."""
    gate, releases = Gate(), ReleaseBudget()
    at = lambda part: _toml(str(folder / part))
    return f"""\
# What this site takes part with, and how far it lets a job go. This file wins over every job.
name = {_toml(name)}  # as in the certificate
key = {at("site.key")}  # private: opens what others seal for this site
roster = {at("roster.toml")}  # whose messages and whose jobs are taken
state = {at("state")}  # accounts of what has left, answers, log: keep a backup

[data]
path = {_toml(str(data))}  # CSV or Parquet, read here and sent nowhere
columns = [{", ".join(map(_toml, columns))}]  # in the order agreed between the sites
name = {_toml(SiteConfig.data_set)}  # releases are counted by this name, also when rows are added
# person = "patient"  # column that says whose a row is: people are counted then, not rows

[limits]
methods = ["trust"]  # the default method alone; others by name, as in a job: "gtv-mmd"
max_rounds = 200  # of a job of GTV, which sends a model in each; the default method ends by itself
max_components = 10  # of a mixture: the more, the fewer rows stand behind each
share_result = false  # whether the final model may go to the job's collector
# neighbours = ["hospital-2", "hospital-3"]  # nobody else may receive a model or parts of sums
# approved_jobs = ["4ab7915f..."]  # only these jobs; without the entry any that is signed

[release_gate]
min_count = {gate.min_count}  # a component leaves only with so many rows (or people) behind it,
per_feature = {gate.per_feature}  # or with so many times the number of columns, if that is more
min_own = {gate.min_own}  # so many behind a component, before we add to it in a sum over sites
rounding = {gate.rounding}  # no number leaves finer than this share of its standard error

[releases]
max_jobs = {releases.max_jobs}  # jobs that may have something of this data set, ever
max_models = {releases.max_models}  # models that may leave in all of them together
max_sums = {releases.max_sums}  # masked sums of one job over the same members

# [privacy]  # with this section only jobs with differential privacy are run
# epsilon = 3.0  # spent on the rows in all jobs together, at most
# delta = 1e-5
"""


def _toml(value: str) -> str:
    """A text as TOML writes it."""
    return tomli_w.dumps({"_": value}).partition("= ")[2].strip()


def _own_key(folder: Path) -> SiteKey:
    path = folder / "site.key"
    if not path.exists():
        SiteKey.generate().save(path)
    return SiteKey.load(path)


def _server(host: str, port: int) -> dict:
    return {"host": host, "fed_learn_port": port, "admin_port": port}


def _fingerprint_in(printed: str) -> str:
    found = re.search(r"SHA256:[0-9A-F:]{95}", printed)
    if found is None:
        raise ValueError(f"nvflare printed no fingerprint: {printed[-300:]}")
    return found.group()
