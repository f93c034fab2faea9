"""The site is made of the documents without a warning, and its pages ask no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r'<(?:script|img|iframe|link\b[^>]*rel="(?:stylesheet|preload|icon)")[^>]*(?:src|href)="(https?:)?//'
)


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
