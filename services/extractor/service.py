"""The extractor: for each feature a pool worker (`essp_common.worker`) in a consumer group of its own."""

from __future__ import annotations

from essp_common import topics
from essp_common.control import ControlFeed
from essp_common.features import registry
from essp_common.process import cpu_count, run_all
from essp_common.service import Service
from essp_common.wiring import Adapters
from essp_common.worker import Worker, WorkerOptions
from services.extractor.config import ExtractorSettings
from services.extractor.stage import NAME, ExtractStage


class Extractor:
    """Makes features of the clips of all jobs."""

    name = NAME

    def __init__(self, adapters: Adapters, settings: ExtractorSettings, worker: str) -> None:
        """Join a group for each feature. Raises `ConfigError` for a feature that is not installed."""
        features = settings.features or tuple(name for name in registry.names() if name != "rgb")
        for feature in features:
            registry.extractor_class(feature)
        adapters.bus.ensure_topics({topics.features(f): topics.DATA_PARTITIONS for f in features})
        self._control = ControlFeed(adapters.bus)
        lanes = settings.extractor_lanes or cpu_count()
        self._workers = [_FeatureWorker(adapters, self._control, feature, worker, lanes) for feature in features]

    def run(self) -> None:
        """Extract until drained."""
        try:
            run_all(self._workers)
        finally:
            self._control.close()

    def drain(self) -> None:
        """Finish the clips in hand, then let `run` return."""
        for worker in self._workers:
            worker.drain()


class _FeatureWorker:
    """The worker of one feature."""

    def __init__(self, adapters: Adapters, control: ControlFeed, feature: str, worker: str, lanes: int) -> None:
        self.name = f"{NAME}.{feature}"
        subscription = adapters.bus.subscribe([topics.CLIPS], self.name)
        self._worker = Worker(
            self.name,
            subscription,
            lambda: ExtractStage(adapters.bus, adapters.cache, control, feature, worker),
            WorkerOptions(lanes=lanes),
        )

    def run(self) -> None:
        self._worker.run()

    def drain(self) -> None:
        self._worker.drain()


def build(adapters: Adapters, settings: ExtractorSettings, worker: str) -> Service:
    """An extractor over these adapters."""
    return Extractor(adapters, settings, worker)
