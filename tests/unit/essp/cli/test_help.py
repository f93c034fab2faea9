"""What `essp` says of itself: every command is listed, explained and shown by an example that works."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from essp.cli.commands import EXAMPLES, SECTIONS
from essp.cli.main import _load, app, main
from tests.harness.command_line import main_of
from tests.harness.waiting import LONGEST_S
from tests.lanes import often

COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}
GROUPS = [name for name, command in COMMANDS.items() if command.target.endswith(":app")]


def leaves(name: str) -> Iterator[tuple[str, Any]]:
    """A command, or those below it, by their whole names."""
    root: Any = typer.main.get_command(app)
    command = root.get_command(None, name)
    if name not in GROUPS:
        yield name, command
    for inner, below in getattr(command, "commands", {}).items():
        yield f"{name} {inner}", below


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_explained_and_its_examples_are_sound(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("depth.yaml", "hog.yaml", "video.mp4"):
        Path(file).touch()
    for path, command in leaves(name):
        assert command.help, path
        for parameter in command.params:
            assert parameter.help or parameter.hidden, f"{path}: {parameter.name}"
        for example in EXAMPLES[path]:
            words = shlex.split(example.partition(" > ")[0])
            arguments = words[words.index("essp") + 1 + len(path.split()) :]
            with command.make_context(path, arguments):
                assert example.partition("essp ")[2].startswith(path)
        shown = CliRunner().invoke(app, [*path.split(), "--help"])
        assert all(f"  {example}\n" in shown.output for example in EXAMPLES[path])


def test_there_is_no_example_of_what_is_not_there() -> None:
    assert {path.split()[0] for path in EXAMPLES} == set(COMMANDS)


@pytest.mark.processes
def test_names_are_completed_without_loading_what_they_name() -> None:
    code = (
        "import os, sys; os.environ |= {'_ESSP_COMPLETE': 'complete_bash', 'COMP_WORDS': 'essp de'}\n"
        "os.environ['COMP_CWORD'] = '1'\n"
        "from essp.cli.main import app\n"
        "try:\n    app(prog_name='essp')\nexcept SystemExit:\n"
        "    ours = (m for m in sys.modules if m.startswith('essp'))\n"
        "    print(sorted(m for m in ours if not m.startswith(('essp.cli', 'essp_common')) and m != 'essp'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONGEST_S)
    *names, loaded = done.stdout.splitlines()
    hook = ["essp_engine", "essp_engine.learning", "essp_engine.learning.torchvision_import"]  # of `import essp`
    assert (sorted(names), loaded) == (["deadletter", "decoder", "demo", "demo-data"], str(hook))


def test_help_fits_a_narrow_terminal_and_a_pipe() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    assert all(f"  {name} " in shown.output for name in COMMANDS)
    assert "130 interrupted" in shown.output


def test_what_is_wrong_with_a_call_is_said_on_stderr_with_exit_code_2() -> None:
    for arguments in (["nonsense"], ["run"], ["run", "--serve", "no", "job.yaml"], ["job"]):
        done = CliRunner().invoke(app, arguments, prog_name="essp")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: essp")


@pytest.mark.processes
def test_output_that_cannot_be_written_is_no_defect() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "essp", "token", "ci"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONGEST_S,
        )
    assert (done.returncode, done.stderr) == (1, "essp: the output: No space left on device\n")


@pytest.mark.parametrize("group", ["job", "checkpoint", "records", "extractor", "aggregator"])
def test_what_a_group_lists_of_its_commands_is_whole(group: str) -> None:
    shown = CliRunner().invoke(app, [group, "--help"], env={"COLUMNS": "80"}).stdout
    assert "..." not in shown.replace("[ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= 80


_OPENS_A_FILE = """
import os, sys
from essp.cli.main import main
sys.argv[0] = "essp"
try:
    main()
finally:
    file = os.open("opened", os.O_CREAT | os.O_WRONLY)
    os.write(file, b"%d" % file)
"""


@pytest.mark.processes
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    call = shlex.join([sys.executable, "-c", _OPENS_A_FILE, "--version"])
    subprocess.run(f"{call} <&- >&- 2>&-", shell=True, cwd=tmp_path, timeout=LONGEST_S, check=True)
    assert int((tmp_path / "opened").read_text()) > 2


@pytest.mark.processes
def test_what_the_locale_has_no_letters_for_is_printed_as_escapes() -> None:
    code = "import essp.cli.main as cli; cli.app = lambda: print('\\u00e9 \\u2603'); cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=LONGEST_S,
    )
    assert (done.stdout, done.stderr) == (b"\xe9 \\u2603\n", b"")


@pytest.mark.processes
@pytest.mark.parametrize("more", often([{"PYTHONIOENCODING": "ascii:surrogateescape"}, {}], 1))
def test_names_of_files_are_utf8_in_any_locale(tmp_path: Path, more: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "essp", "validate", "L\u00e4ufe.yaml".encode()],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", **more},
        cwd=tmp_path,
        capture_output=True,
        timeout=LONGEST_S,
    )
    name = done.stderr.partition(b".yaml")[0].removeprefix(b"essp: ")
    assert name in ("L\u00e4ufe".encode(), b"L\\xe4ufe")


@pytest.mark.processes
def test_ctrl_c_while_modules_are_loaded_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    searched = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "essp", "--version"],
        env={**os.environ, "PYTHONPATH": searched},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_folder_that_was_removed_is_named_and_no_library_dies_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr(sys, "argv", ["essp", "--version"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("essp: the folder that you are in has been removed; go to another one")


def test_a_store_without_room_is_named_and_is_no_server_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    way = "--size 1MiB --steps 1 --every 1 --runs 1 --step-time 1ms --modes none,direct"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))  # the kernel answers as a full disk does
    try:
        code = main_of("bench", "checkpoint", "--store", str(store), *way.split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    shown = capsys.readouterr()
    assert code == 1
    assert re.search(rf"essp: {store}/.*: File too large; there are up to 3.0 MiB of checkpoints at a time", shown.err)
    assert shown.err.endswith("; make room there, or name another place, and give the command again\n")
    assert shown.out.splitlines()[1].split()[0] == "none", "what was measured is shown"
    assert [path for path in store.rglob("*") if path.is_file()] == []


def test_a_call_makes_its_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To resolve the name of a command asks for it, to call it does again, and so does the next call in a process."""
    made: list[str] = []
    get_command = typer.main.get_command

    def counted(found: typer.Typer) -> Any:
        made.append(found.registered_commands[0].name or "")
        return get_command(found)

    _load.cache_clear()
    with monkeypatch.context() as patch:
        whole: Any = get_command(app)
        patch.setattr(typer.main, "get_command", counted)
        for _ in range(2):
            whole.main(["plan", "--help"], standalone_mode=False)
    assert made == ["plan"]
