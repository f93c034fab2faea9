"""The mini-application: a training that takes its batches from the input pipeline, and how long it waits for them.

The configurations take turns, run after run. Each run begins with a new pipeline; the model continues learning. The
measured time is from the first request for a batch to the end of the last step, as in Chien and others (2018).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from essp.bench import page_cache
from essp.bench.io import IoOptions, Tell, batches_of
from essp.bench.learner import Learner
from essp.bench.pipeline import Pipeline, Plan
from essp.bench.results import Column, Results, Row, Spread
from essp.bench.sources import Damaged
from essp.bench.storages import Storage
from essp.bench.utilisation import PASSES, Step, data_wait, utilisation
from essp_common.quantities import percent
from essp_common.runtime.cores import cpu_count

_BUSY_CORES = 0.85
"""A larger share of the cores counts as all of them."""


@dataclass(frozen=True, slots=True)
class AppOptions:
    """What is measured."""

    threads: tuple[int, ...] = (1, 2, 4, 8)
    prefetch: tuple[int, ...] = (0, 1)
    batch: tuple[int, ...] = (64,)
    batches: int | None = None
    """None: one epoch, but no more than `essp bench io` takes."""
    runs: int = 6
    cold: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """The measurements of a run."""

    steps: Sequence[Step]
    seconds: float
    cpu_s: float
    """CPU time of all threads of this process."""
    samples: int
    bytes: int
    damaged: Sequence[Damaged]


def train(pipeline: Pipeline, learner: Learner, tell: Callable[[int], None]) -> Trained:
    """Train on all batches of a pipeline, which is entered here. Raises what stores and the learner raise."""
    steps: list[Step] = []
    samples = 0
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    with pipeline:
        batches = iter(pipeline)
        asked_s = begin_s
        while (taken := next(batches, None)) is not None:
            came_s = time.perf_counter()
            busy_s = learner.step(taken)
            ended_s = time.perf_counter()
            steps.append(Step(came_s - asked_s, ended_s - came_s, busy_s))
            samples += taken.count
            tell(len(steps))
            asked_s = ended_s
        cpu_s = time.process_time() - begin_cpu_s
    tally = pipeline.tally
    return Trained(steps, asked_s - begin_s, cpu_s, samples, tally.bytes, tally.damaged)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration measured in one row of the table."""

    storage: Storage
    plan: Plan

    @property
    def labels(self) -> dict[str, str | int]:
        """The labels of the row."""
        return {
            "store": self.storage.name,
            "batch": self.plan.batch,
            "prefetch": self.plan.prefetch,
            "threads": self.plan.threads,
        }


class AppBenchmark:
    """Runs the configurations. `results` returns the measurements so far at any time, even after an interruption."""

    def __init__(
        self, storages: Sequence[Storage], options: AppOptions, learner: Learner, facts: Mapping[str, object]
    ) -> None:
        self.configurations = configurations(storages, options)
        self.damaged: dict[str, Damaged] = {}
        """Samples that were left out, by name."""
        self.resident = 0
        """Files whose pages stayed in memory despite eviction."""
        self._options = options
        self._learner = learner
        self._facts = facts
        self._trained: list[list[Trained]] = [[] for _ in self.configurations]

    def run(self, stopped: Callable[[], bool], tell: Tell) -> None:
        """Run everything, or until stopped. Raises what stores and the learner raise."""
        for run in range(self._options.runs):
            for number, configuration in enumerate(self.configurations):
                if self._options.cold:
                    self.resident = max(self.resident, page_cache.evict(configuration.storage.files))
                tell(run, number, 0)
                pipeline = Pipeline(configuration.storage.source, configuration.plan, stopped)
                trained = train(pipeline, self._learner, partial(tell, run, number))
                self.damaged |= {one.name: one for one in trained.damaged}
                if stopped():
                    return
                self._trained[number].append(trained)

    def results(self) -> Results:
        """The results so far."""
        done = [pair for pair in zip(self.configurations, self._trained, strict=True) if pair[1]]
        rows = [Row(configuration.labels, _values(runs)) for configuration, runs in done]
        unit = self.configurations[0].storage.source.unit
        columns = (
            Column("seconds", "time, s", 2),
            Column("samples_per_s", f"{unit}s/s", 1),
            Column("data_wait", "data wait, %", 1, 0.01),
            Column("utilisation", "AU, %", 1, 0.01),
            Column("step_s", "step, ms", 1, 1e-3),
            Column("cpu_cores", "cores busy", 2),
        )
        facts = {
            **self._facts,
            "learner": self._learner.name,
            "damaged": len(self.damaged),
            "cores": cpu_count(),
            "machine": platform.platform(),
        }
        interrupted = any(len(runs) < self._options.runs for runs in self._trained)
        keys = ("store", "batch", "prefetch", "threads")
        return Results("app", facts, keys, columns, rows, sentences(rows, cpu_count()), interrupted)


