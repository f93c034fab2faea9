"""Checks this machine: versions, CPUs, temporary and shared memory; if torch is installed, GPU and torchvision."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from essp.doctor.finding import Finding, fail, ok, warn
from essp_common import distribution
from essp_common.runtime.cores import cpu_count

CHECK = "machine"
_PACKAGES = (
    distribution.NAME,
    "numpy",
    "kafka-python",
    "redis",
    "boto3",
    "av",
    "opencv-python-headless",
    "torch",
    "torchvision",
)
_TMP_BYTES = 512 * 2**20
_SHM_BYTES = 64 * 2**20
_SHM = Path("/dev/shm")


def examine() -> Iterator[Finding]:
    """Check this machine. Loads torch and torchvision if they are installed."""
    yield ok(CHECK, f"Python {platform.python_version()}, {cpu_count()} CPUs; {', '.join(_versions())}")
    yield _tmp()
    if _SHM.is_dir():
        yield _shm()
    if find_spec("torch") is not None:
        yield from _gpu()
        if find_spec("torchvision") is not None:
            yield _torchvision()


def _versions() -> Iterator[str]:
    for package in _PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            continue


def _tmp() -> Finding:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = "a container with a read-only root needs a writable /tmp (tmpfs, emptyDir)"
        return fail(CHECK, f"{folder} is not writable ({error.strerror})", remedy)
    if free < _TMP_BYTES:
        return warn(CHECK, f"{folder} has {free >> 20} MiB free", "remove old files, or give it 1 GiB")
    return ok(CHECK, f"{folder} has {free >> 20:,} MiB free")


def _shm() -> Finding:
    size = os.statvfs(_SHM)
    total = size.f_blocks * size.f_frsize
    if total < _SHM_BYTES:
        return warn(
            CHECK, f"{_SHM} has {total >> 20} MiB", "several ranks of a trainer need more: docker --shm-size=1g"
        )
    return ok(CHECK, f"{_SHM} has {total >> 20:,} MiB")


def _gpu() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(number)
            try:
                free, total = torch.cuda.mem_get_info(number)
            except RuntimeError as error:
                why = (str(error).splitlines() or [""])[0]
                remedy = "see what else uses it, its compute mode and the driver: nvidia-smi"
                yield fail(CHECK, f"GPU {number}: {name} cannot be used: {why}", remedy)
                continue
            yield ok(
                CHECK, f"GPU {number}: {name}, {free >> 20:,} of {total >> 20:,} MiB free, CUDA {torch.version.cuda}"
            )
    elif Path("/dev/nvidiactl").exists():
        yield fail(
            CHECK,
            f"torch {torch.__version__} cannot use the NVIDIA GPU of this machine",
            "install the CUDA build of torch (image essp-trainer:...-cuda), and a recent driver",
        )
    else:
        yield ok(CHECK, "no GPU: trainers run on CPUs")


def _torchvision() -> Finding:
    import torch

    from essp_engine.learning import torchvision_import

    beside = f"with torch {torch.__version__}"
    try:
        from essp_engine.learning.torchvision_compat import torchvision
    # raised by torch and torchvision builds that do not match
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = "install both from one index in one command: pip install --force-reinstall torch torchvision"
        return fail(CHECK, f"torchvision cannot be imported {beside}: {why}", remedy)
    found = f"torchvision {torchvision.__version__} can be imported {beside}"
    if torchvision_import.declared():
        found += "; its compiled operators (nms, roi_align) do not load there, and ESSP does not need them"
    return ok(CHECK, found)
