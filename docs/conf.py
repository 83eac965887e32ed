"""Sphinx settings: executed examples, numpydoc, Markdown pages."""

import fedmixtures

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
exclude_patterns = ["_build"]
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
