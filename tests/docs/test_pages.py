"""The pages: links lead somewhere, commands exist, programs run, and no page is a book."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md")) + sorted(DOCS.glob("couplings/*.md"))
REFERENCE = {"api.md", "cli.md", "files.md"}
MOST_WORDS = 1500
"""Of a page that is read, not looked up: beside tables and code."""
pytestmark = pytest.mark.skipif(not PAGES, reason="a source distribution has no docs")
named = pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)


def prose(page: Path) -> str:
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text("utf-8"), flags=re.M | re.S)
    return re.sub(r"^\s*\|.*$", "", text, flags=re.M)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


@named
def test_a_page_can_be_read_in_ten_minutes(page):
    words = len(prose(page).split())
    assert page.name in REFERENCE or words <= MOST_WORDS, f"{words} words"


@named
def test_links_lead_to_files_that_exist(page):
    links = re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text("utf-8").replace("\n", " "))
    made = ("auto_examples/", "http://", "https://")
    gone = [
        link
        for link in links
        if link and not link.startswith(made) and not (page.parent / link).exists()
    ]
    assert not gone


@cache
def options(command: str) -> set[str]:
    """Of a command, as its help has them."""
    from fedmixtures.cli.main import build_app

    page = build_app().generate_docs(output_format="markdown", recursive=True)
    found = re.search(rf"^#+ fedmixtures {command}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    assert found, f"there is no command fedmixtures {command}"
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", found[1])) | {"--help", "--version"}


@named
def test_commands_and_their_options_exist(page):
    lines = "\n".join(blocks(page, "console") + blocks(page, "")).replace("\\\n", " ")
    for line in re.findall(r"^fedmixtures .*", lines, re.M):
        words = shlex.split(line, comments=True)[1:]
        depth = 2 if words[0] == "federate" else 1
        asked = {word for word in words[depth:] if re.match(r"--?[a-z]", word)}
        assert asked <= options(" ".join(words[:depth])), line


@named
def test_what_is_installed_is_a_clone_until_there_is_a_release(page):
    text = page.read_text("utf-8")
    for line in re.findall(r".*pip install (?:--upgrade )?\"?fedmixtures.*", text):
        assert "0.2.0" in text, f"{line!r}: nothing is on PyPI yet"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_programs_run(page, tmp_path, monkeypatch):
    """In the order of the page, in one namespace: nothing has to be guessed."""
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in blocks(page, "python"):
        exec(program, names)
    assert names
