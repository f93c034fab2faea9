"""All services of one job in this process: what `essp run`, `essp predict`, benchmarks and tests start.

    with Embedded(spec, settings) as job:
        while not job.ended(timeout_s=0.25):
            show(job.status())

Every service is built by the same `build` that its `main.py` calls, and runs in its own thread; the URLs of the
settings decide whether services communicate in memory or through real servers. Leaving the block drains: trainers save
a checkpoint, decoders finish their current work, and no threads or child processes are left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from essp.deadletters.sink import DeadLetterSink
from essp.deadletters.store import OutputEntryStore
from essp.embedded.page import Page
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.service import build as build_aggregator
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.status import JobEvent, JobState, JobStatus
from essp_common.job.usage import Usage
from essp_common.messages.control import ControlFeed, run_of
from essp_common.runtime import tracing
from essp_common.runtime.config import Settings
from essp_common.runtime.process import run_all, worker_name
from essp_common.runtime.service import Service
from essp_common.runtime.unbroken import unbroken
from essp_common.wiring import Adapters
from essp_decoder.config import DecoderSettings
from essp_decoder.service import build as build_decoder
from essp_engine.preflight.model_inputs import model_of, with_inputs
from essp_engine.preflight.preflight import Preflight
from essp_engine.worker.log_shipping import LogShipper
from essp_extractor.config import ExtractorSettings
from essp_extractor.service import build as build_extractor
from essp_master.config import MasterSettings
from essp_master.service import build as build_master

S = TypeVar("S", bound=Settings)

Consumers = Callable[[JobSpec, Adapters, ControlFeed, Settings], Sequence[Service]]
"""Builds the consumers of the job's streams."""


_POOL = "run"
"""The pool name of this process on the page; it belongs to no real pool."""
_LOOK_S = 0.2
"""How often to check whether the job has gained trainers."""
_FEATURES_BYTES = 2**33
"""Features of clips may take this much in addition to the budget: both splits of UCF-101 at 25 clips, in ten streams of
2048."""


def embedded_settings(spec: JobSpec, settings: Settings) -> Settings:
    """The settings with a memory cache that fits the job's budget, unless another cache is configured."""
    if settings.cache != "memory://":
        return settings
    # The budget counts bytes that the master has accounted for; a redelivered clip may briefly exceed it.
    features = _FEATURES_BYTES if spec.aggregation.features else 0
    return settings.model_copy(update={"cache": f"memory://?bytes={2 * spec.limits.budget + features}"})


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """How a job is run in this process."""

    fresh: bool = False
    """Remove what an earlier run of the job left."""
    page: Page | None = None
    """The page on which users watch the job; None: it has no page."""
    alone: bool = False
    """Write only to the job's output, whatever the environment says: no trackers, no traces, no burst buffer."""
    decoders: int = 0
    """Child processes that decode; 0: as in the settings."""
    consumers: Consumers | None = None
    """Builds the consumers instead of trainers or predictor (the user's own loops, benchmarks)."""


