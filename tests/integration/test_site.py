"""The site is made of the documents without a warning, its pages ask no other host for anything, and its search finds
what newcomers ask for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tools.page_pictures import browser, chromium

pytestmark = [pytest.mark.processes, pytest.mark.lane("long")]

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r'<(?:script|img|iframe|link\b[^>]*rel="(?:stylesheet|preload|icon)")[^>]*(?:src|href)="(https?:)?//'
)

ASKED = {
    "FAQ": "howto/faq",
    "troubleshooting": "howto/troubleshooting",
    "wandb": "tracking",
    "migrate": "howto/migrate",
    "inference": "howto/deploy",
    "corrupt video": "howto/troubleshooting",
    "GPU": "howto/multi-gpu",
    "resume": "howto/cookbook",
    "multi-GPU": "howto/multi-gpu",
    "deploy": "howto/deploy",
}
"""What newcomers look for, and the page that answers it."""
SUMMARY = "#search-results p.search-summary"
SEEN = 6
"""Results that people look at."""


def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command = [*sphinx, "-c", "docs/site", ".", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    pages = {str(page.relative_to(tmp_path)): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert {"index.html", "docs/site/index.html", "docs/cli.html", "docs/python.html", "docs/rest.html"} <= pages.keys()
    assert [name for name, text in pages.items() if LOADED.search(text)] == []
    assert "essp evaluate segments" in pages["docs/cli.html"]
    assert '<img alt="' in pages["docs/examples/notebook.html"], "what its cells show"
    program = chromium()
    assert program is not None
    with browser(program) as page:
        for words, answer in ASKED.items():
            page.call("Page.navigate", url=f"file://{tmp_path}/search.html?q={quote(words)}")
            page.wait(
                "/found|did not match/.test(document.querySelector('#search-results p.search-summary')?.textContent)"
            )
            shown = page.evaluate("[...document.querySelectorAll('#search-results li a')].map(a => a.href)")
            places = [link.partition("/docs/")[2].partition(".html")[0] for link in shown]
            assert answer in places[:SEEN], (words, places[: 2 * SEEN])
            assert not any(place.startswith(("decisions/", "design/")) for place in places[:SEEN]), (words, places)
