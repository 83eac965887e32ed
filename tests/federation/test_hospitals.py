"""The runbooks to the letter, and a job with code at sites that joined so."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from deployed import a_fit
from federated import record
from fedmixtures import load
from fedmixtures.federation.in_process import InProcessRounds
from fedmixtures.federation.job import SignedJob, read_job
from fedmixtures.federation.node.kept import folder_of
from fedmixtures.federation.node.node import Node
from fedmixtures.federation.node.site import SiteConfig
from fedmixtures.federation.wire.roster import Roster
from fedmixtures.federation.wire.sealing import SiteKey
from runbook import HOSPITALS, RESEARCHER, ROWS, as_at, blocks, job

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
REQUEST, ANSWER = ".request.zip", ".signed.zip"


def called(words, cwd: Path) -> str:
    """Run the command as a user does; what it printed."""
    command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    environment = os.environ | {"COLUMNS": "400"}
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Hospitals:
    """Five parties in five folders, by the page; only what it says is carried between them."""

    def __init__(self, folder: Path):
        from fedmixtures.federation.one_machine import Party, free_port

        self.folder, self.hub = folder, f"localhost:{free_port()}"
        self.at = {name: folder / f"at-{name}" for name in ("hub", *HOSPITALS, RESEARCHER)}
        self.keys: dict[str, str] = {}
        self.mark, self.parties, self.told = "", [], {}
        self.party = Party
        for name, own in self.at.items():
            own.mkdir()
            if name in HOSPITALS:
                lines = [",".join(map(repr, row)) for row in ROWS[name].tolist()]
                (own / "patients.csv").write_text("\n".join(["age,bmi", *lines]) + "\n")
                for new in ("new-patients.csv", "ward-7.csv"):
                    (own / new).write_text("\n".join(["age,bmi", *lines[:30]]) + "\n")
        (self.at[RESEARCHER] / "job.toml").write_text(job())

    def here(self, name: str, words: list[str]) -> list[str]:
        """What stands for something on the page, as it is here."""
        host, port = self.hub.split(":")
        known = {
            "hub.example.org": host, "8002": port, "hub.example.org:8002": self.hub,
            "SHA256:...": self.mark, "/data/patients.csv": "patients.csv",
            "MODEL": getattr(self, "model", {}).get(name, ""),
        }  # fmt: skip
        if "trust" in words[:3]:
            known["KEY"] = self.keys.get(words[3], "")
        return [known.get(word, word) for word in words]

    def do(self, name: str, words: list[str]) -> None:
        """One command of the page."""
        own = self.at[name]
        if words[0].endswith("start.sh"):
            assert (own / words[0]).is_file()
            party = self.party(own / Path(words[0]).parents[1])
            self.parties.append(party)
            party.start()
            return
        told = called(self.here(name, words), own)
        self.told[name, " ".join(words[1:3])] = told
        if words[1:3] == ["federate", "init-hub"]:
            self.mark = re.search(r"SHA256:[0-9A-F:]+", told).group()
        if words[1:3] == ["federate", "join"] and "--hub" in words:
            self.keys[name] = re.search(r"\b[0-9a-f]{64,128}\b", told).group()
            request = own / f"{name}{REQUEST}"
            shutil.copy(request, self.at["hub"])
        if words[1:3] == ["federate", "models"]:
            self.model = {**getattr(self, "model", {}), name: told.splitlines()[0]}

    def approve(self, commands: list[list[str]], name: str) -> None:
        """The hub's block for one request, and the answer sent back."""
        role = "researcher" if name == RESEARCHER else "site"
        for words in commands:
            asked = [role if word == "site" else word.replace(HOSPITALS[0], name) for word in words]
            self.do("hub", asked)
        shown = self.told["hub", "federate approve"]
        assert f"a certificate of {name!r} as a {role}" in shown
        shutil.copy(self.at["hub"] / f"{name}{ANSWER}", self.at[name])


def follow(made: Hospitals) -> None:
    """The page from its first command to its last."""
    (asking,) = [of for at, of in blocks() if at == "researcher" and "--hub" in of[0]]
    (approving,) = [of for at, of in blocks() if of[0][2] == "approve"]
    for place, commands in blocks():
        if commands == approving:
            for words in asking:  # its key is known before the hospitals pin it
                made.do(RESEARCHER, words)
            for name in (*HOSPITALS, RESEARCHER):
                made.approve(commands, name)
        elif place == HOSPITALS[0]:
            for name in HOSPITALS:
                for words in commands:
                    made.do(name, as_at(name, words))
        elif commands != asking:
            for words in commands:
                made.do(RESEARCHER if place == "researcher" else place, words)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, home):
    made = Hospitals(tmp_path_factory.mktemp("hospitals"))
    try:
        follow(made)
        yield made
    finally:
        for party in made.parties:
            party.stop()