class Embedded:
    """One job with everything it needs, in this process."""

    def __init__(
        self, job: JobSpec | Preflight, settings: Settings, options: EmbeddedOptions = EmbeddedOptions()
    ) -> None:
        """Build the services. `job`: without its preflight, the master makes that at the start.

        Raises `ConfigError` for a job that cannot run.
        """
        self._checked = job if isinstance(job, Preflight) else None
        spec = job.spec if isinstance(job, Preflight) else job
        settings = embedded_settings(spec, _alone(settings) if options.alone else settings)
        worker = worker_name(settings)
        self._tracing = tracing.exported(settings.traces, settings.trace_share, _POOL, worker)
        # Closed in reverse order: the page first, then the sink, which still reads the bus, and the adapters last.
        with ExitStack() as stack:
            self.adapters = Adapters.from_settings(settings)
            stack.callback(self.adapters.close)
            if self._checked is None:  # otherwise its preflight has taken them from the model
                spec = with_inputs(spec, model_of(spec, self.adapters.stores))
            self._spec = spec
            self.control = ControlFeed(self.adapters.bus)
            """The master's commands."""
            stack.callback(self.control.close)
            sink = DeadLetterSink(
                self.adapters.bus, OutputEntryStore(self.adapters.stores.under(spec.output)), spec.name
            )
            stack.callback(sink.close)
            self.master = build_master(self.adapters, _settings(MasterSettings, settings), worker)
            decoder = _settings(DecoderSettings, settings)
            if options.decoders:
                decoder = decoder.model_copy(update={"decoder_processes": options.decoders})
            workers: list[Service] = [build_decoder(self.adapters, decoder, worker)]
            workers += _extractors(_extracted(spec), self.adapters, settings)
            workers += (options.consumers or job_consumers)(spec, self.adapters, self.control, settings)
            if spec.trainers and options.consumers is None:
                workers.append(_Later(spec, self.adapters, self.control, settings))
            self._workers = _Workers(workers)
            self._log_shipper = LogShipper(self.adapters.bus, worker, _POOL) if options.page else nullcontext()
            if options.page:
                stack.enter_context(options.page.serving(self.master))
            self._resources = stack.pop_all()
        self._observed = ExitStack()
        self._options = options
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="essp-embedded", daemon=True)

    def __enter__(self) -> Self:
        """Start the services, then the job. Raises `ConfigError` for a job that cannot run."""
        try:
            self._observed.enter_context(self._log_shipper)
            self._observed.enter_context(self._tracing)  # before the first seed is issued
            self._thread.start()
        except BaseException:
            with self._resources:
                self._observed.close()
            raise
        try:
            self.master.start(self._spec, self._options.fresh, self._checked)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let every service finish its current work and save; afterwards none of its threads and processes is left."""
        unbroken(self._close)

    def _close(self) -> None:
        self._workers.drain()
        self._workers.ended.wait()
        self.master.drain()  # last, because it accounts for what the others finish
        self._thread.join()
        self._resources.close()

    def ended(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds; returns whether the job has ended. Raises the error that stopped a
        service."""
        ended = self._stopped.wait(timeout_s) or self.state.ended
        if self._failure is not None:
            raise self._failure
        return ended

    @property
    def state(self) -> JobState:
        """The state of the job; cheap to call."""
        return self.master.state(self._spec.name)

    def status(self) -> JobStatus:
        """The full status of the job."""
        return self.master.status(self._spec.name)

    def usage(self) -> Usage:
        """What the workers use."""
        return self.master.usage()

    def events(self, after: int) -> Sequence[JobEvent]:
        """The events after event `after`."""
        return self.master.events(self._spec.name, after)

    def _run(self) -> None:
        try:
            with self._observed:
                run_all([self.master, self._workers])
        except BaseException as error:  # noqa: BLE001  raised again by `ended`
            self._failure = error
        finally:
            self._workers.ended.set()  # even if they have not started
            self._stopped.set()


class _Workers:
    """All services except the master, as one service."""

    name = "workers"

    def __init__(self, services: Sequence[Service]) -> None:
        self.ended = threading.Event()
        self._services = services

    def run(self) -> None:
        """Run until all have ended."""
        try:
            run_all(self._services)
        finally:
            self.ended.set()

    def drain(self) -> None:
        """Let all of them finish their current work."""
        for service in reversed(self._services):
            service.drain()


