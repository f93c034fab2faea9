"""The finder of `tools/words.py`, which `make check` runs, finds what it should and reads all documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.architecture.test_documents import DOCUMENTS, ROOT
from tools.words import GENERATED, Offence, offences_in, scope

NOTEBOOK = json.dumps({"cells": [{"cell_type": t, "source": ["It goes\n", "on."]} for t in ("code", "markdown")]})


def test_each_document_is_read() -> None:
    generated = {ROOT / name for name in GENERATED}
    assert {*DOCUMENTS} - generated <= {*scope()}
    assert not generated & {*scope()}
    assert generated <= {*DOCUMENTS}


@pytest.mark.parametrize(
    ("file", "text", "line", "phrase"),
    [
        ("a.md", "# A\n\nThis is none.", 3, "is none"),
        ("a.md", "It\nis no video.", 2, "is no video"),
        ("a.md", "A job goes\non, here.", 1, "goes on"),
        ("a.md", "Whoever `x` it", 1, "Whoever"),
        ("a.md", "| a | in place of b |", 1, "in place of"),
        ("a.md", "`a\nb` anew", 2, "anew"),
        ("a.ipynb", NOTEBOOK, 2, "goes on"),
        ("a.html", "<p>\n<code>anew</code> told</p>", 2, "told"),
        ("a.js", 'const a = "so many clips";', 1, "so many"),
        ("a.js", "const a = 1,\n  b = `${beside} is told`;", 2, "told"),
        ("a.js", "let a;\nlet b; // what is told", 2, "told"),
        ("a.js", "/**\n * Nobody asks.\n */", 2, "Nobody"),
        ("a.py", '"""A module.\n\nIt tells of it.\n"""', 3, "tells of"),
        ("a.py", 'raise ValueError(f"{x} is none of them")', 1, "is none"),
        ("a.py", "# Two numbers, of which\n# it takes one.", 1, "of which"),
        ("a.py", "# It looks at\n# the bytes.", 1, "looks at"),
        ("a.py", "# It is told of a clip.", 1, "told"),
        ("a.py", "# None of it is used.", 1, "None of it"),
        ("a.py", "a = 1\n# It goes\n# on.", 2, "goes on"),
        ("a.yaml", "a: 1  # made\n# of b", 1, "made of"),
    ],
)
def test_a_phrase_is_found(file: str, text: str, line: int, phrase: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    (found,) = offences_in(path)
    assert found[:3] == (str(path), line, phrase)
    assert str(found) == f'{path}:{line}: "{phrase}"; write: {found.instead}'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.md", "There is no video, and there\nis no list. It is no longer here, and no worse."),
        ("a.md", "```\nit goes on\n```\n\n    anew\n\n[a](that-of.md#in-place-of) `told`"),
        ("a.md", "<!-- values: made -->\ntold\n<!-- end of values -->"),
        ("a.md", "Cores share no cache, and neither beside_s nor untold is a phrase."),
        ("a.html", "<script>told</script>"),
        ("a.js", 'const told = "anew", a = "http://anew";'),
        ("a.md", "Arrays, each of which is packed. None of them is empty; raises if there is\nnone."),
        ("a.md", "It runs until told to stop. Look at the page, at its pictures, or\nlook at the master's log."),
        ("a.py", "# The list, if size is None of a video."),
        ("a.py", """a = f'<div class="beside">{a} and b</div>'"""),
        ("a.py", "told = {'anew': heard}"),
        ("a.yaml", "told: anew"),
    ],
)
def test_what_is_not_prose_is_not_read(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert offences_in(tmp_path / file) == []


def test_an_offence_is_named_by_its_path_from_the_root() -> None:
    assert str(Offence("docs/a.md", 3, "anew", "again")) == 'docs/a.md:3: "anew"; write: again'
