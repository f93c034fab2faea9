"""Each thread that is started has a name, which docs/threads.md explains; and it explains no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_structure import SOURCES, trees

ROOT = Path(__file__).resolve().parents[2]
TABLES = (ROOT / "docs" / "threads.md").read_text(encoding="utf-8")
PASSED_ON = frozenset({"_full(name, of)", "s.name", "service.name", "app"})
"""Names that the caller has given: of `lasting` and `guarded`, and of services. `app` is of another `guarded`."""
UNNAMED = "a thread without a name"


def names(module: ast.Module) -> Iterator[str]:
    """The names of threads that a module starts; what is put into one is `…`."""
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if function in ("lasting", "guarded") and call.args:
            name = call.args[0]
        elif function == "Thread" and "target" in given:
            name = given.get("name", ast.Constant(UNNAMED))
        elif function == "ThreadPoolExecutor":
            name = given.get("thread_name_prefix", call.args[1] if len(call.args) > 1 else ast.Constant(UNNAMED))
        else:
            continue
        if isinstance(name, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in name.values)  # type: ignore[misc]
        elif isinstance(name, ast.Constant):
            yield str(name.value)
        elif ast.unparse(name) not in PASSED_ON:
            yield ast.unparse(name)


def test_all_threads_have_a_name_that_is_explained() -> None:
    begin = ("Thread", "lasting", "guarded")
    started = {name for _, module in trees(SOURCES, *begin) for name in names(module)}
    explained = set(re.findall(r"`((?:essp-|[…\w]+-)[\w…-]+)`(?=[,;|` ]| \|)", TABLES)) - {"essp-"}
    assert started - explained == set()
    assert {name for name in explained if name not in started} == set()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("Thread(target=run)", [UNNAMED]),
        ("threading.Thread(target=run, name=f'essp-{kind}-x')", ["essp-…-x"]),
        ("lasting('essp-a', run, ended)", ["essp-a"]),
        ("ThreadPoolExecutor(4)", [UNNAMED]),
        ("ThreadPoolExecutor(4, 'essp-b')", ["essp-b"]),
        ("Thread(target=run, name=its)", ["its"]),
        ("Thread", []),
    ],
)
def test_what_is_started_is_found(code: str, found: list[str]) -> None:
    assert list(names(ast.parse(code))) == found