class _Later:
    """Runs the trainers that the job gains while it runs, each from the run that includes it, and the extractors of
    their features."""

    name = "later-trainers"

    def __init__(self, spec: JobSpec, adapters: Adapters, control: ControlFeed, settings: Settings) -> None:
        self._spec = spec
        self._adapters = adapters
        self._control = control
        self._settings = settings
        self._run_seen = 0
        """The newest run whose trainers have been started."""
        self._draining = threading.Event()
        self._started: list[tuple[threading.Thread, Service]] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Start trainers as they are added, until drained. Raises the error that stopped one of them."""
        try:
            while not self._draining.wait(_LOOK_S):
                command = self._control.latest(self._spec.name)
                if command is not None and run_of(command) != self._run_seen:
                    self._run_seen = run_of(command)
                    self._start(stored_spec(command.snapshot.spec_json, f"job {self._spec.name}"))
        finally:
            for _, service in reversed(self._started):
                service.drain()
            for thread, _ in self._started:
                thread.join()
        if self._failure is not None:
            raise self._failure

    def drain(self) -> None:
        """Let all of them finish their current work."""
        self._draining.set()

    def _start(self, spec: JobSpec) -> None:
        trainers = [name for name in spec.trainers if name not in self._spec.trainers]
        if not trainers:
            return
        features = _extracted(spec) - _extracted(self._spec)
        self._spec = spec
        services = _extractors(features, self._adapters, self._settings)
        services += _trainers(spec, trainers, self._adapters, self._control, self._settings)
        for service in services:
            thread = threading.Thread(target=self._run, args=[service], name=service.name, daemon=True)
            self._started.append((thread, service))
            thread.start()

    def _run(self, service: Service) -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001  raised again by `run`
            self._failure = self._failure or error
            self._draining.set()


def job_consumers(spec: JobSpec, adapters: Adapters, control: ControlFeed, settings: Settings) -> Sequence[Service]:
    """The trainers and the aggregator of a training job, or the predictor. Only this function loads torch."""
    worker = worker_name(settings)
    if spec.consumers:
        raise ConfigError(
            "these loops are your own: start the job on a master (`essp job start`) and take part with "
            "essp.Loader.connect(JOB, CONSUMER), or use essp.Loader(...), which needs no job file",
            field="consumers",
            code="unsupported",
        )
    if spec.predicts:
        from essp_predictor.config import PredictorSettings
        from essp_predictor.service import build as build_predictor

        return [build_predictor(adapters, _settings(PredictorSettings, settings), worker)]
    aggregator = build_aggregator(adapters, _settings(AggregatorSettings, settings), worker)
    return [*_trainers(spec, spec.trainers, adapters, control, settings), aggregator]


def _trainers(
    spec: JobSpec, names: Iterable[str], adapters: Adapters, control: ControlFeed, settings: Settings
) -> list[Service]:
    """The services of these trainers."""
    from essp_trainer.config import TrainerConfig, TrainerSettings
    from essp_trainer.service import build as build_trainer

    shared = _settings(TrainerSettings, settings).model_copy(update={"local_trainers": len(spec.trainers)})
    worker = worker_name(settings)
    configs = [TrainerConfig(job=spec.name, trainer=name, worker=worker, stays=True, settings=shared) for name in names]
    return [build_trainer(config, adapters, control) for config in configs]


def _extracted(spec: JobSpec) -> set[str]:
    """The features that extractors compute for a job."""
    return {stream.feature for stream in spec.streams.values() if stream.feature != "rgb"}


def _extractors(features: Iterable[str], adapters: Adapters, settings: Settings) -> list[Service]:
    """One extractor for these features; empty if there are no features."""
    if not (made := tuple(sorted(features))):
        return []
    extractor = _settings(ExtractorSettings, settings).model_copy(update={"features": made})
    return [build_extractor(adapters, extractor, worker_name(settings))]


def _settings(kind: type[S], settings: Settings) -> S:
    """The settings of one service: those given, and the rest from the environment."""
    return kind(**_values(settings))


def _values(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in type(settings).model_fields}


class _Alone(Settings):
    """Settings that also disable the places where individual services would write, other than the job's output."""

    tensorboard: str
    mlflow: str
    wandb: str
    burst: str


def _alone(settings: Settings) -> Settings:
    return _Alone(**_values(settings) | {"traces": "", "tensorboard": "", "mlflow": "", "wandb": "", "burst": ""})
