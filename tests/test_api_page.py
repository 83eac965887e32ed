"""The API page names everything that is public, the map of CONTRIBUTING.md only what there is."""

import re
from pathlib import Path

import pytest

import fedmixtures
from fedmixtures import data, graph

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"


@pytest.mark.skipif(not PAGE.exists(), reason="a source distribution has no docs")
@pytest.mark.parametrize("module", [fedmixtures, graph, data], ids=lambda m: m.__name__)
def test_every_public_name_is_on_the_page(module):
    named = {
        line.rpartition(" ")[2].rpartition(".")[2]
        for line in PAGE.read_text("utf-8").splitlines()
        if "::" in line
    }
    assert set(module.__all__) - {"__version__"} <= named


@pytest.mark.skipif(not PAGE.exists(), reason="a source distribution has no docs")
def test_the_map_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"`([\w./]+(?:\.py|\.md|\.toml|/\w+))`", text))
    places = (ROOT, ROOT / "src" / "fedmixtures")
    gone = {name for name in named if not any((place / name).exists() for place in places)}
    assert len(named) > 30
    assert not gone
