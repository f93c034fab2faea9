"""What `/proc` says, from made-up texts, and what of it is ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.bench.proc import Cores, Disk, Machine, Process, descendants, parse_cores, parse_diskstats, parse_process
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
    "{pid} (a (strange) name) S {parent} 1 1 0 -1 4194304 10 0 0 0 {user} {system} {c_user} {c_system} 20 0 1 0 5 6\n"
)
IO = "rchar: 1000\nwchar: 200\nsyscr: 9\nread_bytes: {read}\nwrite_bytes: {written}\ncancelled_write_bytes: 4\n"


def stat(pid: int, parent: int, *ticks: int) -> str:
    user, system, c_user, c_system = ticks or (0, 0, 0, 0)
    return STAT.format(pid=pid, parent=parent, user=user, system=system, c_user=c_user, c_system=c_system)


def made_up(folder: Path) -> Path:
    """A `/proc` with a process 10, its child 11 and its grandchild 12, and a stranger 20."""
    (folder / "diskstats").write_text(DISKSTATS)
    (folder / "stat").write_text("cpu  100 20 30 999 50 1 2 7 90 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    (folder / "self").mkdir()
    ticks = os.sysconf("SC_CLK_TCK")
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 1)):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(stat(pid, parent, ticks, 0, 0, 0))
        (folder / str(pid) / "io").write_text(IO.format(read=pid, written=1))
    return folder


def test_disks_count_sectors_of_512_bytes() -> None:
    found = parse_diskstats(DISKSTATS)
    assert found[8, 0].name == "sda"
    assert found[8, 0].counters == Disk(100, 2048 * 512, 40, 512 * 512, 1.5)
    assert found[259, 1].counters.busy_s == 0.25


def test_a_process_has_its_ended_children_and_any_name() -> None:
    found = parse_process(stat(5, 1, 100, 20, 30, 50), IO.format(read=4096, written=512), ticks_per_s=100)
    assert found == Process(1000, 200, 4096, 512, cpu_s=2.0)


def test_cores_are_busy_with_all_but_idling_and_waiting() -> None:
    assert parse_cores("cpu  100 20 30 999 50 1 2 7 90 9\ncpu0 1 1 1 1 1 1 1 1\n", 100) == Cores(1.6, 0.5)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_descendants_are_those_whose_ancestors_lead_to_the_root(drawn: list[int]) -> None:
    parents = {pid: parent % pid for pid, parent in enumerate(drawn, start=2)}
    found = descendants(1, parents)
    for pid in parents:
        at = pid
        while at > 1:
            at = parents[at]
        assert (pid in found) == (at == 1)


def test_all_disks_are_watched_once_where_no_folder_names_one(tmp_path: Path) -> None:
    machine = Machine(proc=made_up(tmp_path))
    assert machine.disks == ("sda", "nvme0n1")
    assert machine.disk() == Disk(107, (2048 + 16) * 512, 43, (512 + 8) * 512, 1.75)


def test_the_disk_of_a_folder_is_watched_alone(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    proc = made_up(tmp_path)
    line = f"{os.major(number)} {os.minor(number)} mine 1 0 2 0 3 0 4 0 0 5 6\n"
    (proc / "diskstats").write_text(DISKSTATS + line)
    assert Machine([str(tmp_path)], proc).disks == ("mine",)
    assert Machine([str(tmp_path), "/not/there"], proc).disk() == Disk(1, 1024, 3, 2048, 0.005)


def test_a_process_is_counted_with_all_that_it_has_begun(tmp_path: Path) -> None:
    machine = Machine(proc=made_up(tmp_path))
    assert machine.process(10) == Process(3000, 600, 10 + 11 + 12, 3, 3.0)
    (tmp_path / "12" / "io").unlink()  # it has ended meanwhile
    assert machine.process(10).read_bytes == 10 + 11
    assert machine.process(99) == Process()


def test_a_system_without_proc_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"diskstats cannot be read .* leave it out"):
        Machine(proc=tmp_path)


def test_this_machine_can_be_read() -> None:
    machine = Machine([os.getcwd()])
    before = machine.process(os.getpid())
    Path("/proc/self/status").read_text()
    after = machine.process(os.getpid())
    assert after.asked_read_bytes > before.asked_read_bytes
    assert machine.cores().busy_s > 0
    assert machine.disk() >= Disk()
