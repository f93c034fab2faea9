"""What images from few large files cost (`essp.Records`), against `numpy.take` and against a `DataLoader` over files.

`records_small` and `records_large` are the loop's own limit: the processor time in which `numpy.take` copies batches
out of an array in memory, over that of the loader once all records are in memory; threads count. `records_npy` and
`records_best` are epochs as a user waits for them, a new loader for each, with the files in the page cache: 8,000
images of 32x32 as CIFAR-10 has them, in batches of 4 and of 32, against torch's `DataLoader` over one .npy file an
image (one worker), and over one JPEG file an image (0, 1 and 2 workers); `records_best` takes the best of those four.
The peers shuffle as well. `records_over_memory` is an epoch over 24,000 such images, in batches of 32, of which a ninth
fits into the `memory` of the loader, against `DataLoader` over .npy files with 1 and 2 workers, whichever is faster; of
none, the system has anything in memory when it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

import essp
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp.bench.page_cache import evict
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer

_BATCHES = (4, 32)
_SMALL, _LARGE = 32, 256
"""Sides of images of 3 KiB and 192 KiB."""
_CLASSES = tuple("abcdefghij")


class Files(Dataset[tuple[NDArray[np.uint8], int]]):
    """One file an image, as people have them."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._paths = sorted(folder.glob(f"*{suffix}"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        path = self._paths[index]
        image = np.load(path) if path.suffix == ".npy" else cv2.imread(str(path))
        return np.asarray(image, np.uint8), index % len(_CLASSES)


def records(scale: Scale) -> Iterator[Figure]:
    """Images of 3 KiB and 192 KiB from memory, and whole epochs from files."""
    for name, side, batch_size, count in (
        ("records_small", _SMALL, 256, 8000),
        ("records_large", _LARGE, 32, 2000),
    ):
        yield _from_memory(name, _made(scale, side, 100 if scale.quick else count), batch_size, scale)
    yield from _from_files(scale)
    yield _over_memory(scale)


def _from_memory(name: str, folder: Path, batch_size: int, scale: Scale) -> Figure:
    with essp.Records(folder / "records", batch_size=batch_size) as loader:
        images = np.concatenate([batch.frames[:, 0].numpy() for batch in loader])  # everything is in memory now
        epochs = max(1, 40_000 // len(images)) if images[0].size < 10_000 else 2
        order = np.random.default_rng(0).permutation(len(images))
        ours = [partial(_loop, loader), partial(_take, images, order, batch_size)]
        for work in ours:
            work()
        rounds = [[_cpu_s(work, epochs) for work in ours] for _ in range(max(3, scale.rounds))]
    rates = [len(images) * epochs / min(each) for each in zip(*rounds, strict=True)]
    detail: dict[str, float | str] = {"records_per_s": round(rates[0]), "take_per_s": round(rates[1])}
    return Figure.of(name, spread([take / loop for loop, take in rounds]), Aim(least=0.5), detail)


def _from_files(scale: Scale) -> Iterator[Figure]:
    folder = _made(scale, _SMALL, 100 if scale.quick else 8000)
    npy: list[float] = []
    best: dict[int, list[float]] = {size: [] for size in _BATCHES}
    first: list[float] = []
    detail: dict[str, float | str] = {}
    for size in _BATCHES:
        works: dict[str, Callable[[], None]] = {
            "records": partial(_epoch, folder / "records", size),
            "npy_1": partial(_peer, folder, ".npy", size, 1),
            **{f"jpg_{workers}": partial(_peer, folder, ".jpg", size, workers) for workers in (0, 1, 2)},
        }
        works["records"]()
        for _ in range(scale.rounds):
            took = {name: _wall_s(work) for name, work in works.items()}
            npy += [took["npy_1"] / took["records"]] if size == _BATCHES[0] else []
            best[size].append(min(took[name] for name in works if name != "records") / took["records"])
            first.append(1000 * _first_s(folder / "records", size))
            detail |= {f"batch_{size}.{name}_s": round(seconds, 3) for name, seconds in took.items()}
    yield Figure.of("records_npy", spread(npy), Aim(least=10), detail)
    for size, ratios in best.items():
        yield Figure.of(f"records_best.{size}", spread(ratios), Aim(least=3), {})
    waited = spread(first)
    yield Figure("records_first_ms", waited.median, "ms", Aim(most=50), waited.low, waited.high)


def _over_memory(scale: Scale) -> Figure:
    folder = _made(scale, _SMALL, 100 if scale.quick else 24_000, (".npy",))
    size = _BATCHES[1]
    files = [str(path) for path in folder.glob("*.npy")]
    parts = [str(path) for path in (folder / "records" / "records").iterdir()]
    stalled: dict[str, float] = {}

    def ours() -> None:
        with essp.Records(folder / "records", batch_size=size, memory="8MiB") as loader:
            _loop(loader)
            stalled.update(loader.reading)

    took: dict[str, list[float]] = {"records": [], "npy_1": [], "npy_2": []}
    for _ in range(scale.rounds):
        evict(parts)
        took["records"].append(_wall_s(ours))
        for workers in (1, 2):
            evict(files)
            took[f"npy_{workers}"].append(_wall_s(partial(_peer, folder, ".npy", size, workers)))
    ratios = [min(one, two) / mine for mine, one, two in zip(*took.values(), strict=True)]
    detail: dict[str, float | str] = {f"{name}_s": round(min(times), 3) for name, times in took.items()}
    detail |= {name: round(stalled[name], 3) for name in ("pieces", "read_s", "stalled_s", "loop_s", "store_bytes")}
    return Figure.of("records_over_memory", spread(ratios), Aim(least=3), detail)


def _made(scale: Scale, side: int, count: int, suffixes: tuple[str, ...] = (".npy", ".jpg")) -> Path:
    """A folder with `count` images, as files and as records; made once."""
    folder = scale.root / f"images_{side}_{count}"
    if (folder / "records" / "versions").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(side)
    with Writer(DataSet(DirectoryStore.from_url(f"file://{folder}/records")), _CLASSES) as writer:
        for number in range(count):
            coarse = rng.integers(0, 256, (side // 8, side // 8, 3), np.uint8)  # as compressible as a photograph
            image = np.asarray(cv2.resize(coarse, (side, side)), np.uint8)
            writer.add(Record.of_image(image, number % len(_CLASSES)))
            if side == _SMALL and ".npy" in suffixes:
                np.save(folder / f"{number:06}.npy", image)
            if side == _SMALL and ".jpg" in suffixes:
                cv2.imwrite(str(folder / f"{number:06}.jpg"), image)
    return folder


def _epoch(uri: Path, batch_size: int) -> None:
    with essp.Records(uri, batch_size=batch_size) as loader:
        _loop(loader)


def _first_s(uri: Path, batch_size: int) -> float:
    begin = time.perf_counter()
    with essp.Records(uri, batch_size=batch_size) as loader:
        next(iter(loader))
        return time.perf_counter() - begin


def _peer(folder: Path, suffix: str, batch_size: int, workers: int) -> None:
    _loop(DataLoader(Files(folder, suffix), batch_size, shuffle=True, num_workers=workers))


def _loop(batches: Any) -> None:
    for _ in batches:
        pass


def _take(images: NDArray[np.uint8], order: NDArray[np.int64], batch_size: int) -> None:
    for begin in range(0, len(order), batch_size):
        images.take(order[begin : begin + batch_size], axis=0)


def _cpu_s(work: Callable[[], None], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - begin


def _wall_s(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
