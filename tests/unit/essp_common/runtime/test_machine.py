"""What a process says of the cores, the memory and the disk that it uses."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from essp_common.runtime import machine as of_machine
from essp_common.runtime.cores import usable_cores
from essp_common.runtime.gpus import Gpus
from essp_common.runtime.machine import MachineMeter, machine


class Process:
    """A process of made-up figures."""

    def __init__(self, pid: int, rss: int, shared: int = 0) -> None:
        self.pid, self.cpu_s, self.gone = pid, 0.0, False
        self._memory = SimpleNamespace(rss=rss, shared=shared)

    def cpu_times(self) -> Any:
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)
        return SimpleNamespace(user=self.cpu_s, system=0.0, children_user=0.0, children_system=0.0)

    def memory_info(self) -> Any:
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)
        return self._memory


def test_a_process_counts_with_its_children_and_a_core_by_the_time_between(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child, now_s = Process(1, 100), Process(2, 50, shared=30), [0.0]
    monkeypatch.setattr(of_machine, "_children", lambda process: [child])
    meter = MachineMeter(cast(Any, parent), Gpus(lambda: None), clock=lambda: now_s[0])
    first = meter.read()
    assert (first.process, first.memory_bytes, first.HasField("cpu")) == (1, 120, False)
    parent.cpu_s, child.cpu_s, now_s[0] = 4.0, 6.0, 5.0
    assert meter.read().cpu == 2.0
    now_s[0] = 6.0
    assert meter.read().cpu == 2.0, "the other workers of this process report the same"
    child.gone, now_s[0] = True, 10.0
    last = meter.read()
    assert (last.cpu, last.memory_bytes) == (0.0, 100), "time that a killed child took with it is not counted back"


def test_the_children_of_this_process_are_found() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert child.pid in {found.pid for found in of_machine._children(psutil.Process())}
    finally:
        child.kill()
        child.wait()


def test_this_process_says_what_it_uses() -> None:
    found = machine()
    assert 2**20 < found.memory_bytes < found.memory_limit_bytes
    assert 0 < found.disk_free_bytes < found.disk_bytes
    assert found.cores == usable_cores()
