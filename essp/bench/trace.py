"""Records the activity of disks, cores, this process and the object store during a benchmark, second by second.

    with Trace(folders=["/data"]) as trace:
        work()
    write_csv(trace, "trace.csv")

It replaces dstat and iostat in a measurement. Disk values cover all processes of the machine; process values cover this
process and its children. A value is the mean rate over its interval, and its time is the end of the interval, so values
stay correct if the system delays a reading. No interval is shorter than half of the requested length, unless the whole
trace is.

One thread takes the samples. It ends with the `with` block, also after an error in it.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from essp.bench.machine import Cores, Disk, Machine, Process
from essp_common.errors import ConfigError
from essp_common.runtime.metrics import STORE_REQUESTS


class StoreCounters(NamedTuple):
    """Requests and bytes of object stores so far."""

    requests: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters at one moment."""

    at_s: float
    disk: Disk
    cores: Cores
    process: Process
    store: StoreCounters
    s3_requests: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The rates during one interval."""

    time_s: float
    """End of the interval, counted from the start of the trace."""
    disk_read_bytes_per_s: float
    disk_written_bytes_per_s: float
    disk_reads_per_s: float
    disk_writes_per_s: float
    disk_busy: float
    """Share of the time in which a disk had a request, summed over disks."""
    machine_cpu_cores: float
    """Cores in use by all processes."""
    machine_waiting_cores: float
    """Cores that were idle while something waited for a disk."""
    process_cpu_cores: float
    process_read_bytes_per_s: float
    """Bytes that a disk had to deliver; 0 if files are in the page cache."""
    process_written_bytes_per_s: float
    process_asked_read_bytes_per_s: float
    """Bytes read with system calls, whether from the page cache or not."""
    process_asked_written_bytes_per_s: float
    store_requests_per_s: float
    store_read_bytes_per_s: float
    store_written_bytes_per_s: float
    s3_requests_per_s: float
    """HTTP requests of this process, including retries."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at a point in time."""

    time_s: float
    what: str


COLUMNS = tuple(field.name for field in fields(Sample))


def sample_between(before: Counters, after: Counters, began_s: float) -> Sample:
    """The rates between two readings.

    A counter that decreases, because a process ended without being waited for, counts as 0.
    """
    took_s = after.at_s - before.at_s

    def rate(earlier: float, later: float) -> float:
        return max(0.0, later - earlier) / took_s

    return Sample(
        time_s=after.at_s - began_s,
        disk_read_bytes_per_s=rate(before.disk.read_bytes, after.disk.read_bytes),
        disk_written_bytes_per_s=rate(before.disk.written_bytes, after.disk.written_bytes),
        disk_reads_per_s=rate(before.disk.reads, after.disk.reads),
        disk_writes_per_s=rate(before.disk.writes, after.disk.writes),
        disk_busy=rate(before.disk.busy_s, after.disk.busy_s),
        machine_cpu_cores=rate(before.cores.busy_s, after.cores.busy_s),
        machine_waiting_cores=rate(before.cores.waiting_s, after.cores.waiting_s),
        process_cpu_cores=rate(before.process.cpu_s, after.process.cpu_s),
        process_read_bytes_per_s=rate(before.process.read_bytes, after.process.read_bytes),
        process_written_bytes_per_s=rate(before.process.written_bytes, after.process.written_bytes),
        process_asked_read_bytes_per_s=rate(before.process.asked_read_bytes, after.process.asked_read_bytes),
        process_asked_written_bytes_per_s=rate(before.process.asked_written_bytes, after.process.asked_written_bytes),
        store_requests_per_s=rate(before.store.requests, after.store.requests),
        store_read_bytes_per_s=rate(before.store.read_bytes, after.store.read_bytes),
        store_written_bytes_per_s=rate(before.store.written_bytes, after.store.written_bytes),
        s3_requests_per_s=rate(before.s3_requests, after.s3_requests),
    )


class Trace:
    """Takes samples while its `with` block runs. `mark` may be called from any thread."""

    def __init__(
        self,
        interval_s: float = 1.0,
        folders: Iterable[str] = (),
        store: Callable[[], StoreCounters] = StoreCounters,
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folders`: see `Machine`. `store`: returns the counters of object stores. Raises `ConfigError` without
        `/proc`."""
        if not 0.01 <= interval_s <= 3600:
            raise ConfigError(
                f"the interval of a trace must be between 0.01 and 3600 seconds, and not {interval_s}", code="range"
            )
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []
        self.interval_s = interval_s
        self._machine = machine or Machine(folders)
        self.disks = self._machine.disks
        """Names of the watched disks."""
        self._store = store
        self._clock = clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="essp-trace", daemon=True)
        self._before = self._last = self._began = self._counters()

    def __enter__(self) -> Trace:
        self._last = self._began = self._counters()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def mark(self, what: str) -> None:
        """Record an event that happens now, to be shown in the plot."""
        self.marks.append(Mark(self._clock() - self._began.at_s, what))

    def _run(self) -> None:
        due_s = self._began.at_s + self.interval_s
        while not self._ended.wait(max(0.0, due_s - self._clock())):
            self._take(self._counters())
            # After a delayed reading, the next one is at least half an interval later.
            due_s = max(due_s + self.interval_s, self._clock() + self.interval_s / 2)
        now = self._counters()
        if self.samples and now.at_s - self._last.at_s < self.interval_s / 2:
            # a short remainder gives no rate, because core times are counted in hundredths of a second
            self.samples.pop()
            self._last = self._before
        self._take(now)

    def _take(self, now: Counters) -> None:
        if now.at_s > self._last.at_s:
            self.samples.append(sample_between(self._last, now, self._began.at_s))
            self._before, self._last = self._last, now

    def _counters(self) -> Counters:
        machine = self._machine
        return Counters(
            self._clock(), machine.disk(), machine.cores(), machine.process(os.getpid()), self._store(), s3_requests()
        )


def s3_requests() -> int:
    """Number of requests that this process has sent to S3."""
    samples = (sample for family in STORE_REQUESTS.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))


def write_csv(samples: Iterable[Sample], path: Path) -> None:
    """Write one line per interval, with `COLUMNS` as the header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for sample in samples:
            writer.writerow(f"{value:.6g}" for value in astuple(sample))
