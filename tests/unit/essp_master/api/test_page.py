"""The page's files: all are served, they find each other, and they can neither run what people wrote nor call out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from essp_master.api.guard import OPEN_PATHS

FOLDER = Path(__file__).resolve().parents[4] / "services" / "essp_master" / "page"
SCRIPTS = sorted(FOLDER.glob("*.js"))
READS_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|srcdoc"
)
"""What would read text as markup or as a program."""


def test_every_file_of_the_page_can_be_loaded_without_a_token() -> None:
    files = {f"/page/{path.name}" for path in FOLDER.iterdir() if path.is_file() and path.suffix != ".py"}
    assert {path for path in OPEN_PATHS if path.startswith("/page/")} == files


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_module_imports_only_what_is_there_and_reads_no_text_as_markup(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    names = set(re.findall(r'^import \{([^}]*)\} from "\./([a-z]+\.js)";$', text, re.MULTILINE))
    assert len(names) == len(re.findall(r"\bimport\b[^.]*?from|import\(", text))
    for wanted, module in names:
        other = (FOLDER / module).read_text(encoding="utf-8")
        given = set(re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", other, re.MULTILINE))
        assert {name.split(" as ")[0].strip() for name in wanted.split(",")} <= given, (script.name, module)
    assert READS_MARKUP.search(text) is None
    assert "https://" not in text.replace("https?:", "")
    assert re.findall(r"http://[^\s\"']*", text) in ([], ["http://www.w3.org/2000/svg"])


def test_the_page_itself_has_no_script_and_no_style_in_it() -> None:
    """The policy of the page would refuse them."""
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<style|\sstyle=|\son[a-z]+=", text) is None
    assert re.findall(r"<script[^>]*>([^<]*)</script>", text) == [""]
