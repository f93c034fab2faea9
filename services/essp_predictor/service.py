"""The predictor: runs predict jobs when the master starts them.

Jobs arrive on `essp.control`, which all predictors read in one consumer group. The topic has one partition, so one
instance works while the others stand by. A run of a job begins with its START or, if it waited in the queue, its
RESUME; later commands add nothing about the run. The command that began the run is committed when the job has ended. If
the instance dies before that, the next one gets the same command and resumes the job.

The scores of a job are kept until the job is complete. Until then the master may start it again, even though everything
is written.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from essp_common import topics
from essp_common.artifacts import partial_scores
from essp_common.bus.port import Record, Subscription
from essp_common.bus.reading import batches
from essp_common.errors import ConfigError, DeviceLost, EsspError
from essp_common.failures import kind_of, reason_of
from essp_common.job.spec import stored_spec
from essp_common.messages.control import ENDED, ControlFeed, run_of
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import PREDICTOR, ClipRef, Control, Failed, Finished, Progress
from essp_common.runtime import ids
from essp_common.runtime.retry import Outage
from essp_common.runtime.threads import guarded
from essp_common.wiring import Adapters
from essp_predictor.config import PredictorSettings
from essp_predictor.job import PredictionJob
from essp_predictor.tasks import Answers

log = logging.getLogger(__name__)

_POLL_S = 0.2
_POLL_RECORDS = 100
_STANDS_BY = 50
"""Consecutive polls without a partition after which it logs that it stands by: another predictor has the jobs."""
_LAST_WORD_S = 1.0
"""How long a drained predictor waits for the end of a job whose answers are written. When a job runs in a single
process, its end drains all services."""
_BEGINS = frozenset({Control.START, Control.RESUME})


@dataclass(slots=True)
class _InHand:
    """A run of a job, and its thread."""

    run: int
    record: Record
    """The command that began it, in its latest delivery."""
    thread: threading.Thread = field(init=False)


class Predictor:
    """Runs each predict job in its own thread."""

    name = ids.PREDICTOR

    def __init__(self, adapters: Adapters, settings: PredictorSettings, worker: str) -> None:
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._draining = threading.Event()
        self._jobs: dict[str, _InHand] = {}
        self._lost: DeviceLost | None = None

    def run(self) -> None:
        """Run jobs until drained. Raises `DeviceLost`; a new process then resumes the jobs."""
        self._control = ControlFeed(self._adapters.bus)
        subscription = self._adapters.bus.subscribe([topics.CONTROL], ids.PREDICTOR)
        try:
            told, idle = False, 0
            for records in batches(subscription, self._draining, self.name, _POLL_RECORDS, _POLL_S):
                idle = 0 if subscription.partitions else idle + 1
                if idle == _STANDS_BY and not told:
                    told = True
                    log.warning(
                        "predictor: another one has the jobs, and this one stands by until that leaves: one predictor "
                        "scores all jobs, however many there are; give it a larger machine or GPU instead"
                    )
                for record in records:
                    self._receive(record, subscription)
        finally:
            self._draining.set()
            for job in self._jobs.values():
                job.thread.join()
            subscription.close()
            self._control.close()
        if self._lost is not None:
            raise self._lost

    def drain(self) -> None:
        """Leave the current jobs, which another instance resumes, and let `run` return."""
        self._draining.set()

    def _receive(self, record: Record, subscription: Subscription) -> None:
        command = _beginning_of_prediction(record)
        if command is None:
            subscription.done(record)
            return
        self._jobs = {job: known for job, known in self._jobs.items() if known.thread.is_alive()}
        before = self._jobs.get(command.job)
        if before is not None and before.run == run_of(command):
            if record.offset != before.record.offset:
                subscription.done(record)
            else:  # redelivered: commit the latest delivery when the job has ended
                before.record = record
            return
        in_hand = _InHand(run_of(command), record)
        work = partial(self._work, command, in_hand, subscription, None if before is None else before.thread)
        # if the thread fails, this drains, and another process gets the command
        in_hand.thread = guarded("essp-job", work, self.drain, of=command.job)
        self._jobs[command.job] = in_hand
        in_hand.thread.start()

    def _work(
        self, command: Control, in_hand: _InHand, subscription: Subscription, before: threading.Thread | None
    ) -> None:
        """Run one job, report how it ended, and commit its command. If a drain interrupts it, the command is delivered
        again.

        `before`: an earlier thread of the same job, which was stopped but has not ended yet.
        """
        if before is not None:
            before.join()
        job = command.job
        progress: Progress | None = None
        try:
            answers = self._run_job(command)
            if answers is not None:
                metrics = {"videos": float(answers.videos), "failed": float(answers.failed)}
                finished = Finished(job=job, stage=PREDICTOR, uri=answers.uri, metrics=metrics)
                progress = Progress(finished=finished)
        except DeviceLost as error:
            self._lost = error
            self._draining.set()
        except Exception as error:  # noqa: BLE001  fails this job with the reason; the others continue
            progress = Progress(failed=_failed(job, error))
        if progress is not None and not self._publish(progress, command):
            return
        failed = progress is not None and progress.HasField("failed")
        if progress is not None and not failed:
            self._await_end(command)
        if failed or self._is_over(command):
            self._remove_parts_of_complete(command)
            subscription.done(in_hand.record)

    def _await_end(self, command: Control) -> None:
        """Wait for the end of the job, whose answers are written. Once drained, wait only a moment longer."""
        while not self._leave(command):
            self._draining.wait(_POLL_S)
        if not self._is_over(command):
            self._control.wait(command.job, _LAST_WORD_S, ENDED)

    def _remove_parts_of_complete(self, command: Control) -> None:
        """Remove the saved scores of a job as long as it is still complete: another predictor may already run it
        again."""

        def complete() -> bool:
            return self._control.state(command.job) == Control.COMPLETE

        if complete():
            spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
            with suppress(EsspError):  # leftovers do no harm
                partial_scores.remove(self._adapters.stores.under(spec.output), complete)

    def _run_job(self, command: Control) -> Answers | None:
        """Run one job, waiting out any outage of store, bus or cache. Saved scores are reused.

        Returns None if it left before the end.
        """
        outage = Outage(self.name, self._draining.wait)
        while not self._leave(command):
            with outage:
                return PredictionJob(
                    self._adapters,
                    self._settings,
                    self._worker,
                    command,
                    lambda: self._leave(command),
                    partial(self._control.run_of, command.job),
                ).run()
        return None

    def _leave(self, command: Control) -> bool:
        return self._draining.is_set() or self._is_over(command)

    def _is_over(self, command: Control) -> bool:
        """Whether the run that a command began is over: the job has ended, and may have been started again."""
        job, fence = command.job, command.fence
        return self._control.ended(job, fence) or self._control.of_earlier_run(job, fence)

    def _publish(self, progress: Progress, command: Control) -> bool:
        """Publish, waiting out any outage of the bus.

        Returns False if drained before that; another instance then resumes the job.
        """
        progress.job, progress.worker, progress.fence = command.job, self._worker, command.fence
        outage = Outage(self.name, self._draining.wait)
        while True:
            with outage:
                self._adapters.bus.publish(topics.PROGRESS, command.job.encode(), progress.SerializeToString())
                self._adapters.bus.flush()
                return True
            if self._draining.is_set():
                return False


def build(adapters: Adapters, settings: PredictorSettings, worker: str) -> Predictor:
    """Build a predictor for all predict jobs of a bus."""
    return Predictor(adapters, settings, worker)


def _beginning_of_prediction(record: Record) -> Control | None:
    try:
        command = parsed(Control, record)
        if command.command not in _BEGINS:
            return None
        spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
    except (BadMessage, ConfigError) as error:
        refuse(ids.PREDICTOR, record, error)
        return None
    return command if spec.predicts else None


def _failed(job: str, error: Exception) -> Failed:
    if isinstance(error, EsspError):
        log.warning("job %s failed: %s", job, error, extra={"job_id": job})  # the master reports it, too
    else:
        log.exception("job %s failed with an unexpected error", job, extra={"job_id": job})
    return Failed(clip=ClipRef(job=job), stage=PREDICTOR, reason=reason_of(error), kind=kind_of(error))
