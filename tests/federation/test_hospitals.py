"""The page "Three hospitals", command by command, and a job with code at sites that joined so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from deployed import a_fit
from federated import engine_solution, record, same_bits, site_rows
from fedmixtures import Mixture
from fedmixtures.estimators.scale import Scale

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.silos,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
HOSPITALS = ("hospital-1", "hospital-2", "hospital-3")
RESEARCHER = "researcher@uni.example"
ROWS = dict(zip(HOSPITALS, site_rows().values(), strict=False))
JOB = """
name = "bmi-groups"
features = ["age", "bmi"]
sites = ["hospital-1", "hospital-2", "hospital-3"]
edges = [["hospital-1", "hospital-2"], ["hospital-2", "hospital-3", 0.5]]
components = 3
rounds = 15
seed = 0
shift = [1.0, 2.0]
scale = [2.0, 0.5]
method = "gtv-mmd"
settings = { alpha = 1.0 }
feasible = { min_weight = 0.01, max_mean_norm = 20.0, min_variance = 0.001, max_variance = 20.0 }
collector = "researcher@uni.example"
"""


def federate(*arguments, cwd: Path) -> str:
    """Run the command as a user does; what it printed."""
    command = [str(Path(sys.executable).parent / "fedmixtures"), "federate", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Hospitals:
    """Four institutions in four folders; only what the page says is carried between them."""

    def __init__(self, folder: Path):
        from fedmixtures.federation.nvflare.one_machine import Party, free_port

        self.folder, port = folder, free_port()
        told = federate("init-hub", "hub", "--host", "localhost", "--port", port, cwd=folder)
        mark = re.search(r"SHA256:[0-9A-F:]+", told).group()
        keys, self.kits = {}, {"hub": folder / "hub/kits/fedmixtures/prod_00/localhost"}
        for name in (*HOSPITALS, RESEARCHER):
            own = folder / f"at-{name}"
            own.mkdir()
            role = ["--researcher"] if name == RESEARCHER else []
            told = federate("join", name, *role, "--hub", f"localhost:{port}", cwd=own)
            keys[name] = re.search(r"\b[0-9a-f]{64,128}\b", told).group()
            request = own / name / name / f"{name}.request.zip"
            shown = federate("approve", request, "--hub", "hub", cwd=folder)
            kind = "researcher" if role else "site"
            assert f"a certificate of {name!r} as a {kind}" in " ".join(shown.split())
            assert not list(request.parent.glob("*.signed.zip"))
            asked = ["--name", name, "--role", kind]
            federate("approve", request, "--hub", "hub", *asked, cwd=folder)
            signed = str(request).replace(".request.", ".signed.")
            answer = ["--signed", signed, "--fingerprint", mark, *role]
            if name != RESEARCHER:
                lines = [",".join(map(repr, row)) for row in ROWS[name].tolist()]
                (own / "rows.csv").write_text("\n".join(["age,bmi", *lines]) + "\n")
                answer += ["--data", "rows.csv", "--columns", "age,bmi"]
            federate("join", name, *answer, cwd=own)
            self.kits[name] = own / name / "kits/fedmixtures/prod_00" / name
        for name in (*HOSPITALS, RESEARCHER):
            for other in {*HOSPITALS, RESEARCHER} - {name}:
                roster = ["--roster", f"{name}/roster.toml"]
                roster += ["--researcher"] if other == RESEARCHER else []
                federate("trust", other, keys[other], *roster, cwd=folder / f"at-{name}")
        for name in HOSPITALS:  # unrounded, to be compared with the engine's models
            path = self.kits[name] / "local" / "fedmixtures.toml"
            text = path.read_text()
            if name != HOSPITALS[2]:  # which does not give its model away
                text = text.replace("share_result = false", "share_result = true")
            text = text.replace('methods = ["trust"]', 'methods = ["gtv-mmd"]')
            path.write_text(text.replace("rounding = 0.2", "rounding = 0.0"))
        self.parties = [Party(self.kits[name]) for name in ("hub", *HOSPITALS)]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, home):
    made = Hospitals(tmp_path_factory.mktemp("hospitals"))
    try:
        for party in made.parties:
            party.start()
        yield made
    finally:
        for party in made.parties:
            party.stop()


def test_three_hospitals(hospitals):
    from fedmixtures.federation.job import read_job

    own = hospitals.folder / f"at-{RESEARCHER}"
    (own / "job.toml").write_text(JOB)
    who = ["--kit", hospitals.kits[RESEARCHER], "--user", RESEARCHER]
    began = time.time()
    key = ["--key", f"{RESEARCHER}/site.key"]
    federate("submit", "job.toml", *who, *key, "--out", "result", cwd=own)
    took = time.time() - began
    told = federate("status", *who, cwd=own)
    assert all(name in told.splitlines()[0] for name in HOSPITALS)
    keys = ["--key", f"{RESEARCHER}/site.key", "--roster", f"{RESEARCHER}/roster.toml"]
    told = federate("collect", "result", *keys, cwd=own)
    assert "hospital-3: released nothing" in told
    found = json.loads((own / "result" / "models.json").read_text())
    assert set(found) == set(HOSPITALS[:2])
    job = read_job(own / "job.toml")
    units = Scale(np.array(job.shift), np.array(job.scale))
    scaled = {name: units.scaled(rows) for name, rows in ROWS.items()}
    alone = engine_solution(job, scaled, block_size=1)
    for name, parts in found.items():
        model = Mixture(**{k: np.array(v) for k, v in parts.items()})
        assert same_bits(model, units.original(alone.mixture(name)))
    record("hospitals", seed=job.seed, commands="init-hub, join, approve, trust, submit, status, "
           "collect", models_bitwise_those_of_the_engine=True, seconds_of_submit=took)  # fmt: skip


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
    from fedmixtures.federation.nvflare.driver import Driver

    if hub != "as we set it up":
        hospitals.parties[0].stop()
        path = hospitals.kits["hub"] / "local" / "authorization.json"
        rights = json.loads(path.read_text())
        for role in ("lead", "project_admin"):
            rights["permissions"][role]["byoc"] = "any"
        path.write_text(json.dumps(rights))
        hospitals.parties[0].start()
    folder, marker = job_with_code(tmp_path)
    driver = Driver(hospitals.kits[RESEARCHER], RESEARCHER)
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
