"""The aggregator: fuses the trainers of a job when the last one is done, and reports the result.

It reads `essp.progress` in its own consumer group, and everything else from the job's output store. It keeps no state:
if it is killed, its successor gets the same message and writes the same model.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial

from essp_aggregator.assembly import assemble, final_checkpoints
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.early import Early, command_of
from essp_aggregator.load import AggregatorLoad
from essp_aggregator.search import Search
from essp_aggregator.sharing import Helper, SharedSearch
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import Evaluation, FusedModel
from essp_common.bus.port import Record, Subscription
from essp_common.bus.reading import batches
from essp_common.distribution import require
from essp_common.errors import EsspError, TransientError
from essp_common.failures import reason_of
from essp_common.job.changes import after_all
from essp_common.job.spec import stored_spec
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import AGGREGATOR, ERROR, ClipRef, Control, Failed, Finished, Progress
from essp_common.runtime import ids
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.retry import Outage
from essp_common.runtime.threads import guarded
from essp_common.wiring import Adapters

log = logging.getLogger(__name__)

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class _Done:
    """A trainer has reported its final checkpoint."""

    job: str
    trainer: str
    fence: int
    """Fence of the trainer's run of the job; the result is reported for that run, not for a later one. 0: unknown."""


class Aggregator:
    """Fuses the trainers of each job when the last one is done."""

    name = ids.AGGREGATOR

    def __init__(self, adapters: Adapters, settings: AggregatorSettings, worker: str) -> None:
        self._bus = adapters.bus
        self._stores = adapters.stores
        self._cache = adapters.cache
        self._settings = settings
        self._worker = worker
        self._draining = threading.Event()
        self._processes = settings.aggregator_processes or cpu_count()
        self._load = AggregatorLoad(self._processes)
        self._helper = Helper(adapters, self._processes, self._load, self._draining)
        self._early = Early(adapters.bus, self._draining.is_set)

    def run(self) -> None:
        """Read the progress of all jobs until drained."""
        control = ControlFeed(self._bus)
        subscription = self._bus.subscribe([topics.PROGRESS], ids.AGGREGATOR)
        helper = guarded("essp-search", partial(self._helper.run, control), self.drain)
        helper.start()
        try:
            for records in batches(subscription, self._draining, self.name, self._settings.poll_records, _POLL_S):
                is_paused = control.is_paused(self.name)
                (subscription.pause if is_paused else subscription.resume)()
                if is_paused and not records:
                    self._draining.wait(_POLL_S)
                    continue
                for record in (*self._early.take_known(control), *records):
                    if not self._handle(record, control, subscription):
                        return
                for record in self._early.take_unannounced():
                    subscription.done(record)
        finally:
            self._draining.set()
            helper.join()
            subscription.close()
            control.close()

    def drain(self) -> None:
        """Finish the current job, then let `run` return."""
        self._draining.set()

    def gauges(self) -> dict[str, float]:
        """How busy it is, and what waits for aggregators, for its heartbeats."""
        return self._load.gauges()

    def _handle(self, record: Record, control: ControlFeed, subscription: Subscription) -> bool:
        """Handle one message. Returns False if drained before it was done; the message is then delivered again."""
        done = _training_done(record)
        if done is not None:
            command = command_of(done.job, done.fence, control)
            if command is None:
                self._early.add(record, done.job, done.fence)
                return True
            if not self._answered(done, command, control):
                return False
        subscription.done(record)
        return True

    def _answered(self, done: _Done, command: Control, control: ControlFeed) -> bool:
        """Fuse, retrying until the servers answer. Returns False if drained first."""
        outage = Outage(self.name, self._draining.wait)
        while True:
            with outage, self._load.working():
                self._fuse_or_fail(done, control.latest(done.job) or command, control)
                return True
            if self._draining.is_set():
                return False

    def _fuse_or_fail(self, done: _Done, command: Control, control: ControlFeed) -> None:
        """Fuse a job whose trainers are done. An error fails only this job; other jobs are still fused."""
        job = done.job
        said = Progress(job=job, worker=self._worker, fence=done.fence or command.fence)
        try:
            finished = self._fused(done, command, control)
            if finished is None:
                return
            said.finished.CopyFrom(finished)
        except TransientError:
            raise
        except EsspError as error:
            log.warning("job %s cannot be fused: %s", job, error, extra={"job_id": job})  # the master reports it, too
            said.failed.CopyFrom(_failed(job, error))
        except Exception as error:
            log.exception("job %s failed with an unexpected error", job, extra={"job_id": job})
            said.failed.CopyFrom(_failed(job, error))
        self._bus.publish(topics.PROGRESS, job.encode(), said.SerializeToString())
        self._bus.flush()

    def _fused(self, done: _Done, command: Control, control: ControlFeed) -> Finished | None:
        """Write the model of a job; None while any of its trainers is still running."""
        job = done.job
        spec = stored_spec(command.snapshot.spec_json, f"job {job}")
        store = self._stores.under(spec.output)
        finals = final_checkpoints(store, spec)
        command = control.latest(job) or command  # the strategies may have changed meanwhile
        spec = after_all(spec, command.changes)
        if finals is None:
            about = {"job_id": job}
            log.info("job %s: %s is done; waiting for its other trainers", job, done.trainer, extra=about)
            return None
        alone, fence = Search(self._processes, job), done.fence or command.fence
        is_over = partial(control.ended, job, fence)
        search = SharedSearch(self._bus, store, job, fence, alone, self._load, self._draining.wait, is_over)
        model = assemble(store, self._cache, job, spec, finals, self._stores, search)
        return Finished(
            job=job,
            stage=AGGREGATOR,
            uri=store.uri(layout.MODEL_MANIFEST),
            metrics=_metrics(model),
            changes=len(command.changes),
        )


def build(adapters: Adapters, settings: AggregatorSettings, worker: str) -> Aggregator:
    """Build an aggregator. Several of them share the jobs.

    Raises `ConfigError` where SciPy is not installed, which most strategies are fitted with.
    """
    require("an aggregator", "scipy")
    return Aggregator(adapters, settings, worker)


def _training_done(record: Record) -> _Done | None:
    try:
        progress = parsed(Progress, record)
    except BadMessage as error:
        refuse(ids.AGGREGATOR, record, error)
        return None
    checkpoint = progress.checkpoint
    return _Done(checkpoint.job, checkpoint.trainer, progress.fence) if checkpoint.final else None


def _failed(job: str, error: Exception) -> Failed:
    return Failed(clip=ClipRef(job=job), stage=AGGREGATOR, reason=reason_of(error), kind=ERROR)


def _metrics(model: FusedModel) -> dict[str, float]:
    """All figures, by dotted name: `validation.rgb.top1`, `test.fused.top1`, `weight.rgb`."""
    found = {f"weight.{trainer}": weight for trainer, weight in model.weights.items()}
    for split, evaluation in (("validation", model.validation), ("test", model.test)):
        if isinstance(evaluation, Evaluation):
            for name, figures in {**evaluation.members, "fused": evaluation.fused}.items():
                found.update({f"{split}.{name}.{figure}": value for figure, value in figures.items()})
    return found
