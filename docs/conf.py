"""Sphinx settings: executed examples, numpydoc, Markdown pages."""

from pathlib import Path

import fedmixtures
from fedmixtures.cli.main import build_app

project = "fedmixtures"
author = copyright = "the fedmixtures contributors"
release = version = fedmixtures.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "generated"]
html_theme = "furo"
html_title = "fedmixtures"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
autodoc_typehints = "none"
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "download_all_examples": False,
    "remove_config_comments": True,
    "min_reported_time": 5,
}

# The page on the command line, from the commands themselves.
cli = Path(__file__).parent / "generated" / "cli.md"
cli.parent.mkdir(exist_ok=True)
page = build_app().generate_docs(output_format="markdown", recursive=True)
cli.write_text(page.partition("## Table of Contents")[2].partition("**Commands**:")[2], "utf-8")
