"""What is said of the package in other files agrees with pyproject.toml."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import fedmixtures

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "packaging" / "conda" / "recipe.yaml"
CONTAINER = ROOT / "packaging" / "site" / "Containerfile"
pytestmark = pytest.mark.skipif(
    not RECIPE.exists(), reason="a source distribution has no packaging"
)
WORKFLOWS = ROOT / ".github" / "workflows"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "CMD"}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def bounds(requirements: list[str]) -> dict[str, str]:
    """Package to bound, without spaces."""
    found = (re.fullmatch(r"([\w-]+)\s*(.*)", line.split("#")[0].strip()) for line in requirements)
    return {line[1]: line[2].replace(" ", "") for line in found if line}


def test_the_conda_recipe_asks_for_what_pip_asks_for():
    text = RECIPE.read_text("utf-8")
    section = text.partition("  run:\n")[2].partition("\ntests:")[0]
    there = bounds(re.findall(r"^\s+- (.*)$", section, re.M))
    wanted = project()
    extras = wanted["optional-dependencies"]
    here = bounds(wanted["dependencies"] + extras["cli"] + extras["report"])
    assert there.pop("python") == wanted["requires-python"]
    assert there == here
    version = re.match(r"[0-9.]+[0-9]", fedmixtures.__version__)[0]
    assert f'version: "{version}"' in text
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_table_of_rooms_has_them_all_and_the_map_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    package = ROOT / "src" / "fedmixtures"
    rooms = {path.stem for path in package.iterdir() if path.suffix in ("", ".py")}
    rows = text.partition("|---|---|\n")[2].partition("\n\n")[0].splitlines()
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == rooms - {"__init__", "__pycache__"}
    paths = set(re.findall(r"`((?:\w+/)+\w+\.py)", text))
    assert len(paths) > 40
    assert not [path for path in paths if not any((r / path).exists() for r in (ROOT, package))]


def test_every_dependency_has_a_reason():
    text = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    wanted = project()
    rows = "".join(re.findall(r"^\|.*\|$", text, re.M))
    for name in bounds(wanted["dependencies"]):
        assert re.search(rf"\b{name}\b", rows), name
    for extra in wanted["optional-dependencies"]:
        assert f"`{extra}`" in rows, extra


def test_the_container_file_copies_and_installs_what_there_is():
    lines = re.sub(r"\\\n", " ", CONTAINER.read_text("utf-8")).splitlines()
    said = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    assert {name for name, _ in said} <= INSTRUCTIONS
    assert said[0][0] == "FROM"
    assert [name for name, _ in said].index("USER") < len(said) - 1  # not as root
    for name, words in said:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in words.split()[:-1])
        if name == "RUN":
            assert shlex.split(words)
    (extras,) = re.findall(r'"/src\[([\w,]+)\]"', CONTAINER.read_text("utf-8"))
    assert set(extras.split(",")) <= set(project()["optional-dependencies"])


def jobs(name: str) -> dict:
    return yaml.safe_load((WORKFLOWS / name).read_text("utf-8"))["jobs"]


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_workflows_run_what_the_makefile_has_on_every_python_we_name():
    said = (re.fullmatch(r"Programming .* (3\.\d+)", line) for line in project()["classifiers"])
    pythons = {line[1] for line in said if line}
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    checks, release = jobs("tests.yml"), jobs("release.yml")
    assert set(checks) == {"lint", "tests", "slow", "newest", "docs", "wheel"}
    used = set()
    for job in checks.values():
        for command in commands(job):
            used.add(re.match(r"make (\w+)", command)[1])
    assert used == {"lint", "test", "slow", "newest", "docs", "wheel"} <= targets
    versions = lambda job: set(checks[job]["strategy"]["matrix"]["python"])
    assert versions("wheel") == pythons
    assert versions("newest") == pythons - {"3.11"}  # which has the versions of constraints.txt
    assert release["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert (release["build"]["needs"], release["publish"]["needs"]) == ("tests", "build")


def test_a_release_has_the_tag_of_its_version():
    (check,) = [line for line in commands(jobs("release.yml")["build"]) if "GITHUB" in line]
    run = lambda tag: (
        subprocess.run(
            ["bash", "-c", check],
            cwd=ROOT,
            env={"GITHUB_REF_NAME": tag, "PATH": os.environ["PATH"]},
        ).returncode
    )
    assert run(f"v{fedmixtures.__version__}") == 0
    assert run("v9.9.9") == 1
