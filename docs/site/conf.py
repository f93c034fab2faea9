"""The site: the Markdown of this repository as it lies there, by Sphinx, MyST and MyST-NB. `make site` builds it.

The repository itself is the source, so that a link between pages leads to the same place on the site and where people
read the files. Links to source files become downloads. The pages ask no other host for anything.
"""

from pathlib import Path

from sphinx.application import Sphinx

from essp_common.distribution import version as version_of_essp

project = author = html_title = "ESSP"
release = version_of_essp()

extensions = ["myst_nb"]
root_doc = "docs/site/index"
include_patterns = ["docs/**", "*.md", "benchmarks/README.md", "charts/**", "docker/*", "essp/**", "services/**"]
exclude_patterns = [".*", "tests"]  # or all files of the virtual environment would be looked at, too
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # they hold their outputs: `python -m tools.notebooks`
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_extra_path = ["index.html"]  # the root, where people look first, leads to `root_doc`
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}


def setup(app: Sphinx) -> None:
    """Decisions and design notes are listed on their pages, and not in the sidebar."""
    app.connect("source-read", _leave_out)


def _leave_out(app: Sphinx, name: str, source: list[str]) -> None:
    if name.startswith(("docs/decisions/", "docs/design/")) and not name.endswith("/README"):
        source[0] = f"---\norphan: true\n---\n{source[0]}"
