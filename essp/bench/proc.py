"""What Linux counts of disks, processes and cores, read from the texts under `/proc`.

Parsing is pure; `Machine` reads the files. Counters only grow while the machine runs, so that two of them give a rate.
Those of a process hold what its ended children have done, as soon as it has waited for them. A process that ends while
it is read, or belongs to somebody else, is left out.

Formats: `Documentation/admin-guide/iostats.rst` and `Documentation/filesystems/proc.rst` of the kernel, and proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from essp_common.errors import ConfigError

_SECTOR_BYTES = 512
"""The unit of `/proc/diskstats`, whatever the sectors of a disk are."""
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")
"""Devices that lie on others, or on no disk."""

Device = tuple[int, int]
"""Major and minor number."""


class Disk(NamedTuple):
    """A block device, or several."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    busy_s: float = 0.0
    """Time in which a request was under way."""

    def plus(self, other: Disk) -> Disk:
        """Both together."""
        return Disk(
            self.reads + other.reads,
            self.read_bytes + other.read_bytes,
            self.writes + other.writes,
            self.written_bytes + other.written_bytes,
            self.busy_s + other.busy_s,
        )


class Process(NamedTuple):
    """A process, or several."""

    asked_read_bytes: int = 0
    """Through read(2) and its like, from files, pipes and the page cache alike."""
    asked_written_bytes: int = 0
    read_bytes: int = 0
    """That a disk had to deliver."""
    written_bytes: int = 0
    """That a disk has to take, sooner or later."""
    cpu_s: float = 0.0

    def plus(self, other: Process) -> Process:
        """Both together."""
        return Process(
            self.asked_read_bytes + other.asked_read_bytes,
            self.asked_written_bytes + other.asked_written_bytes,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
            self.cpu_s + other.cpu_s,
        )


class Cores(NamedTuple):
    """All cores of the machine."""

    busy_s: float
    waiting_s: float
    """Idle, while something waited for a disk."""


@dataclass(frozen=True, slots=True)
class NamedDisk:
    """A line of `/proc/diskstats`."""

    name: str
    counters: Disk


def parse_diskstats(text: str) -> dict[Device, NamedDisk]:
    """`/proc/diskstats`: every device and partition."""
    found = {}
    for line in text.splitlines():
        major, minor, name, *rest = line.split()
        reads, _, read_sectors, _, writes, _, written_sectors, _, _, busy_ms = map(int, rest[:10])
        counters = Disk(reads, read_sectors * _SECTOR_BYTES, writes, written_sectors * _SECTOR_BYTES, busy_ms / 1000)
        found[int(major), int(minor)] = NamedDisk(name, counters)
    return found


def parse_process(stat: str, io: str, ticks_per_s: int) -> Process:
    """`/proc/PID/stat` and `/proc/PID/io`."""
    ticks = sum(map(int, _after_name(stat)[11:15]))  # user and system, its own and of children it has waited for
    values = dict(line.split(": ") for line in io.splitlines())
    return Process(
        asked_read_bytes=int(values["rchar"]),
        asked_written_bytes=int(values["wchar"]),
        read_bytes=int(values["read_bytes"]),
        written_bytes=int(values["write_bytes"]),
        cpu_s=ticks / ticks_per_s,
    )


def parse_parent(stat: str) -> int:
    """The process that has begun the one of this `/proc/PID/stat`."""
    return int(_after_name(stat)[1])


def parse_cores(text: str, ticks_per_s: int) -> Cores:
    """`/proc/stat`."""
    line = next(line for line in text.splitlines() if line.startswith("cpu "))
    user, nice, system, _, waiting, irq, soft_irq, stolen = map(int, line.split()[1:9])  # guests are part of user
    return Cores((user + nice + system + irq + soft_irq + stolen) / ticks_per_s, waiting / ticks_per_s)


def _after_name(stat: str) -> list[str]:
    """The fields after the name of the program, which may hold blanks and parentheses."""
    return stat.rpartition(")")[2].split()


def descendants(root: int, parents: dict[int, int]) -> set[int]:
    """A process, its children, and theirs. `parents`: of each process, the one that has begun it."""
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class Machine:
    """The counters of this machine."""

    def __init__(self, folders: Iterable[str] = (), proc: Path = Path("/proc")) -> None:
        """`folders`: those on whose disks to look; without, or where a file system names no disk, at all disks.

        Raises `ConfigError` where there is no `/proc`.
        """
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        try:
            known = parse_diskstats((proc / "diskstats").read_text())
        except OSError as error:
            raise ConfigError(
                f"{proc}/diskstats cannot be read ({error.strerror}); a trace needs Linux: leave it out"
            ) from error
        self._devices = _watched(folders, known)
        self.disks = tuple(known[device].name for device in sorted(self._devices))
        """Names of the disks that are watched."""

    def disk(self) -> Disk:
        """The watched disks together, whoever uses them."""
        known = parse_diskstats((self._proc / "diskstats").read_text())
        return reduce(Disk.plus, (known[device].counters for device in self._devices if device in known), Disk())

    def cores(self) -> Cores:
        """All cores, whoever uses them."""
        return parse_cores((self._proc / "stat").read_text(), self._ticks_per_s)

    def process(self, root: int) -> Process:
        """A process with all that it has begun."""
        stats = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    stats[int(entry.name)] = (entry / "stat").read_text()
        total = Process()
        for pid in descendants(root, {pid: parse_parent(stat) for pid, stat in stats.items()}):
            with suppress(OSError, KeyError):
                io = (self._proc / str(pid) / "io").read_text()
                total = total.plus(parse_process(stats[pid], io, self._ticks_per_s))
        return total


def _watched(folders: Iterable[str], known: dict[Device, NamedDisk]) -> Collection[Device]:
    found = set()
    for folder in folders:
        with suppress(OSError):
            number = os.stat(folder).st_dev
            found.add((os.major(number), os.minor(number)))
    if found and found <= known.keys():
        return found
    names = {disk.name for disk in known.values()}
    return {
        device for device, disk in known.items() if not _NO_DISK.match(disk.name) and not _is_part(disk.name, names)
    }


def _is_part(name: str, names: Collection[str]) -> bool:
    """Whether a device is a partition of another one: `sda1`, `nvme0n1p2`."""
    whole = re.sub(r"p?\d+$", "", name)
    return whole != name and whole in names
