"""What programs read out of a pipe is not broken into lines of 80 columns; what people read is broken between words."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from essp.cli.console import open_console, say
from essp.cli.doctor import failing
from essp.cli.main import app
from essp.doctor import stores
from essp.doctor.finding import Level
from essp_common.errors import ConfigError
from essp_common.job.spec import parse_spec
from essp_common.objects.directory import DirectoryStore
from essp_common.runtime.config import Settings
from tests.harness.refused import refused

LONG = "/data/" + "a" * 300 + "/video.mp4"


def table() -> Table:
    found = Table(box=None)
    for name in ("NAME", "WHERE"):
        found.add_column(name)
    found.add_row("a", LONG)
    return found


def test_a_path_in_a_table_stays_whole_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    open_console().print(table())
    assert LONG in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_sentences_break_between_words_on_a_terminal_alone(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)
    text = f"note: the file {LONG} is cut off; make a whole one, and build the catalog again"
    say(text, console, indent=6)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert (len(lines) == 1) is not terminal
    assert " ".join(line.strip() for line in lines) == text, "no word is broken"
    assert [line for line in lines if len(line) > 40 and terminal] == ["      " + LONG] * terminal
    assert all(line.startswith(" " * 6) for line in lines[1:])


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = table()
    found.add_row("Putting [something] on [something]", "/v/Talk [dq2w9WgXcQ].mp4")
    found.add_row("cam:100:x", "/v/:dog:.mp4")
    open_console().print(found)
    open_console().print("[/b] end :cat:", highlight=False)
    said = capsys.readouterr().out
    names = ("Putting [something] on [something]", "Talk [dq2w9WgXcQ].mp4", "cam:100:x", "/v/:dog:.mp4")
    for name in (*names, "[/b] end :cat:"):
        assert name in said


def test_a_width_that_is_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    console = open_console()
    console.file = io.StringIO()
    console.print(table())
    assert max(map(len, console.file.getvalue().splitlines())) <= 60


@pytest.mark.parametrize(("typed", "meant"), [("catlog", "catalog"), ("vaildate", "validate"), ("jobs", "job")])
def test_a_mistyped_command_names_the_one_that_was_meant(typed: str, meant: str) -> None:
    done = CliRunner().invoke(app, [typed], prog_name="essp")
    assert done.exit_code == 2
    assert f"Did you mean {meant!r}?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["demo", "--seed", "8x"], "'--seed': it must be a whole number, got '8x'"),
        (["job", "events", "j", "--after", "-3"], "'--after': it must be 0 or more, got '-3'"),
        (["predict", "x", "--top", "-1"], "'--top': it must be 1 or more, got '-1'"),
    ],
)
def test_a_wrong_value_of_an_option_is_said_as_of_a_field(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(app, arguments, prog_name="essp")
    assert (done.exit_code, "Input should" in done.stderr) == (2, False)
    assert told in done.stderr


@pytest.mark.parametrize(("setting", "value"), [("bus", "http://x:1"), ("cache", "http://x:1")])
def test_a_wrong_scheme_is_said_before_the_host_is_looked_for(setting: str, value: str) -> None:
    given = {"bus": "memory://", "cache": "memory://"} | {setting: value}
    (said,) = failing(Settings(**given))
    assert f"ESSP_{setting.upper()}: " in said
    assert "unknown scheme" in said


def test_a_store_of_a_wrong_scheme_is_said_as_well() -> None:
    [found, _] = stores.examine(("gopher://x:1",))
    assert found.level is Level.FAIL
    assert re.search(r"ESSP_STORES: .*unknown scheme", found.what)


@pytest.mark.parametrize("weights", ["imagenet", "IMAGENET1K_V1", "DEFAULT", "pretrained"])
def test_a_word_for_weights_is_no_path(weights: str) -> None:
    job = f"{{name: a, output: /x, trainers: {{rgb: {{stream: rgb, model: resnet18, weights: {weights}}}}}}}"
    with refused("trainers.rgb.weights", "not_found"):
        parse_spec(job)


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigError, match="/proc/run cannot be made"):
        DirectoryStore("/proc/run").put("a", b"x")
    assert not Path("/proc/run").exists()
