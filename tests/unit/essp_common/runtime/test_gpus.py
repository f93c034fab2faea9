"""The GPUs of a process, by a driver that is made up."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from essp_common.runtime import gpus as of_gpus
from essp_common.runtime.gpus import Gpus


class Driver:
    """`pynvml` over GPUs with these processes. `lacks`: questions that it does not answer."""

    class NVMLError(Exception):
        pass

    def __init__(self, *processes: list[int], lacks: tuple[str, ...] = ()) -> None:
        self._processes = processes
        self._lacks = lacks

    def nvmlDeviceGetCount(self) -> int:
        return len(self._processes)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self._processes[handle]]

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-{handle}abc".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "H200"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._answer("busy")
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=2**30, total=2**37)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._answer("watts")
        return 312_500

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self._answer("watts")
        return 9_000

    def _answer(self, question: str) -> None:
        if question in self._lacks:
            raise self.NVMLError("Not Supported")


def ids(gpus: Gpus, *processes: int) -> list[str]:
    return [gpu.id for gpu in gpus.read(set(processes))]


def test_a_process_has_the_gpus_on_which_it_or_a_child_computes() -> None:
    gpus = Gpus(lambda: Driver([1], [2, 7], [3]), uses_cuda=lambda: False)
    (gpu,) = gpus.read({7, 8})
    assert (gpu.id, gpu.name, gpu.busy, gpu.memory_bytes, gpu.memory_limit_bytes) == (
        "GPU-1abc",
        "H200",
        0.75,
        2**30,
        2**37,
    )
    assert (gpu.watts, gpu.joules) == (312.5, 9.0)
    assert ids(gpus, 9) == []


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, ["GPU-0abc", "GPU-1abc"]), ("1", ["GPU-1abc"]), ("GPU-0", ["GPU-0abc"]), ("", []), ("-1", []), ("7", [])],
)
def test_in_a_container_whose_processes_the_driver_does_not_know_those_that_cuda_sees_count(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert ids(Gpus(lambda: Driver([], []), uses_cuda=lambda: True), 1) == found
    assert ids(Gpus(lambda: Driver([], []), uses_cuda=lambda: False), 1) == []


def test_what_the_driver_does_not_say_is_absent() -> None:
    (gpu,) = Gpus(lambda: Driver([1], lacks=("busy", "watts"))).read({1})
    assert [gpu.HasField(field) for field in ("busy", "memory_bytes", "watts", "joules")] == [False, True, False, False]


def test_without_the_package_or_the_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    class Broken(Driver):
        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver Not Loaded")

    for found in (absent, lambda name: Broken([1])):
        monkeypatch.setattr(importlib, "import_module", found)
        assert of_gpus.driver() is None
        assert Gpus().read({1}) == []
    assert not of_gpus.uses_cuda()
