"""Sphinx configuration. Nothing here, or in what it builds, needs a network."""

import sys
from pathlib import Path

from pybtex.plugin import register_plugin
from pybtex.style.formatting.unsrt import Style as UnsrtStyle
from pybtex.style.labels import BaseLabelStyle

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import isthmus  # noqa: E402


class KeyLabels(BaseLabelStyle):
    """Label an entry by its key, the name that code and tables use."""

    def format_labels(self, sorted_entries):
        return [entry.key for entry in sorted_entries]


class KeyStyle(UnsrtStyle):
    default_label_style = KeyLabels


register_plugin("pybtex.style.formatting", "keys", KeyStyle)

project = "isthmus"
author = "The isthmus developers"
project_copyright = "2026, The isthmus developers"
version = release = isthmus.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
    "api",
    "ids",
    "mathml",
    "notebooks",
    "overviews",
    "papers",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
bibtex_bibfiles = ["papers.bib"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the type line of the docstring carries the shape
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# Napoleon makes a link of every attribute's name: `rank`, which several classes have, has several targets.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = "isthmus"
html_static_path = ["_static"]
html_extra_path = []  # notebooks are added
html_css_files = ["house.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}
