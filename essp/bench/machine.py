"""What the kernel counts of disks, processes and cores (psutil reads it).

Counters only grow while the machine runs, so that two of them give a rate. Those of a process hold the processor time
of its ended children, as soon as it has waited for them. A process that ends while it is read, or belongs to somebody
else, is left out.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import reduce
from typing import NamedTuple

import psutil

from essp_common.errors import ConfigError

_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")
"""Devices that lie on others, or on no disk."""


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
        return Disk._make(map(operator.add, self, other))


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
        return Process._make(map(operator.add, self, other))


class Cores(NamedTuple):
    """All cores of the machine."""

    busy_s: float
    waiting_s: float
    """Idle, while something waited for a disk."""


def cores() -> Cores:
    """All cores, whoever uses them. Raises `OSError` where there is no `/proc`."""
    times = psutil.cpu_times()  # guests are part of user
    busy_s = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return Cores(busy_s, times.iowait)


class Machine:
    """The counters of this machine."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """`folders`: those on whose disks to look; without, or where a file system names no disk, at all disks.

        Raises `ConfigError` where the system counts nothing of its disks.
        """
        try:
            known = _disks()
        except (OSError, NotImplementedError) as error:
            raise ConfigError(
                f"the disks of this machine cannot be read ({error}); leave the trace out", code="unsupported"
            ) from error
        self.disks = tuple(sorted(_watched(folders, known)))
        """Names of the disks that are watched."""

    def disk(self) -> Disk:
        """The watched disks together, whoever uses them."""
        known = _disks()
        return reduce(Disk.plus, (known[name] for name in self.disks if name in known), Disk())

    def cores(self) -> Cores:
        """All cores, whoever uses them."""
        return cores()

    def process(self, root: int) -> Process:
        """A process with all that it has begun."""
        with suppress(psutil.Error):
            process = psutil.Process(root)
            return reduce(Process.plus, map(_counted, [process, *process.children(recursive=True)]), Process())
        return Process()


def _disks() -> dict[str, Disk]:
    """Every device and partition, by name."""
    counted = psutil.disk_io_counters(perdisk=True, nowrap=False)
    return {
        name: Disk(disk.read_count, disk.read_bytes, disk.write_count, disk.write_bytes, disk.busy_time / 1000)
        for name, disk in counted.items()
    }


def _counted(process: psutil.Process) -> Process:
    with suppress(psutil.Error), process.oneshot():
        io, times = process.io_counters(), process.cpu_times()
        cpu_s = times.user + times.system + times.children_user + times.children_system
        return Process(io.read_chars, io.write_chars, io.read_bytes, io.write_bytes, cpu_s)
    return Process()


def _watched(folders: Iterable[str], known: Collection[str]) -> set[str]:
    found = set()
    for folder in folders:
        with suppress(OSError):
            number = os.stat(folder).st_dev
            found.add(os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")))
    if found and found <= set(known):
        return found
    return {name for name in known if not _NO_DISK.match(name) and not _is_part(name, known)}


def _is_part(name: str, names: Collection[str]) -> bool:
    """Whether a device is a partition of another one: `sda1`, `nvme0n1p2`."""
    whole = re.sub(r"p?\d+$", "", name)
    return whole != name and whole in names
