"""Continues jobs with more epochs or trainers: when a run has closed, the next one begins.

The preflight of the next run was made when the change was requested, but its start reads checkpoints, so it happens in
a thread.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

from essp_common.errors import Fenced, TransientError
from essp_common.failures import reason_of
from essp_common.job.changes import gains
from essp_common.job.status import JobState
from essp_common.runtime import ids
from essp_common.runtime.threads import guarded
from essp_engine.preflight.preflight import Preflight
from essp_master.job.job import Job
from essp_master.lifecycle.queueing import JobQueue
from essp_master.lifecycle.runner import JobRunner
from essp_master.lifecycle.start_run import Origin
from essp_master.lifecycle.starter import JobStarter

log = logging.getLogger(__name__)

_AGAIN_S = 2.0
"""Pause before the next run is tried again after a server did not answer."""


class Renewals:
    """The jobs whose next run is being started. Takes the runner's lock."""

    def __init__(self, runner: JobRunner, queue: JobQueue, starter: JobStarter, draining: threading.Event) -> None:
        """`draining`: the master is leaving."""
        self._runner = runner
        self._queue = queue
        self._starter = starter
        self._draining = draining
        self._threads: dict[str, threading.Thread] = {}
        self._changed = threading.Condition(runner.lock)
        """Notified when one of these threads is finished."""
        self._again_s: dict[str, float] = {}
        """By job: when to try again after a failure."""

    @property
    def under_way(self) -> bool:
        """Whether the next run of any job is being started."""
        return bool(self._threads)

    def settled(self, name: str, timeout_s: float) -> bool:
        """Wait, under the runner's lock, until no next run of this job is being started. Returns False on timeout."""
        return self._changed.wait_for(lambda: name not in self._threads, timeout_s)

    def begin_closed(self) -> None:
        """Begin the next run of every job whose run has closed for it."""
        runner = self._runner
        with runner.lock:
            for job in runner.jobs if not self._draining.is_set() else ():
                with runner.isolated(job):
                    self._begin_if_closed(job)

    def _begin_if_closed(self, job: Job) -> None:
        runner, now_s = self._runner, self._runner.clock()
        if job.extension is None or job.name in self._threads or now_s < self._again_s.get(job.name, 0.0):
            return
        own = {ids.trainer_pool(job.name, name) for name in job.spec.trainers}
        up = runner.up()[0] if runner.recovers else own
        # The next run may start only when the history contains everything of this one: it continues the segments from
        # there.
        if not job.has_closed(up, now_s) or not runner.history.holds_all_of(job):
            return
        thread = guarded("essp-renew", partial(self._renew, job, job.extension.goal, Origin.of_run(job)))
        job.hand_on()
        runner.jobs.hold(job.name)
        self._threads[job.name] = thread
        thread.start()

    def join(self) -> None:
        """Wait for the runs that are being started."""
        for thread in tuple(self._threads.values()):
            thread.join()

    def _renew(self, before: Job, goal: Preflight, origin: Origin) -> None:
        """Begin the next run of a job, with its extension. A stop in the meantime takes effect on the new run."""
        name, runner = before.name, self._runner
        try:
            job = self._starter.run_of(goal, origin, before.reporter.log)
            with runner.lock:
                self._starter.begin(job)
                self._follow(job, before)
                self._queue.plan()
                self._again_s.pop(name, None)
            log.info("job %s: continues, fence %d", name, job.run.fence, extra={"job_id": name})
        except TransientError as error:
            log.warning("job %s: cannot continue with more yet: %s", name, error, extra={"job_id": name})
            self._again_s[name] = runner.clock() + _AGAIN_S
        except Fenced as error:
            with runner.lock:
                before.take_back()
                runner.yield_to(before, error.fence)
        except Exception as error:
            log.exception("job %s: cannot continue with more", name, extra={"job_id": name})
            with runner.lock:
                runner.fail(before, f"it could not continue with {gains(before.spec, goal.spec)}: {reason_of(error)}")
        finally:
            with runner.lock:
                self._threads.pop(name)
                runner.jobs.release(name)
                self._changed.notify_all()

    def _follow(self, job: Job, before: Job) -> None:
        """Bring the next run of a job to the state that the previous one has entered in the meantime."""
        job.priority = before.priority
        if before.state is job.state:
            return
        self._runner.enter(job, before.state, before.life.reason)
        if before.state is JobState.RUNNING:
            self._runner.carry_out(job, job.resume())
        elif not before.state.ended:
            job.pause(finishes=before.state is JobState.QUEUED)
