"""The predictor: takes part in all predict jobs, together with the other predictors.

    essp.control   a job begins: each predictor opens it, and scores the clips of its share
    essp.shares    says which share that is: predictors are a consumer group, and share the partitions of this topic
    essp.control   has one partition, and its owner in the same group leads: it writes the answers

Partition n of `essp.shares` stands for partition n of every stream of every predict job, so a predictor joins one
group however many jobs there are. If one leaves or dies, the others get its partitions, and score what it had not
saved.

A run of a job begins with its START or, if it waited in the queue, its RESUME; later commands add nothing about the
run. The leader commits the command that began the run when the job has ended. If it dies before that, the next one
gets the same command. The scores of a job are kept until the job is complete: until then the master may start it again,
even though everything is written.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

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
from essp_engine.worker.heartbeat import LaneLoad
from essp_predictor.config import PredictorSettings
from essp_predictor.job import PredictionJob, Role
from essp_predictor.scoring import cores_used, device_of
from essp_predictor.tasks import Answers

log = logging.getLogger(__name__)

_POLL_S = 0.2
_POLL_RECORDS = 100
_STANDS_BY = 50
"""Consecutive polls without a partition after which it logs that it stands by: the others have all shares."""
_LAST_WORD_S = 1.0
"""How long a drained predictor waits for the end of a job whose answers are written. When a job runs in a single
process, its end drains all services."""
_BEGINS = frozenset({Control.START, Control.RESUME})


@dataclass(slots=True)
class _InHand:
    """A run of a job, and its thread."""

    run: int
    record: Record | None
    """The command that began it, in its latest delivery to the leader; None: another predictor leads."""
    over: bool = False
    """Whether the thread is done with the record."""
    thread: threading.Thread = field(init=False)


class Predictor:
    """Takes part in each predict job in a thread of its own."""

    name = ids.PREDICTOR

    def __init__(self, adapters: Adapters, settings: PredictorSettings, worker: str) -> None:
        self.load = LaneLoad(1)
        """How busy it is."""
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._draining = threading.Event()
        self._subscription: Subscription | None = None
        """While it runs."""
        self._begun: SimpleQueue[Control] = SimpleQueue()
        """Commands that begin runs, from the feed."""
        self._jobs: dict[str, _InHand] = {}
        self._lock = threading.Lock()
        """Guards `_InHand.record` and `over`."""
        self._lost: DeviceLost | None = None

    def run(self) -> None:
        """Take part in jobs until drained. Raises `DeviceLost`; a new process then replaces this one."""
        self._control = ControlFeed(self._adapters.bus)
        subscription = self._adapters.bus.subscribe([topics.CONTROL, topics.SHARES], ids.PREDICTOR)
        self._subscription = subscription
        try:
            self._control.on_change(self._begun.put)
            told, idle = False, 0
            for records in batches(subscription, self._draining, self.name, _POLL_RECORDS, _POLL_S):
                idle = 0 if subscription.partitions else idle + 1
                if idle == _STANDS_BY and not told:
                    told = True
                    log.warning(
                        "predictor: the others have all shares of the jobs, and this one stands by until one of them "
                        "leaves; more predictors than topics.partitions do not help"
                    )
                for record in records:
                    self._receive(record, subscription)
                while not self._begun.empty():
                    self._join(self._begun.get(), subscription)
        finally:
            self._draining.set()
            for job in self._jobs.values():
                job.thread.join()
            subscription.close()
            self._control.close()
        if self._lost is not None:
            raise self._lost

    def drain(self) -> None:
        """Leave the current jobs, which the other predictors continue, and let `run` return."""
        self._draining.set()

    def gauges(self) -> dict[str, float]:
        """How busy it is, for its heartbeats."""
        cores = float(cores_used(self._settings.device))
        return {**self.load.take(), "lanes": cores, "partitions": float(len(self._share()))}

    def _share(self) -> frozenset[int]:
        if self._subscription is None or self._control.is_paused(self.name):
            return frozenset()
        return self._subscription.owned(topics.SHARES)

    def _receive(self, record: Record, subscription: Subscription) -> None:
        """Lead the job that this command begins."""
        command = _beginning_of_prediction(record)
        if command is None:
            subscription.done(record)
            return
        before = self._jobs.get(command.job)
        with self._lock:
            if before is not None and before.run == run_of(command) and not before.over:
                if before.record is not None and record.offset != before.record.offset:
                    subscription.done(record)
                else:  # also if redelivered: commit the latest delivery when the job has ended
                    before.record = record
                return
        self._begin(command, record, subscription)

    def _join(self, command: Control, subscription: Subscription) -> None:
        """Take part in a job that another predictor leads, unless this one leads it already."""
        before = self._jobs.get(command.job)
        if before is not None and before.run == run_of(command):
            return
        if _is_beginning_of_prediction(command) and not self._is_over(command):
            self._begin(command, None, subscription)

    def _begin(self, command: Control, record: Record | None, subscription: Subscription) -> None:
        before = self._jobs.get(command.job)
        in_hand = _InHand(run_of(command), record)
        work = partial(self._work, command, in_hand, subscription, None if before is None else before.thread)
        # if the thread fails, this drains, and another process gets the command
        in_hand.thread = guarded("essp-job", work, self.drain, of=command.job)
        self._jobs = {job: known for job, known in self._jobs.items() if known.thread.is_alive()}
        self._jobs[command.job] = in_hand
        in_hand.thread.start()

    def _work(
        self, command: Control, in_hand: _InHand, subscription: Subscription, before: threading.Thread | None
    ) -> None:
        """Take part in one job, report how it ended, and commit its command. If a drain interrupts it, the command is
        delivered again.

        `before`: an earlier thread of the same job, which was stopped but has not ended yet.
        """
        if before is not None:
            before.join()
        job = command.job
        progress: Progress | None = None
        try:
            answers = self._run_job(command, in_hand)
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
            if in_hand.record is not None:
                self._remove_parts_of_complete(command)
            with self._lock:
                in_hand.over = True
                if in_hand.record is not None:
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

    def _run_job(self, command: Control, in_hand: _InHand) -> Answers | None:
        """Take part in one job, waiting out any outage of store, bus or cache. Saved scores are reused.

        Returns None if it left before the end, or if another predictor leads.
        """
        outage = Outage(self.name, self._draining.wait)
        role = Role(
            leave=lambda: self._leave(command),
            share=self._share,
            leads=lambda: in_hand.record is not None and not self._control.is_paused(self.name),
            run_of=partial(self._control.run_of, command.job),
        )
        while not self._leave(command):
            with outage:
                return PredictionJob(self._adapters, self._settings, self._worker, command, role, self.load).run()
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
    """Build a predictor for all predict jobs of a bus. Raises `ConfigError` for a GPU that is not there."""
    device_of(settings.device)  # now, not when the first job would fail for it
    return Predictor(adapters, settings, worker)


def _beginning_of_prediction(record: Record) -> Control | None:
    try:
        command = parsed(Control, record)
        return command if _of_prediction(command) else None
    except (BadMessage, ConfigError) as error:
        refuse(ids.PREDICTOR, record, error)
        return None


def _is_beginning_of_prediction(command: Control) -> bool:
    try:
        return _of_prediction(command)
    except ConfigError:
        return False  # the leader reports it


def _of_prediction(command: Control) -> bool:
    if command.command not in _BEGINS:
        return False
    return stored_spec(command.snapshot.spec_json, f"job {command.job}").predicts


def _failed(job: str, error: Exception) -> Failed:
    if isinstance(error, EsspError):
        log.warning("job %s failed: %s", job, error, extra={"job_id": job})  # the master reports it, too
    else:
        log.exception("job %s failed with an unexpected error", job, extra={"job_id": job})
    return Failed(clip=ClipRef(job=job), stage=PREDICTOR, reason=reason_of(error), kind=kind_of(error))
