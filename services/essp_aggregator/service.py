"""The aggregator: fuses the trainers of a job when the last one is done, and reports it.

It reads `essp.progress` in a consumer group of its own. It takes everything else from the job's output store and keeps
no state: if it is killed, its successor gets the same message and writes the same model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from essp_aggregator.assembly import assemble, final_checkpoints
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.search import Search
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import Evaluation, FusedModel
from essp_common.bus.port import Record, Subscription
from essp_common.bus.reading import batches
from essp_common.errors import EsspError, TransientError
from essp_common.failures import reason_of, shortened
from essp_common.job.changes import after_all
from essp_common.job.spec import stored_spec
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import AGGREGATOR, ERROR, CheckpointReady, ClipRef, Failed, Finished, Progress
from essp_common.runtime import ids
from essp_common.runtime.process import cpu_count
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters

log = logging.getLogger(__name__)

_POLL_S = 0.2
_CONTROL_S = 10.0
"""How long to wait for a job's START, which was published before its last checkpoint, on another topic."""
_MOST_EARLY = 100
"""Messages that wait so at one time; anybody may name jobs that there are not."""


@dataclass(frozen=True, slots=True)
class _Early:
    """A message about a job of which nothing is known yet."""

    record: Record
    job: str
    until_s: float


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
        self._early: deque[_Early] = deque()

    def run(self) -> None:
        """Read the progress of all jobs until drained."""
        control = ControlFeed(self._bus)
        subscription = self._bus.subscribe([topics.PROGRESS], ids.AGGREGATOR)
        try:
            for records in batches(subscription, self._draining, self.name, self._settings.poll_records, _POLL_S):
                for record in (*self._due(control, subscription), *records):
                    if not self._handle(record, control, subscription):
                        return
        finally:
            subscription.close()
            control.close()

    def drain(self) -> None:
        """Finish the current job, then let `run` return."""
        self._draining.set()

    def _handle(self, record: Record, control: ControlFeed, subscription: Subscription) -> bool:
        """Handle one message. Returns False if drained before it was done; then it is delivered again."""
        checkpoint = _final_checkpoint(record)
        if checkpoint is not None and control.latest(checkpoint.job) is None and len(self._early) < _MOST_EARLY:
            self._early.append(_Early(record, checkpoint.job, time.monotonic() + _CONTROL_S))
            return True
        outage = Outage(self.name, self._draining.wait)
        while checkpoint is not None:
            with outage:
                self._fuse_or_fail(checkpoint, control)
                break
            if self._draining.is_set():
                return False
        subscription.done(record)
        return True

    def _due(self, control: ControlFeed, subscription: Subscription) -> Iterator[Record]:
        """The messages that need wait no longer; those of jobs that nobody has announced are dropped."""
        waiting, self._early = self._early, deque()
        for early in waiting:
            if control.latest(early.job) is not None:
                yield early.record
            elif time.monotonic() < early.until_s:
                self._early.append(early)
            else:
                log.warning("ignored a checkpoint of job %s, which has no control message", shortened(early.job))
                subscription.done(early.record)

    def _fuse_or_fail(self, checkpoint: CheckpointReady, control: ControlFeed) -> None:
        """Fuse a job whose trainers are done. An error fails this job; the other jobs are fused all the same."""
        job = checkpoint.job
        try:
            self._checkpoint_ready(checkpoint, control)
        except TransientError:
            raise
        except EsspError as error:
            log.error("job %s cannot be fused: %s", job, error, extra={"job_id": job})
            self._failed(job, error)
        except Exception as error:
            log.exception("job %s failed with an unexpected error", job, extra={"job_id": job})
            self._failed(job, error)

    def _checkpoint_ready(self, checkpoint: CheckpointReady, control: ControlFeed) -> None:
        command = control.latest(checkpoint.job)
        if command is None:
            log.warning("ignored a checkpoint of job %s, which has no control message", shortened(checkpoint.job))
            return
        spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
        store = self._stores.under(spec.output)
        finals = final_checkpoints(store, spec)
        command = control.latest(checkpoint.job) or command  # a change of strategies may have come meanwhile
        spec = after_all(spec, command.changes)
        if finals is None:
            about = {"job_id": checkpoint.job}
            log.info(
                "job %s: %s is done; waiting for its other trainers", checkpoint.job, checkpoint.trainer, extra=about
            )
            return
        search = Search(self._settings.aggregator_processes or cpu_count(), checkpoint.job)
        model = assemble(store, self._cache, checkpoint.job, spec, finals, search, self._stores)
        finished = Finished(
            job=checkpoint.job,
            stage=AGGREGATOR,
            uri=store.uri(layout.MODEL_MANIFEST),
            metrics=_metrics(model),
            changes=len(command.changes),
        )
        self._publish(Progress(job=checkpoint.job, worker=self._worker, fence=command.fence, finished=finished))

    def _failed(self, job: str, error: Exception) -> None:
        failed = Failed(clip=ClipRef(job=job), stage=AGGREGATOR, reason=reason_of(error), kind=ERROR)
        self._publish(Progress(job=job, worker=self._worker, failed=failed))

    def _publish(self, progress: Progress) -> None:
        self._bus.publish(topics.PROGRESS, progress.job.encode(), progress.SerializeToString())
        self._bus.flush()


def build(adapters: Adapters, settings: AggregatorSettings, worker: str) -> Aggregator:
    """An aggregator; several share the jobs between them."""
    return Aggregator(adapters, settings, worker)


def _final_checkpoint(record: Record) -> CheckpointReady | None:
    try:
        progress = parsed(Progress, record)
    except BadMessage as error:
        refuse(ids.AGGREGATOR, record, error)
        return None
    is_final = progress.HasField("checkpoint") and progress.checkpoint.final
    return progress.checkpoint if is_final else None


def _metrics(model: FusedModel) -> dict[str, float]:
    """All figures, by dotted name: `validation.rgb.top1`, `test.fused.top1`, `weight.rgb`."""
    found = {f"weight.{trainer}": weight for trainer, weight in model.weights.items()}
    for split, evaluation in (("validation", model.validation), ("test", model.test)):
        if isinstance(evaluation, Evaluation):
            for name, figures in {**evaluation.members, "fused": evaluation.fused}.items():
                found.update({f"{split}.{name}.{figure}": value for figure, value in figures.items()})
    return found
