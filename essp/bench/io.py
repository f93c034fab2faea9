"""Benchmarks input pipelines without training: storages x pipelines x prefetch x threads.

All configurations are measured in turn, run after run, so that a slow period of the machine affects each of them. The
first run of each is discarded. Raw reads of the same bytes are measured as the upper bound, and the limiting factor is
named for each storage and pipeline.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from essp.bench import page_cache
from essp.bench.bound import bound
from essp.bench.pipeline import Kind, Plan, Took, measured
from essp.bench.results import Column, Results, Row, Spread
from essp.bench.sources import Damaged
from essp.bench.storages import Storage
from essp.bench.verdict import Case, Measured, judge
from essp_common.errors import ConfigError
from essp_common.runtime.cores import cpu_count

BOUND = "raw"
"""The name of raw reads in tables. They pass through no pipeline."""
DEFAULT_BATCHES = 256


@dataclass(frozen=True, slots=True)
class IoOptions:
    """What to measure."""

    kinds: tuple[Kind, ...] = ("full",)
    threads: tuple[int, ...] = (1, 2, 4, 8)
    prefetch: tuple[int, ...] = (0,)
    batch: int = 64
    batches: int | None = None
    """None: one epoch, limited to `DEFAULT_BATCHES`."""
    runs: int = 6
    cold: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration that one row of the table measures."""

    storage: Storage
    kind: Kind | None
    """None: raw reads."""
    plan: Plan

    @property
    def labels(self) -> dict[str, str | int]:
        """The labels of the row."""
        plan = self.plan
        prefetch = "" if self.kind is None else plan.prefetch
        return {
            "store": self.storage.name,
            "pipeline": self.kind or BOUND,
            "prefetch": prefetch,
            "threads": plan.threads,
        }


Tell = Callable[[int, int, int], None]
"""Called with the progress: the run and the configuration, both counted from 0, and the number of batches made."""