def configurations(storages: Sequence[Storage], options: AppOptions) -> list[Configuration]:
    """All configurations, in the order of the table."""
    found = []
    for storage, batch in product(storages, options.batch):
        size = batches_of(IoOptions(batch=batch, batches=options.batches), len(storage.source), storage.source.unit)
        plan = Plan("full", batch, size, seed=options.seed)
        for prefetch, threads in product(options.prefetch, options.threads):
            found.append(Configuration(storage, replace(plan, prefetch=prefetch, threads=threads)))
    return found


def _values(runs: Sequence[Trained]) -> dict[str, Spread]:
    busy = [value for one in runs if (value := utilisation(one.steps)) is not None]
    values = {
        "seconds": Spread.of([one.seconds for one in runs]),
        "samples_per_s": Spread.of([one.samples / one.seconds for one in runs]),
        "data_wait": Spread.of([data_wait(one.steps) for one in runs]),
        "step_s": Spread.of([sum(step.step_s for step in one.steps) / max(1, len(one.steps)) for one in runs]),
        "cpu_cores": Spread.of([one.cpu_s / one.seconds for one in runs]),
        "bytes_per_s": Spread.of([one.bytes / one.seconds for one in runs]),
    }
    return {**values, "utilisation": Spread.of(busy)} if busy else values


def sentences(rows: Sequence[Row], cores: int) -> list[str]:
    """The limiting factor of each storage, and the gain from preparing batches ahead."""
    found = []
    for store in dict.fromkeys(row.labels["store"] for row in rows):
        mine = [row for row in rows if row.labels["store"] == store]
        # batches may differ in size, and so in what is read
        best = max(mine, key=lambda row: row.values["samples_per_s"].median)
        sizes = {row.labels["batch"] for row in mine}
        found.append(f"{store}: {_binds(best, cores, len(sizes) > 1)}")
    if gained := _gained(rows):
        found.append(gained)
    return found


def _binds(best: Row, cores: int, sizes_differ: bool) -> str:
    values = {name: spread.median for name, spread in best.values.items()}
    threads, prefetch = best.labels["threads"], best.labels["prefetch"]
    with_ = f"with {threads} thread{'s' if threads != 1 else ''} and prefetch {prefetch}"
    with_ += f", in batches of {best.labels['batch']}," if sizes_differ else ""
    au, wait, busy = values.get("utilisation"), values["data_wait"], values["cpu_cores"]
    if au is None:
        return f"{with_} there was one step, which says nothing of the accelerator's utilisation; give more --batches."
    passes = (
        f"AU is {percent(au)}, {'which passes' if au >= PASSES else 'below'} the {percent(PASSES, 0)} of MLPerf Storage"
    )
    if au >= PASSES:
        waits = f"data wait {percent(wait)}, with the first batch"
        return f"the accelerator is the limiting factor {with_}: {passes}; {waits}."
    if busy >= _BUSY_CORES * cores:
        cores_busy = f"{busy:.1f} of {cores} are busy"
        return f"the cores are the limiting factor {with_}: {cores_busy}. {passes}; data wait {percent(wait)}."
    return (
        f"the input is the limiting factor {with_}: {percent(wait)} of the time is spent waiting for data, and "
        f"{busy:.1f} of {cores} cores are busy. {passes}. More threads or a faster store help; essp bench io says "
        "which."
    )


def _gained(rows: Sequence[Row]) -> str:
    """The time that a batch ahead hides, if both were measured."""
    by = {tuple(row.labels.values()): row.values["seconds"].median for row in rows}
    ahead = min((int(row.labels["prefetch"]) for row in rows if row.labels["prefetch"]), default=0)
    shares = [
        by[store, batch, ahead, threads] / seconds
        for (store, batch, prefetch, threads), seconds in by.items()
        if prefetch == 0 and ahead and (store, batch, ahead, threads) in by
    ]
    if not shares:
        return ""
    least, most = (percent(share, 0) for share in (min(shares), max(shares)))
    said = f"with prefetch {ahead} training runs take {least} to {most} of the time without"
    times = [row.values["seconds"].median for row in rows if row.labels["prefetch"] == ahead]
    if len({row.labels["batch"] for row in rows}) == 1 and len(times) > 1:
        said += f", and those of all threads and stores lie within {percent(max(times) / min(times) - 1)}"
    return f"{said}."
