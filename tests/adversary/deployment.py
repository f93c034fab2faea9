"""A whole deployment in this process, for any number of jobs: every service in a thread of its own, over a memory bus.

What a storm must not do is end one of the services; `check` raises what ended one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from essp.deadletters.sink import DeadLetterSink
from essp.deadletters.store import OutputEntryStore
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.service import build as build_aggregator
from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobStatus
from essp_common.messages.control import ControlFeed
from essp_common.runtime.config import Settings
from essp_common.runtime.service import Service
from essp_common.wiring import Adapters
from essp_decoder.config import DecoderSettings
from essp_decoder.service import build as build_decoder
from essp_extractor.config import ExtractorSettings
from essp_extractor.service import build as build_extractor
from essp_master.config import MasterSettings
from essp_master.service import build as build_master
from essp_predictor.config import PredictorSettings
from essp_predictor.service import build as build_predictor
from essp_trainer.config import TrainerConfig, TrainerSettings
from essp_trainer.service import build as build_trainer
from tests.harness.waiting import until


class Deployment:
    """Master, decoder, extractor, aggregator and predictor; trainers come and go with each job."""

    def __init__(self, folder: Path) -> None:
        self.adapters = Adapters.from_settings(Settings(stores=("file:///",), cache="memory://?bytes=64MiB"))
        self.control = ControlFeed(self.adapters.bus)
        output = self.adapters.stores.under(f"file://{folder}/kept")
        self.sink = DeadLetterSink(self.adapters.bus, OutputEntryStore(output), "calm")
        self.master = build_master(self.adapters, MasterSettings(stall_s=5.0), "m")
        self._services: list[Service] = [
            self.master,
            build_decoder(self.adapters, DecoderSettings(stores=("file:///",), decoder_processes=1), "d"),
            build_extractor(self.adapters, ExtractorSettings(features=("flow",), extractor_lanes=1), "e"),
            build_aggregator(self.adapters, AggregatorSettings(), "a"),
            build_predictor(self.adapters, PredictorSettings(), "p"),
        ]
        self._ended: dict[str, BaseException | None] = {}
        self._threads = [self._begun(service) for service in self._services]

    def close(self) -> None:
        """Leave no thread behind."""
        for service in reversed(self._services):
            service.drain()
        for thread in self._threads:
            thread.join()
        self.sink.close()
        self.control.close()
        self.adapters.close()

    def check(self) -> None:
        """Every service lives."""
        for name, error in self._ended.items():
            raise AssertionError(f"{name} has ended") from error
        assert self.sink._thread.is_alive()
        assert self.control._thread.is_alive()

    @contextmanager
    def started(self, spec: JobSpec) -> Iterator[None]:
        """A job with its trainers, for as long as this block lasts; what stops a trainer concerns its job alone."""
        settings = TrainerSettings(report_interval_s=0.05, local_trainers=len(spec.trainers))
        configs = [TrainerConfig(job=spec.name, trainer=t, worker="t", settings=settings) for t in spec.trainers]
        trainers = [build_trainer(config, self.adapters, self.control) for config in configs]
        threads = [threading.Thread(target=_quietly, args=(t,), name=f"{spec.name}-{t.name}") for t in trainers]
        for thread in threads:
            thread.start()
        try:
            self.master.start(spec)
            yield
        finally:
            for trainer in trainers:
                trainer.drain()
            for thread in threads:
                thread.join()

    def ended(self, name: str) -> JobStatus:
        """Wait for the end of a job."""
        until(lambda: bool(self._ended) or self.master.status(name).state.ended, f"{name} did not end")
        self.check()
        return self.master.status(name)

    def run(self, spec: JobSpec) -> JobStatus:
        """Run a job to its end."""
        with self.started(spec):
            return self.ended(spec.name)

    def settle(self, groups: Sequence[tuple[str, str]]) -> None:
        """Wait until these groups have read these topics."""

        def read() -> bool:
            return bool(self._ended) or not any(self.adapters.bus.backlog(topic, group) for topic, group in groups)

        until(read, "the records are not read")
        self.check()

    def _begun(self, service: Service) -> threading.Thread:
        def run() -> None:
            error: BaseException | None = None
            try:
                service.run()
            except BaseException as raised:  # noqa: BLE001  `check` raises it
                error = raised
            finally:
                self._ended[service.name] = error

        thread = threading.Thread(target=run, name=f"adversary-{service.name}")
        thread.start()
        return thread


def _quietly(trainer: Service) -> None:
    """A trainer that cannot go on says so to the master, and ends."""
    with suppress(EsspError):
        trainer.run()
