"""The decoder: the pool worker (`essp_engine.worker.loop`) with one child process per lane."""

from __future__ import annotations

from essp_common import topics
from essp_common.distribution import require
from essp_common.messages.control import ControlFeed
from essp_common.runtime import ids
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.service import Service
from essp_common.runtime.troubles import Troubles
from essp_common.wiring import Adapters
from essp_decoder.config import DecoderSettings
from essp_decoder.probes import Probes
from essp_decoder.stage import DecodeStage
from essp_engine.decoding.block_cache import BlockCache
from essp_engine.decoding.sandbox import Sandbox
from essp_engine.worker.heartbeat import Heart
from essp_engine.worker.loop import Worker, WorkerOptions
from essp_engine.worker.reports import Reports


class Decoder:
    """Decodes the seeds of all jobs."""

    name = ids.DECODER

    def __init__(self, adapters: Adapters, settings: DecoderSettings, worker: str) -> None:
        self._adapters = adapters
        self._options = settings.sandbox()
        self._roots = settings.stores
        self._videos = BlockCache(settings.decoder_cache) if settings.decoder_cache else None
        self._name = worker
        self._control: ControlFeed
        """Set by `run`, so that a decoder that never runs has no feed thread."""
        self._reports = Reports(adapters.bus, worker)
        lanes = settings.decoder_processes or cpu_count()
        subscription = adapters.bus.subscribe([topics.SEEDS], ids.DECODER)
        options = WorkerOptions(lanes=lanes, patience_s=settings.store_patience_s, stuck_s=settings.stuck_s)
        self._worker = Worker(
            ids.DECODER,
            subscription,
            adapters.cache,
            self._stage,
            self._reports,
            options,
            lambda: self._control.is_paused(ids.DECODER),
        )

        def troubles() -> Troubles:
            return {**adapters.troubles(), **self._worker.troubles()}

        self._heart = Heart(adapters.bus, worker, ids.DECODER, self._worker.gauges, troubles=troubles)

    def run(self) -> None:
        """Decode until drained. Raises `Unavailable` if child processes cannot be started."""
        self._control = ControlFeed(self._adapters.bus)
        try:
            with self._heart:
                self._worker.run()
        finally:
            self._control.close()

    def drain(self) -> None:
        """Finish the current messages, then let `run` return."""
        self._worker.drain()

    def _stage(self) -> DecodeStage:
        adapters, sandbox = self._adapters, Sandbox(self._options, self._videos)
        probes = Probes(adapters.cache, self._roots, self._name)
        return DecodeStage(adapters.bus, adapters.cache, self._control, sandbox, self._reports, self._name, probes)


def build(adapters: Adapters, settings: DecoderSettings, worker: str) -> Service:
    """Build a decoder over these adapters. Raises `ConfigError` if PyAV, which its children load, is not installed."""
    require("a decoder", "av")
    return Decoder(adapters, settings, worker)
