"""What the kernel counts, from made-up texts, and what of it is ours."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from essp.bench.machine import Cores, Disk, Machine, Process, cores
from essp_common.errors import ConfigError

DISKSTATS = """\
   7       0 loop0 9 0 9 0 9 0 9 0 0 9 0
   8       0 sda 100 5 2048 30 40 2 512 20 0 1500 50
   8       1 sda1 90 5 2000 30 40 2 512 20 0 1400 50 0 0 0 0 0 0
 259       0 nvme0n1 7 0 16 1 3 0 8 1 1 250 2 0 0 0 0 0 0
 259       1 nvme0n1p2 7 0 16 1 3 0 8 1 1 250 2 0 0 0 0 0 0
 253       0 dm-0 97 0 2064 0 43 0 520 0 0 0 0
"""
STAT = (
    "{pid} (a (strange) name) S {parent} 1 1 0 -1 4194304 10 0 0 0 {user} {system} {c_user} {c_system} 20 0 1 0 5 6"
    + " 0" * 28
    + "\n"
)
IO = "rchar: 1000\nwchar: 200\nsyscr: 9\nsyscw: 9\nread_bytes: {read}\nwrite_bytes: {written}\ncancelled: 4\n"


def stat(pid: int, parent: int, *ticks: int) -> str:
    user, system, c_user, c_system = ticks or (0, 0, 0, 0)
    return STAT.format(pid=pid, parent=parent, user=user, system=system, c_user=c_user, c_system=c_system)


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `/proc` with a process 10, its child 11 and its grandchild 12, and a stranger 20."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    (tmp_path / "diskstats").write_text(DISKSTATS)
    (tmp_path / "stat").write_text("cpu  100 20 30 999 50 1 2 7 90 9\ncpu0 1 1 1 1 1 1 1 1 0 0\nbtime 1\n")
    ticks = os.sysconf("SC_CLK_TCK")
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat(pid, parent, ticks, 0, 0, ticks))
        (tmp_path / str(pid) / "io").write_text(IO.format(read=pid, written=1))
    return tmp_path


def test_all_disks_are_watched_once_where_no_folder_names_one(made_up: Path) -> None:
    machine = Machine()
    assert machine.disks == ("nvme0n1", "sda")
    assert machine.disk() == Disk(107, (2048 + 16) * 512, 43, (512 + 8) * 512, 1.75)
    assert Machine(["/not/there"]).disks == machine.disks


def test_the_disk_of_a_folder_is_watched_alone(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "realpath", lambda path: "/sys/devices/somewhere/sda1")
    machine = Machine([str(made_up)])
    assert machine.disks == ("sda1",)
    assert machine.disk() == Disk(90, 2000 * 512, 40, 512 * 512, 1.4)


def test_a_process_is_counted_with_all_that_it_has_begun(made_up: Path) -> None:
    machine = Machine()
    assert machine.process(10) == Process(3000, 600, 10 + 11 + 12, 3, 6.0)
    (made_up / "12" / "io").unlink()
    (made_up / "12" / "stat").unlink()  # it has ended meanwhile
    assert machine.process(10).read_bytes == 10 + 11
    assert machine.process(99) == Process()


def test_cores_are_busy_with_all_but_idling_and_waiting(made_up: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert cores() == Machine().cores() == Cores(160 / ticks, 50 / ticks)


def test_a_system_that_counts_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counters(**_: object) -> None:
        raise NotImplementedError("neither /proc/diskstats nor /sys/block")

    monkeypatch.setattr(psutil, "disk_io_counters", counters)
    with pytest.raises(ConfigError, match=r"disks of this machine cannot be read .* leave the trace out"):
        Machine()


def test_this_machine_can_be_read() -> None:
    machine = Machine([os.getcwd()])
    before = machine.process(os.getpid())
    Path("/proc/self/status").read_text()
    after = machine.process(os.getpid())
    assert after.asked_read_bytes > before.asked_read_bytes
    assert machine.cores().busy_s > 0
    assert machine.disk() >= Disk()
