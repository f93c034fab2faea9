"""What this process uses, and what it may use: cores, memory, disk, GPUs. Workers report it with their heartbeats.

A process is counted with its children, because decoders decode in children. Memory is what is resident in the process,
and what its children have for themselves: libraries that all of them map are counted once. Limits are those of the
container, where it has any.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from essp_common.pb.v1.messages_pb2 import Machine
from essp_common.runtime.cores import usable_cores
from essp_common.runtime.gpus import Gpus
from essp_common.runtime.memory import memory_limit

_FRESH_S = 2.0
"""Workers of one process that report within this time report the same figures."""


class MachineMeter:
    """Measures a process. Thread-safe."""

    def __init__(
        self, process: psutil.Process, gpus: Gpus | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process = process
        self._gpus = Gpus() if gpus is None else gpus
        self._clock = clock
        self._lock = threading.Lock()
        self._report: Machine | None = None
        self._read_s = clock()
        self._cpu_s = _cpu_s([process])

    def read(self) -> Machine:
        """Return the present figures. `cpu` is a mean over the time since they were last measured."""
        with self._lock:
            now_s = self._clock()
            if self._report is None or now_s - self._read_s >= _FRESH_S:
                self._report = self._measured(now_s)
            return self._report

    def _measured(self, now_s: float) -> Machine:
        children = _children(self._process)
        cpu_s, passed_s = _cpu_s([self._process, *children]), now_s - self._read_s
        disk_free, disk = _disk(tempfile.gettempdir())
        report = Machine(
            host=socket.gethostname(),
            process=self._process.pid,
            cores=usable_cores(),
            memory_bytes=_memory(self._process, children),
            memory_limit_bytes=memory_limit(),
            disk_free_bytes=disk_free,
            disk_bytes=disk,
            gpus=self._gpus.read({self._process.pid, *(child.pid for child in children)}),
        )
        if passed_s >= _FRESH_S:
            # A child that was killed and never waited for takes its time with it.
            report.cpu = max(0.0, cpu_s - self._cpu_s) / passed_s
        elif self._report is not None and self._report.HasField("cpu"):
            report.cpu = self._report.cpu
        if passed_s >= _FRESH_S or self._report is None:
            self._read_s, self._cpu_s = now_s, cpu_s
        return report


@cache
def _meter(process: int) -> MachineMeter:
    return MachineMeter(psutil.Process(process))


def machine() -> Machine:
    """Return the figures of this process."""
    return _meter(os.getpid()).read()  # by its id: a forked process measures itself


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that it has started, and theirs. Linux lists them by thread, so that not all processes of
    the machine have to be read."""
    found: list[psutil.Process] = []
    try:
        ids = [id for file in Path(f"/proc/{process.pid}/task").glob("*/children") for id in file.read_text().split()]
    except OSError:
        ids = []
    if not ids and not Path("/proc/self/task").exists():
        with suppress(psutil.Error):
            return process.children(recursive=True)
    for id in ids:
        with suppress(psutil.Error):
            child = psutil.Process(int(id))
            found += [child, *_children(child)]
    return found


def _cpu_s(processes: list[psutil.Process]) -> float:
    """Return the CPU time of these processes, and of their children that have ended."""
    found = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


def _memory(process: psutil.Process, children: list[psutil.Process]) -> int:
    found = 0
    with suppress(psutil.Error):
        found = process.memory_info().rss
    for child in children:
        with suppress(psutil.Error):
            used = child.memory_info()
            found += used.rss - getattr(used, "shared", 0)
    return found


def _disk(folder: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return usage.free, usage.total
