"""Samples are rates of what was counted, a trace leaves no thread, and files hold what was sampled."""

from __future__ import annotations

import csv
import threading
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

import pytest

from essp.bench.accesses import FILE_COLUMNS, Accesses, NotedStore, write_files_csv
from essp.bench.machine import Cores, Disk, Process
from essp.bench.trace import COLUMNS, Counters, Mark, StoreCounters, Trace, sample_between, write_csv
from essp.bench.trace_plot import picture
from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore

BEFORE = Counters(10.0, Disk(1, 100, 2, 200, 0.5), Cores(5, 1), Process(10, 20, 30, 40, 2), StoreCounters(3, 30, 0), 1)
AFTER = Counters(12.0, Disk(5, 300, 2, 800, 2.5), Cores(8, 2), Process(10, 60, 10, 40, 3), StoreCounters(9, 90, 8), 5)


def test_a_sample_has_rates_and_nothing_shrinks() -> None:
    sample = sample_between(BEFORE, AFTER, began_s=4.0)
    assert astuple(sample) == (8.0, 100, 300, 2, 0, 1.0, 1.5, 0.5, 0.5, 0, 0, 0, 20, 3, 30, 4, 2)


def test_a_trace_samples_and_leaves_no_thread() -> None:
    asked = threading.Semaphore(0)

    def store() -> StoreCounters:
        asked.release()
        return StoreCounters(1, 2, 3)

    with Trace(interval_s=0.01, store=store) as trace:
        for _ in range(5):  # two at its beginning, then from the thread
            asked.acquire()
        trace.mark("half")
    times = [sample.time_s for sample in trace.samples]
    assert min(later - earlier for earlier, later in pairwise([0.0, *times])) >= 0.005
    assert times == sorted(times)
    assert times[-1] >= trace.marks[0].time_s > 0
    assert "essp-trace" not in {thread.name for thread in threading.enumerate()}


def test_a_short_trace_has_one_sample_and_an_error_ends_it() -> None:
    with pytest.raises(RuntimeError, match="work"), Trace(interval_s=3600) as trace:
        raise RuntimeError("work")
    assert len(trace.samples) == 1
    assert "essp-trace" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("interval_s", [0, -1, 1e9, float("nan")])
def test_an_interval_that_makes_no_sense_is_refused(interval_s: float) -> None:
    with pytest.raises(ConfigError, match="interval of a trace"):
        Trace(interval_s)


def test_files_hold_what_was_sampled(tmp_path: Path) -> None:
    sample = sample_between(BEFORE, AFTER, began_s=4.0)
    write_csv([sample, sample], tmp_path / "trace.csv")
    rows = list(csv.DictReader((tmp_path / "trace.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert [float(value) for value in rows[1].values()] == list(astuple(sample))
    for samples, marks in (((), ()), ((sample,), (Mark(1.0, "saved"),))):
        assert picture(samples, marks).startswith(b"\x89PNG")


def test_accesses_are_told_apart_by_file_and_direction(tmp_path: Path) -> None:
    accesses = Accesses()
    store = NotedStore(DirectoryStore(str(tmp_path)), accesses)
    store.below("folder").put("a", bytes(100))
    store.get("folder/a", 10, 20)
    store.get("folder/a", 30, 5)
    store.get("folder/a", 1, 7)
    with store.open("folder/a") as file:
        file.seek(8)
        assert len(file.read()) == 92
    (found,) = accesses.files()
    assert (found.key, found.reads, found.read_bytes) == ("folder/a", 4, 124)
    assert found.sequential_reads == 0.75  # not the one back at 1
    assert (found.smallest_read_bytes, found.median_read_bytes, found.largest_read_bytes) == (5, 13, 92)
    assert (found.writes, found.written_bytes) == (1, 100)
    assert accesses.totals() == StoreCounters(6, 124, 100)
    store.put("b", bytes(50))
    store.get("b")
    total = accesses.total()
    assert (total.reads, total.read_bytes, total.writes, total.written_bytes) == (5, 174, 2, 150)
    assert total.sequential_reads == 0.8
    write_files_csv([*accesses.files(), total], tmp_path / "files.csv")
    rows = list(csv.DictReader((tmp_path / "files.csv").read_text().splitlines()))
    assert tuple(rows[0]) == FILE_COLUMNS
    assert [row["key"] for row in rows] == ["b", "folder/a", "(all)"]
