"""Temporary folders go with their process or with the next one of their kind."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from essp_common.runtime.temporary import TemporaryFolder

pytestmark = pytest.mark.processes


def killed(work: Callable[[], object]) -> None:
    """A process that does this, and is killed."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    with TemporaryFolder("job", str(tmp_path)) as folder:
        Path(folder, "file").write_text("x")
        assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_when_the_next_begins(tmp_path: Path) -> None:
    def work() -> None:
        Path(TemporaryFolder("job", str(tmp_path)).path, "file").write_text("x")

    killed(work)
    (left,) = tmp_path.iterdir()
    with TemporaryFolder("other", str(tmp_path)):
        assert left.exists(), "of another kind"
    with TemporaryFolder("job", str(tmp_path)) as folder:
        assert [str(path) for path in tmp_path.iterdir()] == [folder]


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    with TemporaryFolder("job", str(tmp_path)) as one:
        killed(lambda: TemporaryFolder("job", str(tmp_path)))
        with TemporaryFolder("job", str(tmp_path)) as other:
            assert {str(path) for path in tmp_path.iterdir()} == {one, other}


def test_a_fork_removes_nothing_and_keeps_what_it_has(tmp_path: Path) -> None:
    """Of a process that was killed, too."""
    ended, end = os.pipe()
    forked, fork = os.pipe()

    def work() -> None:
        folder = TemporaryFolder("job", str(tmp_path))
        if os.fork() == 0:
            os.close(end)
            folder.remove()
            os.write(fork, b"f")
            os.read(ended, 1)
            os._exit(0)
        os.read(forked, 1)

    killed(work)
    try:
        (held,) = tmp_path.iterdir()
        with TemporaryFolder("job", str(tmp_path)):
            assert held.exists()
    finally:
        for file in (ended, end, forked, fork):
            os.close(file)


def test_a_folder_that_is_taken_for_one_that_was_left_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    taken: list[int] = []

    def taken_first(folder: int, how: int) -> None:
        if not taken:
            taken.append(folder)
            os.rmdir(next(tmp_path.iterdir()))
        lock(folder, how)

    monkeypatch.setattr(fcntl, "flock", taken_first)
    with TemporaryFolder("job", str(tmp_path)) as folder:
        assert os.path.isdir(folder)
    assert taken


def test_links_and_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(lambda: TemporaryFolder("job", str(tmp_path)))
    (left,) = tmp_path.iterdir()
    target = tmp_path / "target"
    target.mkdir()
    linked = tmp_path / f"{left.name}x"
    linked.symlink_to(target)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: -1)
        with TemporaryFolder("job", str(tmp_path)):
            assert left.exists()
    with TemporaryFolder("job", str(tmp_path)):
        assert not left.exists()
        assert linked.is_symlink()
        assert target.is_dir()


def test_where_nothing_can_be_locked_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with TemporaryFolder("job", str(tmp_path)) as one, TemporaryFolder("job", str(tmp_path)):
        assert os.path.isdir(one)
    assert not list(tmp_path.iterdir())


def test_it_lies_where_temporary_files_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with TemporaryFolder("job") as folder:
        assert Path(folder).parent == tmp_path


def test_what_only_begins_like_one_is_somebody_elses(tmp_path: Path) -> None:
    with TemporaryFolder("job", str(tmp_path)) as folder:
        prefix = Path(folder).name[:-32]
    mine = {f"{prefix}training", f"{prefix}2024", f"{prefix}{'0' * 31}", f"x{prefix}{'0' * 32}"}
    for name in mine:
        (tmp_path / name).mkdir()
    with TemporaryFolder("job", str(tmp_path)):
        pass
    assert {path.name for path in tmp_path.iterdir()} == mine
