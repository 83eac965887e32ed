"""The runbooks as they stand, without certificates and processes: quick."""

from __future__ import annotations

import configparser
from pathlib import Path

import numpy as np
import pytest

from federated import engine_solution
from fedmixtures import load
from fedmixtures.federation.in_process import InProcessRounds
from fedmixtures.federation.job import SignedJob, read_job
from fedmixtures.federation.node.kept import folder_of
from fedmixtures.federation.node.node import Node
from fedmixtures.federation.wire.roster import Roster, pin
from fedmixtures.federation.wire.sealing import SiteKey
from runbook import HOSPITALS, RESEARCHER, ROWS, UNITS, as_at, blocks, job, unit

pytest.importorskip("nvflare")
pytest.importorskip("cyclopts")
pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names")


def test_the_page_has_every_step_and_the_command_line_takes_every_command():
    from fedmixtures.cli.main import build_app

    places = [place for place, _ in blocks()]
    assert {*places} == {"hub", "hospital-1", "researcher"}
    said = [words for _, commands in blocks() for words in commands]
    commands = [words for words in said if words[0] == "fedmixtures"]
    assert len(commands) >= 18
    for words in commands:
        _, _, unused, *_ = build_app(words[1]).parse_known_args(words[1:])[:4]
        assert not unused, words
    told = {words[2] for words in commands if words[1] == "federate"}
    assert told == {"init-hub", "join", "approve", "trust", "submit", "status", "collect", "models"}


def test_commands_of_other_hospitals():
    words = ["federate", "trust", "hospital-2", "KEY", "--roster", "hospital-1/roster.toml"]
    there = ["federate", "trust", "hospital-1", "KEY", "--roster", "hospital-3/roster.toml"]
    assert as_at("hospital-3", words) == there


def test_sites_set_up_so_run_the_default_job_as_the_engine_does(tmp_path):
    """Site files as `federate join` writes them, rosters as `trust` does, the page's job."""
    from fedmixtures.federation.nvflare.enrol import site_file

    keys = {name: SiteKey.generate() for name in (*HOSPITALS, RESEARCHER)}
    nodes = {}
    for name in HOSPITALS:
        own = tmp_path / name
        own.mkdir()
        keys[name].save(own / "site.key")
        lines = [",".join(map(repr, row)) for row in ROWS[name].tolist()]
        (own / "patients.csv").write_text("\n".join(["age,bmi", *lines]) + "\n")
        Roster({name: keys[name].public}).save(own / "roster.toml")
        for other in {*HOSPITALS} - {name}:
            pin(own / "roster.toml", other, keys[other].public, "site")
        pin(own / "roster.toml", RESEARCHER, keys[RESEARCHER].identity, "researcher")
        text = site_file(own, name, own / "patients.csv", ("age", "bmi"))
        (own / "fedmixtures.toml").write_text(text)
        nodes[name] = Node.load(own / "fedmixtures.toml")
    (tmp_path / "job.toml").write_text(job())
    wanted = read_job(tmp_path / "job.toml")
    InProcessRounds(nodes, SignedJob.by(RESEARCHER, keys[RESEARCHER], wanted)).run()
    scaled = {name: UNITS.scaled(rows) for name, rows in ROWS.items()}
    alone = engine_solution(wanted, scaled, block_size=None)
    for place, name in enumerate(sorted(HOSPITALS)):
        model = load(folder_of(nodes[name].config, wanted))
        given = model.score_samples(ROWS[name], nodes=[name] * 60)
        density = alone.levels.density.at(place).log_density(scaled[name])
        # Gate and rounding have a price, but no large one.
        assert abs(given.mean() - (density.mean() - np.log(UNITS.factor).sum())) < 0.05
        assert model.levels_.weights[0, 0] < 0.5  # it relies on the others


def test_the_service_starts_what_the_kit_has():
    parsed = configparser.ConfigParser()
    parsed.optionxform = str
    parsed.read_string(unit())
    assert parsed["Service"]["ExecStart"] == "/bin/bash hospital-1/kit/startup/sub_start.sh"
    assert parsed["Service"]["KillMode"] == "control-group"


def test_a_wrong_file_gets_a_sentence(tmp_path, monkeypatch):
    from fedmixtures.federation.nvflare import enrol

    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text("Dear colleague")
    for read in (enrol.read_request, enrol.read_answer):
        with pytest.raises(ValueError, match="'letter.txt' is no .* of `federate"):
            read(Path("letter.txt"))
        with pytest.raises(ValueError, match="there is no file 'nothing.zip'"):
            read(Path("nothing.zip"))
