"""Where something was measured, and the processor time of a process with all its children."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from essp_common import distribution
from essp_common.runtime.cores import cpu_count

_LIBRARIES = (distribution.NAME, "av", "numpy", "opencv-python-headless", "torch")


def machine() -> dict[str, Any]:
    """What identifies a machine and its libraries."""
    facts = {name.strip(): value for name, _, value in (line.partition(": ") for line in _cpuinfo())}
    return {
        "platform": platform.platform(),
        "cpu": facts.get("model name", platform.machine()),
        # virtual machines give all processors of a maker one name, but sums differ between them in the last bits
        "cpu_kind": [facts.get(name, "") for name in ("cpu family", "model", "stepping")],
        "cpus": cpu_count(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def cpu_s() -> float:
    """Processor time of this process so far: its threads, its children that have ended, and those that run."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may have ended in the meantime; then it counts as such
            times = child.cpu_times()
            used += times.user + times.system
    return used


class Marks:
    """When something was reached, by the clock and by processor time, since the beginning."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), cpu_s()
        self.reached: dict[str, dict[str, float]] = {}

    def set(self, name: str) -> None:
        """Record that it has been reached, unless it was reached before."""
        if name not in self.reached:
            wall_s, used_s = time.perf_counter() - self._began[0], cpu_s() - self._began[1]
            self.reached[name] = {"wall_s": round(wall_s, 3), "cpu_s": round(used_s, 3)}


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function that runs in a fresh process, so that nothing of another measurement is in memory.

    In it, others start as in a program of one's own, such as the workers of a `DataLoader`: by fork on Linux.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} died; its error stands above") from None
    finally:
        process.join()


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    set_start_method(None, force=True)  # a process that was spawned would spawn others, which takes seconds
    sender.send(function(*arguments))
