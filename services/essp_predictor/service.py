"""The predictor: runs predict jobs when the master starts them.

Jobs come through `essp.control`, which the predictors read in one consumer group. The topic has one partition, so one
instance works and the others stand by. The START of a job is committed when its answers are written; if the instance
dies before that, the next one gets the same START and resumes the job.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from essp_common import topics
from essp_common.bus.port import Record, Subscription
from essp_common.bus.reading import batches
from essp_common.errors import ConfigError, DeviceLost, EsspError, TransientError
from essp_common.failures import kind_of, reason_of
from essp_common.job.spec import stored_spec
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import PREDICTOR, ClipRef, Control, Failed, Finished, Progress
from essp_common.runtime import ids
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_predictor.config import PredictorSettings
from essp_predictor.job import Answers, PredictionJob

log = logging.getLogger(__name__)

_POLL_S = 0.2
_POLL_RECORDS = 100


class Predictor:
    """Runs every predict job in a thread of its own."""

    name = ids.PREDICTOR

    def __init__(self, adapters: Adapters, settings: PredictorSettings, worker: str) -> None:
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._draining = threading.Event()
        self._jobs: dict[str, threading.Thread] = {}
        self._lost: DeviceLost | None = None

    def run(self) -> None:
        """Run jobs until drained. Raises `DeviceLost`; a new process resumes the jobs."""
        self._control = ControlFeed(self._adapters.bus)
        subscription = self._adapters.bus.subscribe([topics.CONTROL], ids.PREDICTOR)
        try:
            for records in batches(subscription, self._draining, self.name, _POLL_RECORDS, _POLL_S):
                for record in records:
                    self._receive(record, subscription)
        finally:
            self._draining.set()
            for thread in self._jobs.values():
                thread.join()
            subscription.close()
            self._control.close()
        if self._lost is not None:
            raise self._lost

    def drain(self) -> None:
        """Leave the current jobs, which another instance resumes, and let `run` return."""
        self._draining.set()

    def _receive(self, record: Record, subscription: Subscription) -> None:
        command = _start_of_prediction(record)
        if command is None:
            subscription.done(record)
            return
        self._jobs = {job: thread for job, thread in self._jobs.items() if thread.is_alive()}
        self._jobs[command.job] = threading.Thread(
            target=self._work,
            args=(command, record, subscription, self._jobs.get(command.job)),
            name=f"essp-job-{command.job}",
            daemon=True,
        )
        self._jobs[command.job].start()

    def _work(
        self, command: Control, record: Record, subscription: Subscription, before: threading.Thread | None
    ) -> None:
        """Run one job and report how it ended. If a drain interrupts it, its START is delivered again.

        `before`: the thread of the same job, stopped but not ended yet, or started before by an earlier master.
        """
        if before is not None:
            before.join()
        job = command.job
        answers: Answers | None = None
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
        if progress is not None or not self._draining.is_set():
            subscription.done(record)
        if answers is not None:
            with suppress(TransientError):  # leftovers do no harm
                answers.remove_parts()

    def _run_job(self, command: Control) -> Answers | None:
        """Run one job, however long store, bus or cache are unavailable; saved scores are reused.

        None if it is to leave.
        """
        outage = Outage(self.name, self._draining.wait)
        while not self._leave(command.job):
            with outage:
                return PredictionJob(
                    self._adapters, self._settings, self._worker, command, lambda: self._leave(command.job)
                ).run()
        return None

    def _leave(self, job: str) -> bool:
        return self._draining.is_set() or self._control.ended(job)

    def _publish(self, progress: Progress, command: Control) -> bool:
        """Publish, however long the bus is unavailable.

        Returns False if drained before that; another instance resumes.
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
    """A predictor for all predict jobs of a bus."""
    return Predictor(adapters, settings, worker)


def _start_of_prediction(record: Record) -> Control | None:
    try:
        command = parsed(Control, record)
        if command.command != Control.START:
            return None
        spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
    except (BadMessage, ConfigError) as error:
        refuse(ids.PREDICTOR, record, error)
        return None
    return command if spec.predictor is not None else None


def _failed(job: str, error: Exception) -> Failed:
    if isinstance(error, EsspError):
        log.error("job %s failed: %s", job, error, extra={"job_id": job})
    else:
        log.exception("job %s failed with an unexpected error", job, extra={"job_id": job})
    return Failed(clip=ClipRef(job=job), stage=PREDICTOR, reason=reason_of(error), kind=kind_of(error))
