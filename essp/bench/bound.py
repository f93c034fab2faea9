"""The upper bound of an input pipeline: how fast its bytes can be read, without any other work.

The bytes that the pipeline needs are read raw: by the same number of threads, in the order of the files, with adjacent
bytes combined into requests of up to 8 MiB, without shuffling, decoding or batches. This relates to a pipeline as IOR
does to a file system. Local files are read into one buffer per thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from essp.bench.pipeline import Plan, Took
from essp.bench.places import Extent
from essp.bench.sources import Source
from essp.bench.stopwatch import stopwatch
from essp_common.errors import PermanentError

REQUEST_BYTES = 8 * 2**20


def bound(source: Source, plan: Plan, stopped: Callable[[], bool]) -> Took:
    """One run, over the bytes that a pipeline with this plan reads."""
    requests = list(raw_requests(source, plan))
    reader = _Reader(stopped)
    elapsed = stopwatch()
    with ThreadPoolExecutor(plan.threads, "essp-bench-raw") as pool:
        read = sum(pool.map(reader.read, requests))
    return Took(elapsed(), plan.batches * plan.batch, read, 0, not stopped())


def raw_requests(source: Source, plan: Plan) -> Iterator[Extent]:
    """The bytes for the plan's number of samples, epoch by epoch."""
    left, epoch = plan.batches * plan.batch, 0
    while left > 0:
        order = np.random.default_rng((plan.seed, epoch)).permutation(len(source))[:left]
        yield from merged(extent for task in source.tasks(order, plan.seed + epoch) for extent in task.extents())
        left, epoch = left - len(order), epoch + 1


def merged(extents: Iterable[Extent]) -> Iterator[Extent]:
    """The same bytes, each once, by object and start, in requests of up to `REQUEST_BYTES`; whole objects are not
    split."""
    by_place = sorted(extents, key=lambda one: (one.place.key, id(one.place.store), one.start))
    last: Extent | None = None
    for extent in by_place:
        if extent.length is None:
            yield extent
        elif last is not None and last.place == extent.place and extent.start <= _end(last):
            last = Extent(last.place, last.start, max(_end(last), _end(extent)) - last.start)
        else:
            yield from _cut(last)
            last = extent
    yield from _cut(last)


def _end(extent: Extent) -> int:
    return extent.start + (extent.length or 0)


def _cut(extent: Extent | None) -> Iterator[Extent]:
    if extent is not None:
        for start in range(extent.start, _end(extent), REQUEST_BYTES):
            yield Extent(extent.place, start, min(REQUEST_BYTES, _end(extent) - start))


@dataclass
class _Reader:
    stopped: Callable[[], bool]

    def __post_init__(self) -> None:
        self._local = threading.local()

    def read(self, extent: Extent) -> int:
        """The number of bytes read; 0 if the object does not exist."""
        if self.stopped():
            return 0
        store, key = extent.place
        with suppress(PermanentError):
            path = store.local_path(key)
            return len(extent.read()) if path is None else self._raw(path, extent)
        return 0

    def _raw(self, path: str, extent: Extent) -> int:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = bytearray(REQUEST_BYTES)
        done = 0
        with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            file.seek(extent.start)
            while (left := REQUEST_BYTES if extent.length is None else extent.length - done) > 0:
                count = file.readinto(memoryview(self._local.buffer)[:left])
                if not count:
                    break
                done += count
        return done
