"""Any arguments to any command: an exit code of the list, a word on what is wrong, and no traceback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from essp.cli.commands import SECTIONS
from essp.cli.main import EXIT_CODES, app
from essp_common.errors import EsspError, Unavailable
from tests.adversary.storms import storm
from tests.harness.finished_job import finished_job

STAY = {"master", "decoder", "trainer", "aggregator", "predictor", "extractor run"}
"""They work until they are stopped: what they refuse is refused while they read their arguments."""
WORK = ("essp.cli.demo.make_dataset", "essp.cli.demo_data.make_dataset", "essp.servers.main.drained_by_signals")
"""Where commands begin to work for minutes, or until they are stopped; nothing here goes so far."""
ODD = st.sampled_from(
    ["", "-", "--", "-1", "0", "1e400", "9" * 30, "nan", "/", "..", "~", "~nobody", "\x1b[2J", "a\nb"]
)
ODD |= st.sampled_from(["x" * 3000, "x/y" * 2000, "\x00", "s3://b/x", "s3://", "file:///", "file:///../x", "\udcff"])
ODD |= st.sampled_from(["file://host/x", "http://127.0.0.1:1", "no://x", "x://[", "[::1", "http://[", "http://a b"])


def leaves() -> Iterator[tuple[str, ...]]:
    """All commands by their names."""
    root: Any = typer.main.get_command(app)
    for name in (name for section in SECTIONS.values() for name in section):
        below = getattr(root.get_command(None, name), "commands", {})
        yield from ((name, inner) for inner in below) if below else [(name,)]


COMMANDS = [words for words in leaves() if " ".join(words) not in STAY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the commands are called: with a folder, files of several kinds and the output of a job; no server."""
    path = tmp_path_factory.mktemp("cli")
    finished_job(path / "job")
    (path / "empty").mkdir()
    (path / "text.txt").write_text("text")
    (path / "bytes.bin").write_bytes(bytes(range(256)))
    (path / "broken.yaml").write_text("a: [")
    (path / "video.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(100))
    with pytest.MonkeyPatch.context() as environment, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        environment.setenv("ESSP_SERVER", f"http://127.0.0.1:{reserved.getsockname()[1]}")
        environment.setenv("ESSP_STORES", json.dumps([path.as_uri()]))  # nothing beside it is searched or written
        environment.chdir(path)
        for work in WORK:
            environment.setattr(work, far_enough)
        yield path


def far_enough(*_: object) -> NoReturn:
    """In place of work that takes long."""
    raise Unavailable("its arguments can be worked with")


def command_of(words: Sequence[str]) -> Any:
    """The command of these names, as typer makes it."""
    found: Any = typer.main.get_command(app)
    for word in words:
        found = found.get_command(None, word)
    return found


@st.composite
def arguments(draw: st.DrawFn, command: Any) -> list[str]:
    """Options and arguments of a command, with values that suit them, and such as do not."""
    files = st.sampled_from(["job", "empty", "text.txt", "bytes.bin", "broken.yaml", "video.mp4", "absent"])
    value = ODD | files | files | st.sampled_from(["rgb", "flow", "decoder", "1", "2", "name"])
    words: list[str] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words += draw(st.lists(value, min_size=0 if draw(st.integers(0, 9)) == 0 else 1, max_size=2))
        elif "--help" not in parameter.opts and draw(st.integers(0, 3)) == 0:
            words.append(draw(st.sampled_from(parameter.opts)))
            words += [] if parameter.is_flag else [draw(value)]
    return words + draw(st.sampled_from([[], [], ["--no-such-option"], ["--json"]]))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_any_arguments_are_answered(folder: Path, words: tuple[str, ...]) -> None:
    command = command_of(words)

    @given(data=st.data())
    @storm(2)
    def called(data: st.DataObject) -> None:
        done = CliRunner().invoke(app, [*words, *data.draw(arguments(command))], input="n\n")
        if isinstance(done.exception, EsspError):
            assert str(done.exception).strip()
        elif done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception  # a traceback
        elif done.exit_code:
            assert done.output.strip()
            assert done.exit_code in {1, 2, 5, 7, *(code for _, code in EXIT_CODES)}

    called()
