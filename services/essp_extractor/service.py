"""The extractor: a pool worker (`essp_engine.worker.loop`) for one or more features.

A process computes all its features from one delivery of each clip, so that they share intermediate results, especially
flow. Its consumer group is named after the features: processes with the same features share the clips, while processes
with other features get every clip too.
"""

from __future__ import annotations

import logging

from essp_common import topics
from essp_common.distribution import require
from essp_common.errors import ConfigError
from essp_common.messages.control import ControlFeed
from essp_common.runtime import ids
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.service import Service
from essp_common.runtime.troubles import Troubles
from essp_common.wiring import Adapters
from essp_engine.features import registry
from essp_engine.worker.heartbeat import Heart
from essp_engine.worker.loop import Worker, WorkerOptions
from essp_engine.worker.reports import Reports
from essp_extractor.config import ExtractorSettings
from essp_extractor.stage import ExtractStage

log = logging.getLogger(__name__)


class Extractor:
    """Computes the features of the clips of all jobs."""

    name = ids.EXTRACTOR

    def __init__(self, adapters: Adapters, settings: ExtractorSettings, worker: str) -> None:
        """Join the consumer group of these features. Raises `ConfigError` if a named feature does not load, or if rgb
        is named."""
        if "rgb" in settings.features:
            raise ConfigError(
                "rgb is the clip itself, which its trainers read; leave it out of --feature and ESSP_FEATURES",
                code="conflict",
            )
        features = settings.features or _loadable()
        for feature in features:
            if registry.extractor_class(feature).__module__.startswith(f"{__package__}."):
                require(f"the feature {feature!r}", "cv2")  # loaded by `setup`, in the lanes of the worker
        adapters.bus.ensure_topics({topics.features(f): adapters.bus.partitions for f in features})
        self._bus = adapters.bus
        self._control: ControlFeed
        """Set by `run`, so that an extractor that never runs has no feed thread."""
        group = ids.extractor_pool(features)
        pool = group if settings.features else ids.EXTRACTOR
        reports = Reports(adapters.bus, worker)
        self._worker = Worker(
            group,
            adapters.bus.subscribe([topics.CLIPS], group),
            adapters.cache,
            lambda: ExtractStage(adapters.bus, adapters.cache, self._control, features, reports, worker),
            reports,
            WorkerOptions(lanes=settings.extractor_lanes or cpu_count(), stuck_s=settings.stuck_s),
            lambda: self._control.is_paused(pool),
        )

        def troubles() -> Troubles:
            return {**adapters.troubles(), **self._worker.troubles()}

        self._heart = Heart(adapters.bus, worker, pool, self._worker.gauges, troubles=troubles)

    def run(self) -> None:
        """Extract until drained."""
        self._control = ControlFeed(self._bus)
        try:
            with self._heart:
                self._worker.run()
        finally:
            self._control.close()

    def drain(self) -> None:
        """Finish the current clips, then let `run` return."""
        self._worker.drain()


def _loadable() -> tuple[str, ...]:
    """All installed features except rgb. One that does not load is skipped: possibly no job needs it."""
    found = []
    for name in sorted({*registry.names()} - {"rgb"}):
        try:
            registry.extractor_class(name)
        except ConfigError as error:
            log.warning("left out, as no features were named: %s", error)
        else:
            found.append(name)
    return tuple(found)


def build(adapters: Adapters, settings: ExtractorSettings, worker: str) -> Service:
    """Build an extractor over these adapters."""
    return Extractor(adapters, settings, worker)
