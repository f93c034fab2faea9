"""Epochs over images: `essp.Records` against the loaders that people use, in turn.

`records_coco` (python -m benchmarks): photographs in batches of 32, `DataLoader` with one worker against records of
pixels, and of JPEG files. The experiments of the OneAccess paper are `python -m benchmarks.papers oneaccess`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import essp
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.image_peers import Photos, imported, peer_loader, torch_loader
from benchmarks.image_sets import CROP, ImageSet
from benchmarks.measure import spread
from benchmarks.records import Files
from essp.records.images import covering, decoded

Loops = dict[str, Callable[[], Iterable[Any]]]
"""Name of a loader -> what makes it."""
Took = tuple[float, float]
"""Wall and processor seconds of an epoch, worker processes included."""
_PIXEL_BYTES = 3072
"""Of a small image."""


def records_coco(scale: Scale) -> Iterator[Figure]:
    """Photographs in batches of 32: `DataLoader` with one worker against records of pixels, and of JPEG files."""
    count = 40 if scale.quick else 1000
    images = ImageSet(scale.root / f"photos_{count}", count)
    loops = photo_loops(
        images.photo_records("raw"), images.photo_records("jpeg"), Photos(images.photos, count), workers=(1,)
    )
    rounds = [in_turn(loops) for _ in range(scale.rounds)]
    took = {name: [each[name] for each in rounds] for name in loops}
    peer, raw, files = took["files, 1 worker"], took["records, pixels"], took["records, JPEG"]
    detail: dict[str, float | str] = {
        f"{name}_s": round(min(wall for wall, _ in times), 3) for name, times in took.items()
    }
    yield Figure.of("records_coco", _ratio(peer, raw), Aim(least=3.6), detail)
    photos = sorted(images.photos.glob("*.jpg"))
    share = count * decode_cpu_s(photos) / len(photos) / min(cpu for _, cpu in files)
    binds: dict[str, float | str] = {"share_of_cpu_time_that_is_decoding": round(share, 2)}
    yield Figure.of("records_coco_jpeg", _ratio(peer, files), None, binds)


def small_loops(images: ImageSet, batch_size: int, samples: Sequence[int] = ()) -> Loops:
    """Records in memory, records in samples of a number of batches, and `DataLoader` over files."""
    loops: Loops = {"records": partial(records_of, images.records, batch_size)}
    for relative in samples:
        memory = 2 * relative * batch_size * _PIXEL_BYTES
        loops[f"records, samples of {relative} batches"] = partial(
            records_of, images.records, batch_size, memory=memory
        )
    for suffix in (".npy", ".jpg"):
        for workers in (0, 1, 2):
            loops[f"{suffix} files, {_workers(workers)}"] = partial(
                torch_loader, Files(images.files, suffix), batch_size, workers
            )
    return loops


def peer_loops(name: str, images: ImageSet, batch_size: int) -> Loops:
    """Loaders of an installed peer over small images."""
    imported(name)  # here, not in its first epoch
    return {f"{name}, {_workers(number)}": partial(peer_loader, name, images, batch_size, number) for number in (0, 1)}


def photo_loops(raw: Path, jpeg: Path, photos: Photos, workers: Sequence[int], batch_size: int = 32) -> Loops:
    """Records of pixels and of JPEG files, and `DataLoader` over the same files."""
    loops: Loops = {
        "records, pixels": partial(records_of, raw, batch_size),
        "records, JPEG": partial(records_of, jpeg, batch_size, CROP),
    }
    for number in workers:
        loops[f"files, {_workers(number)}"] = partial(torch_loader, photos, batch_size, number)
    return loops


def records_of(path: Path, batch_size: int, size: int | None = None, memory: int | str = "1GiB") -> essp.Records:
    """A loader of records."""
    return essp.Records(path, batch_size=batch_size, size=size, memory=memory)


def in_turn(loops: Loops) -> dict[str, Took]:
    """An epoch of each, after one of the first that warms up."""
    epoch_s(next(iter(loops.values())))
    return {name: epoch_s(make) for name, make in loops.items()}


def epoch_s(make: Callable[[], Iterable[Any]]) -> Took:
    """Make a loader and take its first epoch."""
    began, cpu = time.perf_counter(), _cpu_s()
    loader = make()
    for _ in loader:
        pass
    closed(loader)
    del loader  # its workers end, and count
    return time.perf_counter() - began, _cpu_s() - cpu


def batch_ms(make: Callable[[], Iterable[Any]]) -> list[float]:
    """Milliseconds until each batch of an epoch."""
    took: list[float] = []
    loader = make()
    began = time.perf_counter()
    for _ in loader:
        now = time.perf_counter()
        took.append(1000 * (now - began))
        began = now
    closed(loader)
    return took


def closed(loader: Iterable[Any]) -> None:
    """End the threads of records."""
    if isinstance(loader, essp.Records):
        loader.close()


def decode_cpu_s(photos: Sequence[Path]) -> float:
    """Processor time of decoding and scaling these files, and nothing else."""
    data = [path.read_bytes() for path in photos]
    began = _cpu_s()
    for one in data:
        covering(decoded(one), CROP, CROP)
    return _cpu_s() - began


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _ratio(over: Sequence[Took], under: Sequence[Took]) -> Any:
    return spread([a / b for (a, _), (b, _) in zip(over, under, strict=True)])


def _workers(number: int) -> str:
    return f"{number} worker{'s' * (number != 1)}"
