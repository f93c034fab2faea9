"""Ranks that are processes: started together, ended together, started again when one was killed. Scripts play them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from essp_common.errors import ConfigError
from essp_trainer.config import TrainerSettings
from essp_trainer.distributed.supervisor import EXIT_RANK_LOST, RanksFailed, Supervisor
from essp_trainer.main import main
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.processes

NOTE = "import os, sys, signal, pathlib; rank = os.environ['RANK']; here = pathlib.Path(sys.argv[1]); "
LIFE = "life = len(list(here.glob(rank + '-*'))); (here / f'{rank}-{life}').write_text(os.environ['MASTER_PORT']); "
STAY = "sys.stdin.buffer.read()"


def supervisor(folder: Path, script: str, ranks: int = 2, **settings: int) -> Supervisor:
    command = [sys.executable, "-c", NOTE + LIFE + script, str(folder)]
    return Supervisor(command, ranks, TrainerSettings.model_validate(settings))


def lives(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_ranks_know_who_they_are_and_end_together(tmp_path: Path) -> None:
    script = "assert os.environ['WORLD_SIZE'] == os.environ['LOCAL_WORLD_SIZE'] == '3' and os.environ['MASTER_ADDR']"
    supervisor(tmp_path, script, ranks=3).run()
    assert lives(tmp_path) == ["0-0", "1-0", "2-0"]
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1


def test_all_are_started_again_when_one_is_killed(tmp_path: Path) -> None:
    """The second notices, and leaves with the exit code for it."""
    script = f"life or (os.kill(os.getpid(), signal.SIGKILL) if rank == '0' else sys.exit({EXIT_RANK_LOST}))"
    supervisor(tmp_path, script).run()
    assert lives(tmp_path) == ["0-0", "0-1", "1-0", "1-1"]


def test_an_error_of_a_ranks_own_is_not_tried_again(tmp_path: Path) -> None:
    script = f"sys.exit(2 if rank == '1' else {EXIT_RANK_LOST})"
    with pytest.raises(RanksFailed, match="rank 1 of 2 ended with exit code 2"):
        supervisor(tmp_path, script).run()
    assert lives(tmp_path) == ["0-0", "1-0"]


def test_ranks_that_die_at_once_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match="died 3 times in a row"):
        supervisor(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", rank_restarts=2).run()
    assert lives(tmp_path) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def test_draining_ends_them_and_starts_none_again(tmp_path: Path) -> None:
    own = supervisor(tmp_path, STAY)
    thread = threading.Thread(target=own.run)
    thread.start()
    while len(lives(tmp_path)) < 2:
        thread.join(0.01)
    own.drain()
    thread.join(LONGEST_S)
    assert not thread.is_alive()
    assert len(lives(tmp_path)) == 2


def test_that_ranks_left_before_the_end_is_known(tmp_path: Path) -> None:
    own = supervisor(tmp_path, "sys.exit(9)", drained_exit=9)
    own.run()
    assert own.interrupted
    assert lives(tmp_path) == ["0-0", "1-0"]


def test_ranks_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    """They read from a pipe that only the supervisor holds open."""
    script = NOTE + LIFE + STAY + "; (here / f'end-{rank}').touch()"
    own = (
        "import sys; from essp_trainer.distributed.supervisor import Supervisor; "
        "from essp_trainer.config import TrainerSettings; "
        f"Supervisor([sys.executable, '-c', {script!r}, {str(tmp_path)!r}], 2, TrainerSettings()).run()"
    )
    with subprocess.Popen([sys.executable, "-c", own]) as process:
        while len(lives(tmp_path)) < 2:
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGKILL)
    seen = threading.Event()
    while lives(tmp_path)[-2:] != ["end-0", "end-1"]:
        seen.wait(0.01)  # pytest's own limit is the deadline


@pytest.mark.parametrize(
    ("variables", "message"),
    [({}, "memory://"), ({"WORLD_SIZE": "2", "RANK": "1", "ESSP_BUS": "kafka://k:1"}, "only one of the two")],
)
def test_ranks_are_not_started_where_they_cannot_meet(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        main("job", "rgb", ranks=2)
