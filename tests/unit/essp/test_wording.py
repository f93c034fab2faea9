"""What people read when something is wrong, in `wording/*.txt`: an input after `> `, and the message below it.

Other tests assert the field and code of an error; these files alone hold its words. `python -m
tests.unit.essp.test_wording` writes the messages again after a change; read the difference.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import essp
from essp_common.job.documents import read_yaml
from essp_common.job.spec import parse_spec
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import preflight
from tests.harness.command_line import main_of
from tests.harness.fleet import make_job

FOLDER = Path(__file__).parent / "wording"
JOB = {
    "name": "small",
    "output": "file:///out",
    "data": {"catalog": "file:///catalog.parquet"},
    "streams": {"rgb": {}, "flow": {}},
    "trainers": {"rgb": {"stream": "rgb"}, "flow": {"stream": "flow"}},
}


def of_job(text: str) -> str:
    """`text`: YAML that takes the place of these fields of a sound job."""
    try:
        parse_spec(json.dumps(JOB | read_yaml(text, "text")), "job.yaml")
    except essp.ConfigError as error:
        return str(error)
    return "no error"


def of_preflight(text: str) -> str:
    """`text`: the same of a job on a catalog of two classes, which is checked before it begins."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            preflight(make_job(Path(folder), **read_yaml(text, "text")), Stores(("file:///",)))
        except essp.ConfigError as error:
            return str(error)
    return "no error"


def of_command(text: str) -> str:
    """`text`: a command line, run in an empty folder."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()), _empty_folder():
        main_of(*text.removeprefix("essp ").split())
    return "\n".join(
        line for line in errors.getvalue().splitlines() if line and not line.startswith(("Usage:", "Try "))
    )


def of_call(text: str) -> str:
    """`text`: a call of the package, as in a script."""
    try:
        with _empty_folder():
            eval(text, {"essp": essp})  # noqa: S307  our own text
    except essp.EsspError as error:
        return str(error)
    return "no error"


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


SAYS: dict[str, Callable[[str], str]] = {
    "jobs.txt": of_job,
    "preflight.txt": of_preflight,
    "commands.txt": of_command,
    "calls.txt": of_call,
}


def written(name: str) -> str:
    """The file as it should be. Temporary folders are `/tmp/...`."""
    inputs = [line[2:] for line in (FOLDER / name).read_text().splitlines() if line.startswith("> ")]
    answers = "\n".join(f"> {text}\n{SAYS[name](text)}\n" for text in inputs)
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/[a-z0-9_]+", "/tmp/...", answers)


@pytest.mark.parametrize("name", SAYS)
def test_messages_are_worded_as_reviewed(name: str) -> None:
    assert written(name) == (FOLDER / name).read_text()


if __name__ == "__main__":
    for each in SAYS:
        (FOLDER / each).write_text(written(each))
