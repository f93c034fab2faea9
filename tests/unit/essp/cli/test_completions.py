"""What the shell completes, and which commands print JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from essp.cli.main import app
from tests.harness.serving import Served


def completed(*words: str) -> list[str]:
    """The values for the last word."""
    asked = {
        "_ESSP_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["essp", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, [], env=asked, prog_name="essp").stdout.split()


@pytest.mark.parametrize(
    ("words", "one"),
    [
        (["init", "x.parquet", "--model", "resnet1"], "resnet18"),
        (["extractor", "describe", "fl"], "flow"),
        (["extractor", "preview", "a.mp4", "--feature", "h"], "hog"),
        (["aggregator", "describe", "to"], "top_k"),
        (["setup", "--feature", "fl"], "flow"),
        (["extract", "videos", "--network", "resnet1"], "resnet18"),
        (["extract", "videos", "--feature", "fl"], "flow"),
        (["weights", "fetch", "r3d"], "r3d_18"),
        (["comp"], "compare"),
        (["init", "x.parquet", "--for", "f"], "few"),
    ],
)
def test_known_values_are_completed(words: list[str], one: str) -> None:
    found = completed(*words)
    assert one in found
    assert all(name.startswith(words[-1]) for name in found)


def test_names_of_a_masters_jobs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path) as served:
        monkeypatch.setenv("ESSP_SERVER", served.url)
        served.start()
        assert completed("job", "get", "sm") == ["small"]
        assert completed("logs", "--job", "") == ["small"]
        for command in (["job", "why"], ["job", "dump"], ["job", "rm"], ["audit"]):
            assert completed(*command, "s") == ["small"]
        assert completed("job", "get", "x") == []


def test_where_nothing_answers_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    for server in ("http://127.0.0.1:1", "not a url", "http://[::"):
        monkeypatch.setenv("ESSP_SERVER", server)
        assert completed("job", "get", "") == []
        assert completed("pool", "set", "") == []


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    context = click.Context(command)
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    for name in names:
        yield from _commands(command.get_command(context, name), (*path, name))
    if not names:
        yield " ".join(path), command


def test_only_what_serves_has_no_json() -> None:
    """As docs/README.md has it."""
    without = {
        path
        for path, command in _commands(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without <= {"page", "master", "decoder", "extractor run", "trainer", "predictor"}
