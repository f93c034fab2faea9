"""Input pipelines on simulated devices, which sleep and compute nothing (`essp bench io`, `essp bench app`).

`io_threads` is the rate of images that are read, decoded and scaled by 8 threads over that of 1, where each request
takes 30 ms as from an object store far away. `io_prefetch_spread` is what prefetching one batch promises: with an
accelerator whose step takes longer than the load, a training takes as long with 1, 4 and 8 threads from files in the
page cache, from a disk and from a network: the longest over the shortest time, less 1. The accelerator is a pretended
one, so neither figure needs a GPU; each time is the median of the rounds. Images are JPEG files of 160x160.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import spread
from essp.bench.app import train
from essp.bench.learner import Pretended
from essp.bench.pipeline import Pipeline, Plan, measured
from essp.bench.sources import Shape, Source, open_source
from essp.bench.storages import Storage, storages
from essp_common.objects.throttled import PRESETS
from essp_common.wiring import Stores

_STORES = Stores(("file:///",))
_SIDE = 160
_IMAGES = 192
_BATCH = 16
_STEP_S = 0.12
"""Of the pretended accelerator; a batch of 2 images takes one thread 61 ms from the network."""
_STEPS = 40
_THREADS = (1, 4, 8)


def io_threads(scale: Scale) -> Iterator[Figure]:
    """8 threads over 1."""
    source = _source(scale)
    batches = 1 if scale.quick else _IMAGES // _BATCH
    ratios: list[float] = []
    detail: dict[str, float | str] = {"throttle": str(PRESETS["network"])}
    with storages(source, _STORES, [], [("network", PRESETS["network"])]) as (storage,):
        for _ in range(max(1, scale.rounds)):
            rates = {threads: _rate(storage, batches, threads) for threads in _THREADS}
            ratios.append(rates[8] / rates[1])
            detail |= {f"{threads}.images_per_s": round(rate, 1) for threads, rate in rates.items()}
    yield Figure.of("io_threads", spread(ratios), Aim(least=7), detail)


def io_prefetch_spread(scale: Scale) -> Iterator[Figure]:
    """Of the time of a training, over threads and stores."""
    names = ("hdd", "network")
    steps = 2 if scale.quick else _STEPS
    rounds: list[dict[str, float]] = []
    with ExitStack() as stack:
        source = _source(scale)
        slowed = stack.enter_context(storages(source, _STORES, [], [(name, PRESETS[name]) for name in names]))
        places = [*stack.enter_context(storages(source, _STORES, [], [])), *slowed]
        for _ in range(max(1, scale.rounds)):
            rounds.append({f"{place.name}.{n}": _trained_s(place, steps, n, 1) for place in places for n in _THREADS})
        without = {f"{place.name}.1.without_s": round(_trained_s(place, steps, 1, 0), 3) for place in places}
    # Of medians, as a slow spell of the machine hits single trainings.
    took = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    detail = {"step_s": _STEP_S, **{f"{name}_s": round(seconds, 3) for name, seconds in took.items()}, **without}
    found = spread([_apart(each.values()) for each in rounds])
    yield Figure("io_prefetch_spread", _apart(took.values()), "share", Aim(most=0.05), found.low, found.high, detail)


def _apart(times: Collection[float]) -> float:
    """How much longer the longest is than the shortest."""
    return max(times) / min(times) - 1


def _rate(storage: Storage, batches: int, threads: int) -> float:
    took, _ = measured(storage.source, Plan("full", _BATCH, batches, threads), lambda: False, lambda made: None)
    return took.samples / took.elapsed.seconds


def _trained_s(storage: Storage, steps: int, threads: int, prefetch: int) -> float:
    pipeline = Pipeline(storage.source, Plan("full", 2, steps, threads, prefetch))
    return train(pipeline, Pretended(_STEP_S), lambda made: None).seconds


def _source(scale: Scale) -> Source:
    """Images, made once."""
    folder = scale.root / f"jpeg_{_SIDE}_{_IMAGES}"
    if not (folder / f"{_IMAGES - 1}.jpg").exists():
        _make(folder)
    return open_source(f"file://{folder}", _STORES, Shape(_SIDE))


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(_IMAGES):
        coarse = rng.integers(0, 256, (_SIDE // 8, _SIDE // 8, 3), np.uint8)  # as compressible as a photograph
        cv2.imwrite(str(folder / f"{number}.jpg"), np.asarray(cv2.resize(coarse, (_SIDE, _SIDE)), np.uint8))