def batches_of(options: IoOptions, samples: int, unit: str) -> int:
    """The number of batches in a run. Raises `ConfigError` if the source is smaller than one batch."""
    if options.batches is not None:
        return options.batches
    if samples < options.batch:
        raise ConfigError(
            f"the source has {samples} {unit}s, fewer than a batch; give --batch {samples}, or --batches", code="range"
        )
    return min(DEFAULT_BATCHES, samples // options.batch)


def configurations(storages: Sequence[Storage], options: IoOptions) -> list[Configuration]:
    """All configurations, in the order of the table."""
    found = []
    for storage in storages:
        size = batches_of(options, len(storage.source), storage.source.unit)
        plan = Plan("read", options.batch, size, seed=options.seed)
        found += [Configuration(storage, None, replace(plan, threads=threads)) for threads in options.threads]
        for kind, prefetch, threads in product(options.kinds, options.prefetch, options.threads):
            found.append(Configuration(storage, kind, replace(plan, kind=kind, prefetch=prefetch, threads=threads)))
    return found


class IoBenchmark:
    """Runs the configurations. `results` returns what has been measured so far, also after an interruption."""

    def __init__(self, storages: Sequence[Storage], options: IoOptions, facts: Mapping[str, object]) -> None:
        self.configurations = configurations(storages, options)
        self._options = options
        self._facts = facts
        self._took: list[list[Took]] = [[] for _ in self.configurations]
        self.damaged: dict[str, Damaged] = {}
        """Samples that were left out, by name."""
        self.resident = 0
        """Files whose pages stayed in memory despite the request to evict them."""

    def run(self, stopped: Callable[[], bool], tell: Tell) -> None:
        """Performs all runs, or stops early if `stopped` says so. Raises what stores raise."""
        for run in range(self._options.runs):
            for number, configuration in enumerate(self.configurations):
                if self._options.cold:
                    self.resident = max(self.resident, page_cache.evict(configuration.storage.files))
                tell(run, number, 0)
                took = self._once(configuration, stopped, partial(tell, run, number))
                if stopped():
                    return
                self._took[number].append(took)

    def results(self) -> Results:
        """The results so far."""
        rows = [
            Row(configuration.labels, _values(took))
            for configuration, took in zip(self.configurations, self._took, strict=True)
            if took
        ]
        unit = self.configurations[0].storage.source.unit
        columns = (
            Column("samples_per_s", f"{unit}s/s", 0 if _most(rows, "samples_per_s") >= 100 else 2),
            Column("bytes_per_s", "MB/s", 1, 1e6),
            Column("cpu_cores", "cores busy", 2),
            Column("of_raw", "of raw, %", 0, 0.01),
            Column("speedup", "x 1st row", 2),
        )
        rows = list(_compared(rows))
        partial = any(len(took) < self._options.runs for took in self._took)
        keys = ("store", "pipeline", "prefetch", "threads")
        facts = {**self._facts, "damaged": len(self.damaged), "cores": cpu_count(), "machine": platform.platform()}
        return Results("io", facts, keys, columns, rows, self._sentences(rows), partial)

    def _once(self, configuration: Configuration, stopped: Callable[[], bool], tell: Callable[[int], None]) -> Took:
        source = configuration.storage.source
        if configuration.kind is None:
            return bound(source, configuration.plan, stopped)
        took, tally = measured(source, configuration.plan, stopped, tell)
        self.damaged |= {one.name: one for one in tally.damaged}
        return took

    def _sentences(self, rows: Sequence[Row]) -> list[str]:
        sentences = []
        storages = {configuration.storage.name: configuration.storage for configuration in self.configurations}
        for name, kind, prefetch in product(storages, self._options.kinds, self._options.prefetch):
            storage = storages[name]
            mine = _measured(rows, store=name, pipeline=kind, prefetch=prefetch)
            raw = _measured(rows, store=name, pipeline=BOUND)
            if mine and raw:
                title = f"{name}, {kind}" + (f", prefetch {prefetch}" if len(self._options.prefetch) > 1 else "")
                case = Case(title, storage.source.unit, mine, raw, cpu_count(), storage.network, kind == "full")
                sentences.append(judge(case).sentence)
        return sentences


def _values(took: Sequence[Took]) -> dict[str, Spread]:
    return {
        "samples_per_s": Spread.of([one.samples / one.elapsed.seconds for one in took]),
        "bytes_per_s": Spread.of([one.bytes / one.elapsed.seconds for one in took]),
        "cpu_cores": Spread.of([one.elapsed.cpu_s / one.elapsed.seconds for one in took]),
        "other_cores": Spread.of([one.elapsed.others_s / one.elapsed.seconds for one in took]),
        "seconds": Spread.of([one.elapsed.seconds for one in took]),
        "damaged": Spread.of([one.damaged for one in took]),
    }


def _compared(rows: Sequence[Row]) -> Iterable[Row]:
    """Each row with its share of raw reads with the same number of threads, and its speedup over the fewest threads."""
    rates = {tuple(row.labels.values()): row.values["samples_per_s"].median for row in rows}
    for row in rows:
        store, pipeline, prefetch, threads = row.labels.values()
        alike = [key for key in rates if key[:3] == (store, pipeline, prefetch)]
        rate, first = row.values["samples_per_s"].median, rates[min(alike, key=lambda key: int(key[3]))]
        more = {"speedup": Spread((rate / first,))}
        raw = rates.get((store, BOUND, "", threads))
        if raw and pipeline != BOUND:
            more["of_raw"] = Spread((rate / raw,))
        yield Row(row.labels, {**row.values, **more})


def _measured(rows: Iterable[Row], **labels: str | int) -> list[Measured]:
    return [
        Measured(
            int(row.labels["threads"]), *(row.values[n].median for n in ("samples_per_s", "cpu_cores", "other_cores"))
        )
        for row in rows
        if all(row.labels[name] == value for name, value in labels.items())
    ]


def _most(rows: Iterable[Row], name: str) -> float:
    return max((row.values[name].median for row in rows), default=0.0)