def test_the_page_to_the_letter(hospitals, tmp_path):
    """Four institutions and a researcher, the default method; nobody edits a file."""
    told = hospitals.told
    collected = told[RESEARCHER, "federate collect"]
    assert all(f"{name}: released nothing" in collected for name in HOSPITALS)  # by their files
    assert all(name in told[RESEARCHER, "federate status"] for name in HOSPITALS)
    again = in_process(hospitals, tmp_path)
    for name in HOSPITALS:
        assert f"{name} took part in the job 'bmi-groups'" in told[name, "explain MODEL"]
        pair = [load(folder).levels_.theta.parts for folder in (hospitals.model[name], again[name])]
        largest = max(np.abs(one - other).max() for one, other in zip(*pair, strict=True))
        assert largest < 1e-6
        own = hospitals.at[name]
        assert (own / Path(hospitals.model[name]) / "report.html").is_file()
        assert (own / "groups.csv").is_file()
        assert list(load(own / "with-ward-7").nodes_) == [name, "ward-7"]
    record("hospitals", seed=0, commands="all of the runbooks", files_edited=0,
           largest_difference_from_the_same_sites_in_process=largest)  # fmt: skip


def in_process(hospitals: Hospitals, folder: Path) -> dict[str, Path]:
    """The same sites by their own files in this process, with other accounts."""
    wanted = read_job(hospitals.at[RESEARCHER] / "job.toml")
    nodes = {}
    for name in HOSPITALS:
        at = hospitals.at[name] / name
        config = SiteConfig.load(at / "kit" / "local" / "fedmixtures.toml")
        own = dataclasses.replace(config, state=folder / name, key=folder / f"{name}.key")
        key, roster = SiteKey.load(config.key), Roster.load(config.roster)
        nodes[name] = Node(own, key, roster, config.read_rows())
    key = SiteKey.load(hospitals.at[RESEARCHER] / RESEARCHER / "site.key")
    InProcessRounds(nodes, SignedJob.by(RESEARCHER, key, wanted)).run()
    return {name: folder_of(node.config, wanted) for name, node in nodes.items()}


def job_with_code(folder: Path) -> tuple[Path, Path]:
    """An NVFlare job that brings a class of its own, and the file that its code would write."""
    from fedmixtures.federation.job import SignedJob
    from fedmixtures.federation.nvflare.kits import write_job
    from fedmixtures.federation.wire.sealing import SiteKey

    first, second, third = HOSPITALS
    edges = ((first, second, 1.0), (second, third, 1.0))
    job = a_fit("mmd", 2, n_components=dict.fromkeys(HOSPITALS, 3), edges=edges)
    signed = SignedJob.by(RESEARCHER, SiteKey.generate(), job)
    made, marker = write_job(folder / "evil", signed, 3), folder / "ran"
    (made / "app" / "custom").mkdir()
    (made / "app" / "custom" / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    path = made / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["components"] = [{"id": "evil", "path": "evil.Evil", "args": {}}]
    path.write_text(json.dumps(config))
    return made, marker


@pytest.mark.parametrize("hub", ["as we set it up", "lets all code through"])
def test_a_job_with_code_is_refused(hospitals, tmp_path, hub):
    from fedmixtures.federation.nvflare.driver import NVFlareDriver

    if hub != "as we set it up":
        hospitals.parties[0].stop()
        path = hospitals.at["hub"] / "hub" / "kit" / "local" / "authorization.json"
        rights = json.loads(path.read_text())
        for role in ("lead", "project_admin"):
            rights["permissions"][role]["byoc"] = "any"
        path.write_text(json.dumps(rights))
        hospitals.parties[0].start()
    folder, marker = job_with_code(tmp_path)
    driver = NVFlareDriver(hospitals.at[RESEARCHER] / RESEARCHER / "kit", RESEARCHER)
    try:
        driver.wait_for(HOSPITALS, 180)
        status = _submitted(driver.session(), folder)
    finally:
        driver.close()
    assert not marker.exists()
    assert "FINISHED" in status
    assert "COMPLETED" not in status
    who = "server" if hub == "as we set it up" else "hospital-"
    assert re.search(rf"{who}.*: BYOC not permitted", status), status
    record(f"custom-code-refused-by-{'hub' if who == 'server' else 'sites'}", seed=3, hub=hub,
           what_became_of_the_job=status, code_ran=False)  # fmt: skip


def _submitted(session, folder) -> str:
    """What becomes of a job."""
    try:
        job_id = session.submit_job(str(folder))
    except Exception as error:
        return f"refused at submission: {error}"[:300]
    status, end = "", time.time() + 90
    while time.time() < end and "FINISHED" not in status:
        meta = session.get_job_meta(job_id)
        status = str(meta.get("status"))
        time.sleep(1)
    return f"{status} {meta.get('job_deploy_detail')}"[:600]
