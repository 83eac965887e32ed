"""NVFlare's folders: certificates for one machine, safe settings, the job's JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmixtures.federation.job import SignedJob

EXECUTOR = "fedmixtures.federation.nvflare.executor.NodeExecutor"
CONTROLLER = "fedmixtures.federation.nvflare.controller.RoundsController"
SITE_FILE = "fedmixtures.toml"
ADMIN = "researcher@fedmixtures.org"
PROJECT, HUB, ORGANISATION = "fedmixtures", "hub", "fedmixtures"
LOG_SENDERS = ("site_log_streamer", "job_log_streamer", "error_log_sender")
ROLES = ("project_admin", "org_admin", "lead", "member")
PERMISSIONS = {
    "project_admin": {
        "submit_job": "any",
        "clone_job": "none",
        "manage_job": "any",
        "download_job": "any",
        "view": "any",
        "operate": "any",
    },
    "org_admin": {"manage_job": "o:submitter", "view": "any", "operate": "o:site"},
    "lead": {
        "submit_job": "any",
        "clone_job": "none",
        "manage_job": "n:submitter",
        "download_job": "n:submitter",
        "view": "any",
        "operate": "o:site",
    },
    "member": {"view": "any"},
}
"""What roles may do at a site or hub: nobody brings code, nobody runs a shell command."""


def nvflare(*arguments: str, cwd: Path | None = None) -> str:
    """Run NVFlare's own command line; an error comes with what it printed."""
    command = [sys.executable, "-m", "nvflare.cli", *arguments]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise ValueError(f"nvflare {arguments[0]} failed: {(done.stdout + done.stderr)[-800:]}")
    return done.stdout


def provision(folder: Path, sites: Sequence[str], port: int, host: str = "localhost") -> Path:
    """Kits for a hub, sites and one researcher, all made here: for one machine or one owner.

    Between institutions use `nvflare cert` instead, so that private keys stay where they are used.
    """
    people = [
        {"name": HUB, "type": "server", "org": ORGANISATION, "fed_learn_port": port,
         "default_host": host},
        {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "lead"},
        *({"name": site, "type": "client", "org": ORGANISATION} for site in sites),
    ]  # fmt: skip
    template = ["master_template.yml", "aws_template.yml", "azure_template.yml"]
    builders = [
        ("workspace.WorkspaceBuilder", {"template_file": template}),
        ("static_file.StaticFileBuilder", {"config_folder": "config"}),
        ("cert.CertBuilder", {}),
        ("signature.SignatureBuilder", {}),
    ]
    project = {
        "api_version": 3,
        "name": PROJECT,
        "description": "fedmixtures",
        "participants": people,
        "builders": [
            {"path": f"nvflare.lighter.impl.{name}", "args": arguments}
            for name, arguments in builders
        ],
    }
    folder = folder.absolute()  # NVFlare's command runs in there
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "project.yml").write_text(json.dumps(project, indent=2))  # JSON is YAML
    nvflare("provision", "-p", str(folder / "project.yml"), "-w", str(folder), cwd=folder)
    for path in (folder / PROJECT).iterdir():  # among them the authority's private key
        path.chmod(0o700)
    return folder / PROJECT / "prod_00"


def secure(kit: Path, component: str) -> None:
    """Allow one class of ours and nothing else; no code with jobs, no shell commands."""
    local = kit / "local"
    permissions = {
        role: {**PERMISSIONS[role], "byoc": "none", "shell_commands": "none"} for role in ROLES
    }
    _write(local / "authorization.json", {"format_version": "1.0", "permissions": permissions})
    resources = _resources(local)
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [component]
    resources["allow_log_streaming"] = False  # an error may quote a row
    resources["components"] = [c for c in resources["components"] if c["id"] not in LOG_SENDERS]
    _write(local / "resources.json", resources)


def secure_hub(kit: Path) -> None:
    """The hub's settings: its storage inside its own folder."""
    kit = kit.absolute()
    secure(kit, CONTROLLER)
    local = kit / "local"
    resources = _resources(local)
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")
    _write(local / "resources.json", resources)


def check_site(kit: Path) -> list[str]:
    """What is wrong with a site's kit; empty if a job of ours will run and nothing else."""
    wrong = []
    local = kit / "local"
    if not (local / SITE_FILE).is_file():
        wrong.append(f"local/{SITE_FILE} is missing")
    try:
        permissions = json.loads((local / "authorization.json").read_text())["permissions"]
        resources = json.loads((local / "resources.json").read_text())
    except (OSError, ValueError, KeyError):
        return [*wrong, "local/authorization.json or local/resources.json is missing or damaged"]
    for role, allowed in permissions.items():
        if not isinstance(allowed, dict) or allowed.get("byoc") != "none":
            wrong.append(f"the role {role} may bring code (byoc)")
    if resources.get("class_allow_list") != [EXECUTOR]:
        wrong.append("class_allow_list is not our executor alone")
    if resources.get("class_list_enforcement_mode") != "enforce":
        wrong.append("class_list_enforcement_mode is not 'enforce'")
    if resources.get("allow_log_streaming") is not False:
        wrong.append("allow_log_streaming is not false: the hub would receive the site's logs")
    return wrong


def write_job(folder: Path, signed: SignedJob, n_sites: int, **controller: Any) -> Path:
    """The three files of an NVFlare job: no code, no `custom` folder."""
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    meta = {
        "name": signed.job.name,
        "resource_spec": {},
        "min_clients": n_sites,
        "deploy_map": {"app": ["@ALL"]},
    }
    arguments = {"signed": signed.to_plain(), **controller}
    server = {
        "format_version": 2,
        "workflows": [{"id": "rounds", "path": CONTROLLER, "args": arguments}],
        "components": [],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["hello", "run"], "executor": {"path": EXECUTOR, "args": {}}}],
        "components": [],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    _write(folder / "meta.json", meta)
    _write(config / "config_fed_server.json", server)
    _write(config / "config_fed_client.json", client)
    return folder


def _resources(local: Path) -> dict[str, Any]:
    own, default = local / "resources.json", local / "resources.json.default"
    return json.loads((own if own.is_file() else default).read_text())


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
