"""A reconciler over a driver that records its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from essp_common.pb.v1.messages_pb2 import Heartbeat
from essp_common.runtime.conditions import Condition, Subject
from essp_engine.features.declared import DeclaredOutput
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.pool_events import PoolEvents
from essp_master.pools.port import PoolSize, TrainingKey
from essp_master.pools.reconciler import Reconciler
from essp_master.pools.rule_book import PoolRuleBook
from essp_master.pools.rules import PoolRules
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.status.pool_demand import PoolDemand, TrainerDemand
from tests.harness.fleet import Clock
from tests.harness.statuses import WHEN

IMAGE = "registry.example/depth@sha256:" + "0f" * 32
DEPTH = ExtractorRow(name="depth", image=IMAGE, output=DeclaredOutput(shape=("T",)), min=2, max=3)


class Recorded:
    """A driver that records its calls."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.replicas = sizes
        self.bounds = (1, 64)
        self.cores: int | None = None
        self.told: list[tuple[Any, ...]] = []
        self.registered: set[str] = set()
        self.present: dict[TrainingKey, int] = {}
        self.held_up = ""
        self.failing: set[TrainingKey] = set()
        self.ended: set[TrainingKey] = set()
        self.said: list[tuple[str, str]] = []

    def start(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def sizes(self) -> Mapping[str, PoolSize]:
        return {
            name: PoolSize(size, size, *self.bounds, self.cores, name in self.registered, self.held_up)
            for name, size in self.replicas.items()
        }

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        self.told.append(("scale", pool, replicas, *spare))
        self.replicas[pool] = replicas

    def repair(self) -> list[str]:
        return []

    def add_extractor(self, row: ExtractorRow) -> None:
        self.told.append(("add", row.name))
        self.replicas[f"extractor.{row.name}"] = row.min
        self.registered.add(f"extractor.{row.name}")

    def remove(self, pool: str) -> None:
        self.told.append(("remove", pool))
        del self.replicas[pool]

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        self.told.append(("train", job, trainer, ranks))
        self.ended -= set() if ranks else {(job, trainer)}

    def trainings(self) -> Mapping[TrainingKey, int]:
        return self.present

    def failed(self) -> Set[TrainingKey]:
        return self.failing

    def done(self) -> Set[TrainingKey]:
        return self.ended

    def tell(self, pool: str, sentence: str) -> None:
        self.said.append((pool, sentence))

    def troubles(self) -> Mapping[Subject, str]:
        return {}

    def close(self) -> None:
        self.told.append(("close",))


def training(name: str, wait: float, losses: Sequence[float] = ()) -> TrainerDemand:
    """A training on the stream of its name that waits for so much of its time."""
    return TrainerDemand(
        name=name,
        stream=name,
        model="small",
        final=False,
        clips_per_s=10.0,
        data_wait_ratio=wait,
        losses=tuple(losses),
    )


def job(wait: float = 0.5, decoded: int = 0, **changes: Any) -> PoolDemand:
    """A running job of two trainers that wait for so much of their time."""
    plain = PoolDemand(
        job="demo",
        created=WHEN,
        running=True,
        streams={"rgb": "rgb", "flow": "flow"},
        epoch_clips=100,
        backlog={"decoder": 5, "flow": 0},
        done={"decoder": decoded},
        out_of_credit=True,
        trainers=(training("rgb", wait), training("flow", wait)),
    )
    return replace(plain, **changes)


class ReconcilerBench:
    """A reconciler over a recorded driver."""

    def __init__(self, rules: PoolRules | None = None, events: PoolEvents | None = None, /, **sizes: int) -> None:
        self.clock = Clock()
        self.driver = Recorded(sizes)
        self.worker_registry = WorkerRegistry()
        self.jobs: list[PoolDemand] = []
        self.rows: dict[str, ExtractorRow] = {}
        self.conditions: list[Condition] = []
        self.lanes = 1
        self.told: list[set[str]] = []
        """The paused pools, each time that workers were told of them."""
        self.book = PoolRuleBook(rules, lambda: self.rows, clock=self.clock)
        self.reconciler = Reconciler(
            self.driver,
            self.worker_registry,
            lambda: self.jobs,
            self.book,
            clock=self.clock,
            conditions=lambda: self.conditions,
            tell_paused=lambda pools: self.told.append(set(pools)),
            events=events,
        )

    def beat(self, worker: str, busy: float, pool: str = "decoder", queue: int = 0) -> None:
        gauges = {"busy": busy, "in_hand": 1, "oldest": 0, "lanes": self.lanes, "queue": queue}
        self.worker_registry.note(worker, Heartbeat(pool=pool, gauges=gauges), self.clock())

    def pass_time(self, seconds: int, decoded_per_s: float, wait: float) -> None:
        done = 0.0
        for _ in range(0, seconds, 10):
            self.clock.now_s += 10
            done += 10 * decoded_per_s
            for number in range(self.driver.replicas["decoder"]):
                self.beat(f"w{number}", 1.0 if wait else 0.1)
            self.jobs = [job(wait, round(done))]
            self.reconciler.step()
