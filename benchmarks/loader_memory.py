"""Memory and descriptors of a training loop over 10,000 batches: what grows would end a long training."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.inputs import VideoSet
from essp_common.runtime.cores import cpu_count

_BATCHES, _WARM = 10_000, 1_000
_BATCH = 8
_VIDEOS = VideoSet("mpeg4", 12, 96, 72, ".avi", frames=100, videos=20, names=50)
"""Small pictures, so that this takes minutes; 1,000 files, more than may be open at once."""


def loader_memory(scale: Scale) -> Iterator[Figure]:
    """Of a process with an `essp.Loader`, and its decoders, after 10,000 batches / after 1,000."""
    whole, warm = (60, 20) if scale.quick else (_BATCHES, _WARM)
    command = [sys.executable, "-m", "benchmarks.loader_memory", str(scale.catalog(_VIDEOS)), str(warm), str(whole)]
    first, last = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    detail: dict[str, float | str] = {
        "batches": whole,
        **{f"mb_{name}": round(value["bytes"] / 2**20, 1) for name, value in (("first", first), ("last", last))},
        **{f"descriptors_{name}": value["descriptors"] for name, value in (("first", first), ("last", last))},
    }
    growth = last["bytes"] / first["bytes"]
    yield Figure("loader_memory", growth, "", Aim(most=1.05), growth, growth, detail)


def main(catalog: str, warm: int, whole: int) -> None:
    """Print what this process uses after `warm` batches, and after `whole`."""
    import essp

    found = []
    sampling = essp.Sampling(clips_per_epoch=whole * _BATCH)
    clip, limits = essp.Clip(frames=4, stride=1, size=48), essp.Limits(decoders=cpu_count())
    with essp.Loader(Path(catalog), clip=clip, batch_size=_BATCH, sampling=sampling, limits=limits) as loader:
        for number, _ in enumerate(loader, 1):
            if number in (warm, whole):
                found.append(_used())
    print(json.dumps(found))


def _used() -> dict[str, int]:
    """Proportional set size, which counts memory that processes share once, and open descriptors."""
    here = psutil.Process()
    processes = [here, *here.children(recursive=True)]
    return {
        "bytes": sum(process.memory_full_info().pss for process in processes),
        "descriptors": sum(process.num_fds() for process in processes),
    }


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
