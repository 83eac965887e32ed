"""The API page names everything that is public."""

from pathlib import Path

import pytest

import fedmixtures
from fedmixtures import data, graph

PAGE = Path(__file__).parents[1] / "docs" / "api.md"


@pytest.mark.skipif(not PAGE.exists(), reason="a source distribution has no docs")
@pytest.mark.parametrize("module", [fedmixtures, graph, data], ids=lambda m: m.__name__)
def test_every_public_name_is_on_the_page(module):
    named = {
        line.rpartition(" ")[2].rpartition(".")[2]
        for line in PAGE.read_text("utf-8").splitlines()
        if "::" in line
    }
    assert set(module.__all__) - {"__version__"} <= named
