"""The measured input pipeline: shuffle, read and decode in parallel, leave out damaged samples, make batches.

    order ──▶ tasks ──threads──▶ samples, in the order ──▶ batches ──prefetch──▶ training

It is the pipeline of Chien and others, "Characterizing Deep-Learning I/O Workloads in TensorFlow" (2018): a shuffled
list, a parallel map over it that ignores errors, batches, and a buffer of complete batches. `threads` tasks run at a
time, and the same number again waits to start or to be consumed. With `prefetch`, a thread makes that number of batches
ahead.

An epoch contains each sample once, in an order that the seed determines. Epochs follow one another until there are
enough batches. A store that does not respond ends the pipeline with its error, and so does an epoch without any
readable sample.

All threads end with the `with` block, also after an error in it. Each first finishes its current task.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import Literal, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from essp.bench.sources import Damaged, Loaded, Sample, Source, Task
from essp.bench.stopwatch import Elapsed, stopwatch
from essp_common.errors import PermanentError
from essp_common.quantities import counted

Kind = Literal["read", "full"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a pipeline."""

    kind: Kind = "full"
    """`read`: read the bytes only; `full`: also decode and scale them."""
    batch: int = 64
    batches: int = 1
    threads: int = 1
    prefetch: int = 0
    """Number of complete batches made ahead."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of the model for one step."""

    count: int
    frames: NDArray[np.uint8] | None = None
    """`(B, H, W, 3)` for images and records, `(B, T, H, W, 3)` for clips; None if bytes are only read."""
    labels: NDArray[np.int64] | None = None


@dataclass(slots=True)
class Tally:
    """What a pipeline has done so far. Written by one thread."""

    samples: int = 0
    bytes: int = 0
    tasks: int = 0
    damaged: list[Damaged] = field(default_factory=list)

    def add(self, loaded: Loaded) -> None:
        """Add the result of a task."""
        self.samples += loaded.good
        self.bytes += loaded.bytes
        self.tasks += 1
        self.damaged += loaded.damaged


@dataclass(frozen=True, slots=True)
class _Running:
    size: int
    """Expected number of samples, if all of them are intact."""
    loaded: Future[Loaded]


class Pipeline:
    """One pass over batches of a source. Used in a `with` block, from one thread."""

    def __init__(self, source: Source, plan: Plan, stopped: Callable[[], bool] = lambda: False) -> None:
        """`stopped`: polled between tasks. The pipeline ends early once it returns True."""
        self.tally = Tally()
        self._source = source
        self._plan = plan
        self._asked_to_stop = stopped
        self._left = threading.Event()
        self._tasks_of_first = 0
        """Number of tasks in the first epoch."""
        self._pool = ThreadPoolExecutor(plan.threads, "essp-bench")
        self._ahead: _Ahead | None = None

    def __enter__(self) -> Self:
        cv2.setNumThreads(1)  # otherwise scaling would use more cores than this pipeline has threads
        if self._plan.prefetch:
            self._ahead = _Ahead(self._made(), self._plan.prefetch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._ahead is not None:
            self._ahead.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[Batch]:
        """All batches, or fewer if the pipeline is stopped.

        Raises what a store raises, and `PermanentError` if an epoch has no intact sample.
        """
        return iter(self._ahead) if self._ahead is not None else self._made()

    def _made(self) -> Iterator[Batch]:
        size, left = self._plan.batch, self._plan.batches
        samples: list[Sample] = []
        there = 0
        for loaded in self._loaded():
            samples += loaded.samples
            there += loaded.good
            while there >= size and left:
                yield _batch(samples[:size], size)
                del samples[:size]
                there, left = there - size, left - 1
            if not left:
                return

    def _loaded(self) -> Iterator[Loaded]:
        """Results of the tasks, in task order."""
        plan, tasks = self._plan, self._tasks()
        running: deque[_Running] = deque()
        try:
            while not self._stopped():
                while len(running) < 2 * plan.threads and (not running or self._missing(running)):
                    task = next(tasks)
                    work = task.read if plan.kind == "read" else task.load
                    running.append(_Running(task.size, self._pool.submit(work)))
                loaded = running.popleft().loaded.result()
                self.tally.add(loaded)
                self._check_whole()
                yield loaded
        finally:
            for one in running:
                one.loaded.cancel()

    def _missing(self, running: Iterable[_Running]) -> bool:
        """Whether the tasks that were started are too few for all batches."""
        expected = self.tally.samples + sum(one.size for one in running)
        return expected < self._plan.batches * self._plan.batch

    def _tasks(self) -> Iterator[Task]:
        """The tasks of one epoch after another."""
        plan, source = self._plan, self._source
        for epoch in count():
            order = np.random.default_rng((plan.seed, epoch)).permutation(len(source))
            tasks = source.tasks(order, plan.seed + epoch)
            self._tasks_of_first = self._tasks_of_first or len(tasks)
            yield from tasks

    def _check_whole(self) -> None:
        tally = self.tally
        if not tally.samples and tally.tasks >= self._tasks_of_first:
            first, of = tally.damaged[0], counted(len(self._source), self._source.unit)
            raise PermanentError(f"no one of {of} is complete: {first.name}: {first.why}")

    def _stopped(self) -> bool:
        return self._left.is_set() or self._asked_to_stop()


class _Ahead:
    """Makes batches in a thread before they are requested."""

    def __init__(self, batches: Iterator[Batch], room: int) -> None:
        """`room`: maximum number of batches that are ready or in progress."""
        self._batches = batches
        self._room = threading.Semaphore(room)
        self._ready: SimpleQueue[Batch | BaseException | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="essp-bench-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while (found := self._ready.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            self._room.release()
            yield found

    def close(self) -> None:
        """End the thread. Idempotent."""
        # set before the release: the thread must see it when it wakes
        self._closed = True
        self._room.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._room.acquire() and not self._closed:
                batch = next(self._batches, None)
                self._ready.put(batch)
                if batch is None:
                    return
        except BaseException as error:  # noqa: BLE001  the consumer of the batches raises it again
            self._ready.put(error)


def _batch(samples: list[Sample], count: int) -> Batch:
    if not samples:
        return Batch(count)
    return Batch(count, np.stack([one.frames for one in samples]), np.array([one.label for one in samples], np.int64))


@dataclass(frozen=True, slots=True)
class Took:
    """The outcome of a run."""

    elapsed: Elapsed
    samples: int
    bytes: int
    damaged: int
    whole: bool
    """Whether all batches were made."""


def measured(
    source: Source, plan: Plan, stopped: Callable[[], bool], tell: Callable[[int], None]
) -> tuple[Took, Tally]:
    """Perform one run without training. `tell` is called with the number of batches received so far."""
    made = 0
    elapsed = stopwatch()
    with Pipeline(source, plan, stopped) as pipeline:
        for batch in pipeline:
            made += 1
            tell(made)
            del batch
        took_so_long = elapsed()
    tally = pipeline.tally
    took = Took(took_so_long, made * plan.batch, tally.bytes, len(tally.damaged), made == plan.batches)
    return took, tally
