"""The driver that only observes: workers are started by other means, and the master recommends their number."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set

from essp_common.runtime.conditions import Subject
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.port import PoolSize, TrainingKey
from essp_master.pools.worker_registry import WorkerRegistry

log = logging.getLogger(__name__)


class ObserveOnlyDriver:
    """Implements `essp_master.pools.port.PoolDriver`. Learns about pools from heartbeats."""

    def __init__(self, worker_registry: WorkerRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = worker_registry
        self._clock = clock

    def start(self, changed: Callable[[], None]) -> None:
        """Do nothing: heartbeats show which workers are up."""

    def sizes(self) -> Mapping[str, PoolSize]:
        """Return the sizes of the pools; the workers that are up also count as requested."""
        pools = self._registry.pools(self._clock())
        return {name: PoolSize(state.ready, state.ready) for name, state in pools.items()}

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Do nothing: the reconciler has logged the decision."""

    def repair(self) -> list[str]:
        """Return an empty list: no worker is known to be missing."""
        return []

    def add_extractor(self, row: ExtractorRow) -> None:
        """Log the recommendation."""
        log.info("extractor %s is registered; start workers of %s", row.name, row.image)

    def remove(self, pool: str) -> None:
        """Log the recommendation."""
        log.info("pool %s is not registered any more; its workers may be stopped", pool)

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Log the recommendation."""
        log.info("job %s: trainer %s should run on %d ranks", job, trainer, ranks)

    def trainings(self) -> Mapping[TrainingKey, int]:
        """Return an empty mapping: this driver starts no trainers."""
        return {}

    def failed(self) -> Set[TrainingKey]:
        """Return an empty set: this driver starts no trainers."""
        return frozenset()

    def done(self) -> Set[TrainingKey]:
        """Return an empty set: this driver starts no trainers."""
        return frozenset()

    def tell(self, pool: str, sentence: str) -> None:
        """Do nothing: the log has it."""

    def troubles(self) -> Mapping[Subject, str]:
        """Return an empty mapping: this driver starts no workers."""
        return {}

    def close(self) -> None:
        """Do nothing."""
