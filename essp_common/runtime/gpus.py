"""The GPUs that a process uses, as NVIDIA's driver describes them (package `nvidia-ml-py`, extra `gpu`).

Without the package or the driver, there are none. The driver names the processes on each GPU. In a container it may
know them by other ids; then a process in which torch has initialised CUDA uses the GPUs that it can see. A figure that
the driver does not give, such as the utilisation of a slice of a GPU (MIG), is absent.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from essp_common.pb.v1.messages_pb2 import Gpu

log = logging.getLogger(__name__)

T = TypeVar("T")


def driver() -> Any | None:
    """Return the module that asks the driver, initialised; None if there is no package or no driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.debug("no NVIDIA driver answers: %s", error)
        return None
    return nvml


def uses_cuda() -> bool:
    """Whether torch has initialised CUDA in this process. Does not load torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


class Gpus:
    """Reads the figures of GPUs. Not thread-safe."""

    def __init__(
        self, open_driver: Callable[[], Any | None] = driver, uses_cuda: Callable[[], bool] = uses_cuda
    ) -> None:
        self._open_driver = open_driver
        self._uses_cuda = uses_cuda
        self._nvml: Any = None
        self._opened = False

    def read(self, processes: Collection[int]) -> list[Gpu]:
        """Return the GPUs that these processes use, in the driver's order."""
        if not self._opened:  # once: a driver does not come while a process runs
            self._opened, self._nvml = True, self._open_driver()
        if self._nvml is None:
            return []
        every = list(self._handles())
        own = [handle for handle in every if any(id in processes for id in self._processes(handle))]
        if not own and self._uses_cuda():
            own = self._visible(every)
        return [self._figures(handle) for handle in own]

    def _handles(self) -> Iterator[Any]:
        for index in range(self._asked(self._nvml.nvmlDeviceGetCount) or 0):
            handle = self._asked(self._nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                yield handle

    def _processes(self, handle: Any) -> list[int]:
        found = self._asked(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        return [process.pid for process in found]

    def _visible(self, every: list[Any]) -> list[Any]:
        """Return the GPUs that CUDA_VISIBLE_DEVICES names, by number or by the beginning of their id."""
        names = os.environ.get("CUDA_VISIBLE_DEVICES")
        if names is None:
            return every
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        ids = tuple(name for name in wanted if not name.isdecimal())
        return [
            handle for index, handle in enumerate(every) if str(index) in wanted or self._id(handle).startswith(ids)
        ]

    def _id(self, handle: Any) -> str:
        return _text(self._asked(self._nvml.nvmlDeviceGetUUID, handle))

    def _figures(self, handle: Any) -> Gpu:
        nvml = self._nvml
        gpu = Gpu(id=self._id(handle), name=_text(self._asked(nvml.nvmlDeviceGetName, handle)))
        if (rates := self._asked(nvml.nvmlDeviceGetUtilizationRates, handle)) is not None:
            gpu.busy = rates.gpu / 100
        if (memory := self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)) is not None:
            gpu.memory_bytes, gpu.memory_limit_bytes = memory.used, memory.total
        if (milliwatts := self._asked(nvml.nvmlDeviceGetPowerUsage, handle)) is not None:
            gpu.watts = milliwatts / 1000
        if (millijoules := self._asked(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)) is not None:
            gpu.joules = millijoules / 1000
        return gpu

    def _asked(self, question: Callable[..., T], *about: Any) -> T | None:
        """Return the driver's answer; None if it has none."""
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def _text(found: str | bytes | None) -> str:
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found or ""
