"""Reads the kernel's counters of disks, processes and cores through psutil.

Counters only grow while the machine runs, so two readings give a rate. A process's counters include the processor time
of its ended children once it has waited for them. A process that ends while it is read, or that belongs to another
user, is left out.
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
"""Devices that are built on other devices, or that use no disk."""


class Disk(NamedTuple):
    """The counters of one block device, or the sum of several."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    busy_s: float = 0.0
    """Time during which a request was in progress."""

    def plus(self, other: Disk) -> Disk:
        """The sum of both."""
        return Disk._make(map(operator.add, self, other))


class Process(NamedTuple):
    """The counters of one process, or the sum of several."""

    asked_read_bytes: int = 0
    """Bytes read with read(2) and similar calls, from files, pipes and the page cache alike."""
    asked_written_bytes: int = 0
    read_bytes: int = 0
    """Bytes that a disk had to deliver."""
    written_bytes: int = 0
    """Bytes that a disk must eventually write."""
    cpu_s: float = 0.0

    def plus(self, other: Process) -> Process:
        """The sum of both."""
        return Process._make(map(operator.add, self, other))


class Cores(NamedTuple):
    """The counters of all cores of the machine."""

    busy_s: float
    waiting_s: float
    """Time that cores were idle while something waited for a disk."""


def cores() -> Cores:
    """The counters of all cores, over all processes. Raises `OSError` without `/proc`."""
    times = psutil.cpu_times()  # guest time is already part of user time
    busy_s = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return Cores(busy_s, times.iowait)


class Machine:
    """The counters of this machine."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """`folders`: the folders whose disks are watched. All disks are watched if it is empty, or if a file system
        names no disk.

        Raises `ConfigError` if the system provides no disk counters.
        """
        try:
            known = _disks()
        except (OSError, NotImplementedError) as error:
            raise ConfigError(
                f"the disks of this machine cannot be read ({error}); leave the trace out", code="unsupported"
            ) from error
        self.disks = tuple(sorted(_watched(folders, known)))
        """Names of the watched disks."""

    def disk(self) -> Disk:
        """The sum over the watched disks, whichever process uses them."""
        known = _disks()
        return reduce(Disk.plus, (known[name] for name in self.disks if name in known), Disk())

    def cores(self) -> Cores:
        """The counters of all cores, over all processes."""
        return cores()

    def process(self, root: int) -> Process:
        """The sum over a process and its descendants."""
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
    """Whether a device is a partition of another, such as `sda1` or `nvme0n1p2`."""
    whole = re.sub(r"p?\d+$", "", name)
    return whole != name and whole in names
