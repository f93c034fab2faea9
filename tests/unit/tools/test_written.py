"""What tools write of code: only with `--write`, and without it whatever differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import written


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(written, "ROOT", tmp_path)
    return tmp_path / "page.md"


def test_a_page_is_written_when_that_is_asked_for(page: Path) -> None:
    written.settle({page: "ä\n"}, arguments=["--write"])
    assert page.read_text(encoding="utf-8") == "ä\n"
    written.settle({page: "ä\n"}, arguments=[])


@pytest.mark.parametrize("before", [None, "old\n"])
def test_a_page_that_differs_is_named_and_left(page: Path, before: str | None) -> None:
    if before is not None:
        page.write_text(before, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"page\.md; run `make docs`"):
        written.settle({page: "new\n"}, arguments=[])
    assert (page.read_text(encoding="utf-8") if page.exists() else None) == before


def test_an_option_that_there_is_not_is_refused(page: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        written.settle({page: "new\n"}, arguments=["--wrote"])
    assert ended.value.code == 2


def test_what_stands_between_marks_is_replaced() -> None:
    assert written.between("a [old] b", "[", "new", "]") == "a [new] b"


@pytest.mark.parametrize("text", ["a b", "a [old b", "a old] b", "] a ["])
def test_a_text_without_its_marks_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="with ] after it"):
        written.between(text, "[", "new", "]")
