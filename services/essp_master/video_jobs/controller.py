"""The loop that brings VideoJobs and jobs together.

VideoJobs are watched, and jobs are checked every two seconds. For each VideoJob `decision.py` says the next step, which
is taken in one of a few threads, since the start of a job reads stores and may take long: one VideoJob waits for its
own store alone. Steps are idempotent and start from what is there, so a master that dies in the middle of one has a
successor that takes it again.

A VideoJob that cannot become its job (a wrong field, a name that another job has) is `Refused`, with the reason, and
tried again when it changes, and each minute, since what it lacks may come. A server that does not answer is waited for.

Before a job starts, its VideoJob gets a finalizer, and loses it when the job has ended. A VideoJob that is deleted in
mid-job so stays until the job has stopped and its trainers have left, or until `release_s` are over: then an Event says
what was not done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from essp_common.errors import (
    ConfigError,
    Conflict,
    EsspError,
    Forbidden,
    NotFound,
    PermanentError,
    TransientError,
)
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.threads import unexpected
from essp_engine.preflight.output import Asked
from essp_engine.preflight.preflight import Preflight
from essp_master.pools.informer import Exists, Informer
from essp_master.video_jobs.claims import Claims
from essp_master.video_jobs.cluster import VideoJobApi
from essp_master.video_jobs.decision import ENDED, Known, Step, as_started, decide, differing
from essp_master.video_jobs.resource import RELEASE, VideoJob, mirror_of, mirrored_spec
from essp_master.video_jobs.view import (
    PAUSED,
    PENDING,
    PHASES,
    REFUSED,
    STOPPING,
    Trouble,
    changes_worth_an_event,
    status_of,
    steady,
    time_text,
)

log = logging.getLogger(__name__)

_PERIOD_S = 2.0
_SETTLE_S = 0.5
"""Changes come in bursts, and each status that is written here is one: one check covers those within this time, since a
check costs as much as there are VideoJobs."""
_PATIENCE_S = 60.0
"""How long the trainers of a master that begins wait to learn which VideoJobs they belong to, if the API server does
not answer."""
_AGAIN_S = 60.0
"""How long a VideoJob that was refused waits for the next try, unless it changes."""
_FIGURES_S = 10.0
"""Shortest time between two writes of figures that change all the time."""
_TOGETHER = 4
"""VideoJobs that are worked on at the same time."""
_WHERE = "video jobs"


class Jobs(Protocol):
    """What the controller needs of the master (`essp_master.service.Master`)."""

    @property
    def recovered(self) -> bool: ...

    def under_way(self) -> list[str]: ...
    def state(self, name: str) -> JobState: ...
    def status(self, name: str) -> JobStatus: ...
    def spec(self, name: str) -> JobSpec: ...
    def present(self, name: str) -> JobSpec: ...
    def own_reason(self, name: str) -> str: ...
    def team_of(self, name: str) -> str | None: ...
    def validate(self, spec: JobSpec, fresh: bool = False, asked: Asked = ...) -> Preflight: ...
    def start(
        self, spec: JobSpec, fresh: bool = False, checked: Preflight | None = None, asked: Asked = ...
    ) -> JobStatus: ...
    def change(self, name: str, fields: Mapping[str, object]) -> JobStatus: ...
    def prioritise(self, name: str, priority: int) -> JobStatus: ...
    def pause(self, name: str) -> JobStatus: ...
    def resume(self, name: str) -> JobStatus: ...
    def stop(self, name: str) -> JobStatus: ...


class VideoJobs:
    """Implements `essp_common.runtime.service.Service`."""

    name = "video-jobs"

    def __init__(
        self,
        api: VideoJobApi,
        jobs: Jobs,
        claims: Claims,
        training: Callable[[], Collection[str]] = tuple,
        *,
        mirrors: bool = False,
        release: str = "",
        team: str = "",
        release_s: float = 120.0,
        pauses_s: tuple[float, float] = (1.0, 30.0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`training`: returns the jobs whose trainers are there. `mirrors`: jobs that the REST API starts get a
        VideoJob, too. `release`: VideoJobs with a label of another release are left to that one. `team`: to which the
        jobs belong. `release_s`: how long a VideoJob that is being deleted waits for its job."""
        self._api = api
        self._jobs = jobs
        self._claims = claims
        self._training = training
        self._mirrors = mirrors
        self._release = release
        self._asked = Asked(team, admin=not team)
        self._release_s = release_s
        self._clock = clock
        self._informer = Informer("videojobs", VideoJob, api.list, self._wake, pauses_s)
        self._woken = threading.Event()
        self._draining = threading.Event()
        self._pool = ThreadPoolExecutor(_TOGETHER, "essp-video-jobs")
        self._busy: set[str] = set()
        """Uids of the VideoJobs that are being worked on."""
        self._lock = threading.Lock()
        self._refused: dict[str, tuple[int, float, Trouble]] = {}
        """By uid: the generation that was refused, when, and why."""
        self._leaving: dict[str, float] = {}
        """By uid: since when one is seen to be deleted."""
        self._written: dict[str, float] = {}
        """By uid: when its status was last written."""

    # --- the service ---

    def run(self) -> None:
        """Follow VideoJobs and jobs until drained."""
        self._informer.start()
        until_s = self._clock() + _PATIENCE_S
        try:
            while not self._draining.is_set():
                self._woken.wait(_PERIOD_S - _SETTLE_S)
                self._woken.clear()
                try:
                    self.look()
                except EsspError as error:  # which the informer has logged
                    log.debug("%s: %s", _WHERE, error)
                    if not isinstance(error, TransientError) or self._clock() >= until_s:
                        self._claims.seen.set()  # what has no VideoJobs must not wait for them
                except Exception as error:  # noqa: BLE001  of any kind: the others continue
                    unexpected(_WHERE, error)
                self._draining.wait(_SETTLE_S)
        finally:
            self._informer.close()
            self._pool.shutdown(cancel_futures=True)

    def drain(self) -> None:
        """Make `run` return."""
        self._draining.set()
        self._woken.set()

    def look(self) -> None:
        """Take the next step for each VideoJob that is not being worked on."""
        if not self._jobs.recovered:
            return
        present = [found for found in self._informer.objects().values() if self._is_ours(found)]
        self._claims.follow(present)
        uids = {found.metadata.uid for found in present}
        for notes in (self._refused, self._leaving, self._written):
            for uid in [uid for uid in list(notes) if uid not in uids]:
                notes.pop(uid, None)  # in place: others are noted, or forgotten, meanwhile
        if self._mirrors:
            self._mirror()
        for found in present:
            self._begin(found)

    # --- internals ---

    def _wake(self) -> None:
        self._woken.set()

    def _is_ours(self, found: VideoJob) -> bool:
        return not self._release or found.metadata.labels.get(RELEASE, self._release) == self._release

    def _mirror(self) -> None:
        """Make a VideoJob for each job that is under way and has none."""
        for job in self._jobs.under_way():
            if self._claims.names(job):
                continue
            try:
                self._claims.note(self._api.create(mirror_of(self._jobs.present(job), self._release)))
            except (Exists, NotFound):
                pass  # it will be seen, or has ended
            except PermanentError as error:
                log.warning("job %s gets no VideoJob: %s", job, error, extra={"job_id": job})

    def _begin(self, found: VideoJob) -> None:
        uid = found.metadata.uid
        with self._lock:
            if uid in self._busy:
                return
            self._busy.add(uid)
        self._pool.submit(self._work, found)

    def _work(self, found: VideoJob) -> None:
        try:
            self.step(self._claims.newest(found))
        except (TransientError, Conflict, NotFound) as error:  # another process was first, or a server is away
            log.info("VideoJob %s: %s; trying again", found.metadata.name, error)
        except EsspError as error:
            log.warning("VideoJob %s: %s; trying again", found.metadata.name, error)
        except Exception as error:  # noqa: BLE001  of any kind: the others continue
            unexpected(_WHERE, error)
        finally:
            with self._lock:
                self._busy.discard(found.metadata.uid)

    def step(self, found: VideoJob) -> None:
        """Take the next step for one VideoJob, and write how it is doing."""
        try:
            known = self._known(found)
            step = decide(found, known)
        except ConfigError as error:
            return self._refuse(found, refusal(error))
        log.debug("VideoJob %s: %s", found.metadata.name, step)
        acts: dict[Step, Callable[[VideoJob], object]] = {
            Step.START: self._start,
            Step.HOLD: self._hold,
            Step.CHANGE: self._change,
            Step.FOLLOW: self._follow,
            Step.FORGET: self._forget,
            Step.STOP: self._stop,
            Step.RELEASE: self._free,
            Step.WAIT: partial(self._show, phase=PAUSED, words="spec.paused is true; the job starts when it is false"),
            Step.PAUSE: partial(self._command, command=self._jobs.pause),
            Step.RESUME: partial(self._command, command=self._jobs.resume),
            Step.REFUSE: partial(self._refuse_for, known=known),
            Step.SHOW: self._show,
        }
        acts[step](found)

    def _known(self, found: VideoJob) -> Known:
        name = found.job
        state = self._jobs.state(name) if self._knows(name) else None
        under_way = state is not None and not state.ended
        holder = self._claims.holder(name)
        rival = holder.metadata.name if holder and holder.metadata.uid != found.metadata.uid else ""
        compares = under_way and not found.metadata.deleted and not (found.held and not found.mirrored)
        return Known(
            state,
            same=compares and found.wanted == self._jobs.present(name),
            trains=found.metadata.deleted and name in self._training(),
            rival=rival,
        )

    def _start(self, found: VideoJob) -> None:
        uid, name = found.metadata.uid, found.job
        refused = self._refused.get(uid)
        if refused and refused[0] == found.metadata.generation and self._clock() < refused[1] + _AGAIN_S:
            return self._refuse(found, refused[2], again=False)
        try:
            wanted, before = found.wanted, self._former(found)
            spec = wanted if before is None else as_started(wanted, before)
            if spec == before != wanted and self._jobs.state(name) is JobState.COMPLETED:
                raise Conflict("the job is complete, so nothing is left to change but epochs and trainers, to more")
            if self._jobs.team_of(name) not in (None, self._asked.team):
                raise Conflict(f"name: {name} is taken; choose another name")
            if found.status.get("phase") != PENDING and not refused:
                found = self._show(found, phase=PENDING, words="its settings and its videos are being checked") or found
            checked = self._jobs.validate(spec, asked=self._asked)
        except (ConfigError, PermanentError) as error:
            return self._refuse(found, refusal(error))
        except TransientError as error:
            return self._wait(found, error)
        found = found if found.held else self._noted(self._api.hold(found))
        try:
            self._jobs.start(spec, checked=checked, asked=self._asked)
            log.info("job %s: started by VideoJob %s", name, found.metadata.name, extra={"job_id": name})
            if spec != wanted:
                self._jobs.change(name, differing(self._jobs.present(name), wanted))
        except (ConfigError, PermanentError) as error:
            return self._refuse(found, refusal(error))
        except TransientError as error:
            return self._wait(found, error)
        return self._accept(found)

    def _former(self, found: VideoJob) -> JobSpec | None:
        """The same job that has ended, as it was started; None: there is none, or that is not known any more."""
        try:
            before = self._jobs.spec(found.job)
        except (NotFound, ConfigError):
            return None
        return before if before.output == found.wanted.output else None

    def _hold(self, found: VideoJob) -> None:
        """Take over a job that runs already, and is what the VideoJob says."""
        found = self._noted(self._api.hold(found))
        self._accept(found)

    def _accept(self, found: VideoJob) -> None:
        """Note that the job has begun, and is what the VideoJob says."""
        self._refused.pop(found.metadata.uid, None)
        began = {"startTime": found.status.get("startTime") or time_text(datetime.now(UTC))}
        accepted = {"acceptedGeneration": found.metadata.generation}
        self._show(VideoJob(found.metadata, found.spec, {**found.status, **began, **accepted}))

    def _change(self, found: VideoJob) -> None:
        """Give the job what the VideoJob says now."""
        try:
            fields = differing(self._jobs.present(found.job), found.wanted)
            priority = fields.pop("priority", None)
            if fields:
                self._jobs.change(found.job, fields)
            if priority is not None:
                self._jobs.prioritise(found.job, priority)
        except (ConfigError, PermanentError) as error:
            self._show(found, trouble=Trouble("ChangeRefused", f"the job continues unchanged: {refusal(error).words}"))
            return
        if fields or priority is not None:
            told = sorted(fields) + (["priority"] if priority is not None else [])
            self._tell(found, "Normal", "Changed", f"the job has now what this VideoJob says of {', '.join(told)}")
        self._accept(found)

    def _follow(self, found: VideoJob) -> None:
        """Let a VideoJob that the master made for a job say what the job is now."""
        try:
            found = self._noted(self._api.write_spec(found, mirrored_spec(self._jobs.present(found.job))))
        except PermanentError:  # it is another job by now, and a VideoJob belongs to one job only
            self._forget(found)
            return
        self._accept(found)  # at once: else its new generation would undo what a request changes meanwhile

    def _forget(self, found: VideoJob) -> None:
        """Remove a VideoJob that the master made, and nothing else."""
        self._api.delete(self._noted(self._api.release(found)) if found.held else found)

    def _command(self, found: VideoJob, command: Callable[[str], JobStatus]) -> None:
        command(found.job)
        self._show(found)

    def _stop(self, found: VideoJob) -> None:
        """Stop the job of a VideoJob that is being deleted."""
        overdue = self._overdue(found)
        try:
            self._jobs.stop(found.job)
        except EsspError as error:
            if overdue:
                words = f"job {found.job} could not be stopped: {error}; stop it: essp job stop {found.job}"
                self._let_go(found, "Warning", "NotStopped", words)
                return
            self._show(found, phase=STOPPING, words=f"waiting until the job can be stopped: {error}")
            return
        self._show(found, phase=STOPPING, words="its trainers save and leave")

    def _free(self, found: VideoJob) -> None:
        if found.metadata.deleted:
            self._let_go(found, "Normal", "Stopped", f"job {found.job} has stopped; its output {_output(found)} stays")
        else:
            found = self._show(found) or found
            self._noted(self._api.release(found))

    def _let_go(self, found: VideoJob, kind: str, reason: str, words: str) -> None:
        self._tell(found, kind, reason, words)
        self._api.release(found)

    def _overdue(self, found: VideoJob) -> bool:
        """Whether a VideoJob that is being deleted has waited long enough."""
        return self._clock() - self._leaving.setdefault(found.metadata.uid, self._clock()) >= self._release_s

    def _refuse_for(self, found: VideoJob, known: Known) -> None:
        if known.rival:
            words = f"job {found.job} is the VideoJob {known.rival}; choose another name"
        else:
            words = (
                f"job {found.job} is {known.state}, was started by a request, and differs from this VideoJob; choose "
                f"another name, or stop it first: essp job stop {found.job}"
            )
        self._refuse(found, Trouble("NameTaken", words))

    def _refuse(self, found: VideoJob, trouble: Trouble, again: bool = True) -> None:
        """Say why a VideoJob does not become its job. It may be deleted at once."""
        if again:
            self._refused[found.metadata.uid] = (found.metadata.generation, self._clock(), trouble)
        if found.began and self._knows(found.job):
            self._show(found, trouble=Trouble("ChangeRefused", trouble.words))
            return
        self._write(found, status_of(found, None, REFUSED, datetime.now(UTC), trouble))
        if found.held and not found.began:
            self._noted(self._api.release(self._claims.newest(found)))

    def _knows(self, job: str) -> bool:
        try:
            self._jobs.state(job)
        except NotFound:
            return False
        return True

    def _wait(self, found: VideoJob, error: TransientError) -> None:
        self._write(found, status_of(found, None, PENDING, datetime.now(UTC), Trouble("Unavailable", str(error))))

    def _show(
        self, found: VideoJob, phase: str = "", trouble: Trouble | None = None, words: str = ""
    ) -> VideoJob | None:
        """Write how the job is doing."""
        if found.metadata.deleted and not phase:
            if not found.held:
                return None
            phase = STOPPING
            if self._overdue(found):
                left = f"its trainers have not left within {self._release_s:.0f} s; Kubernetes removes them"
                self._let_go(found, "Warning", "TrainersLeft", left)
                return None
        if phase in (PENDING, PAUSED):
            return self._write(found, status_of(found, None, phase, datetime.now(UTC), trouble, words))
        settled = found.accepted and found.status.get("phase") in ENDED
        try:
            if settled and PHASES[self._jobs.state(found.job)] == found.status.get("phase"):
                return None
            job = self._jobs.status(found.job)
        except NotFound:
            return None
        if trouble is None and job.state is JobState.RUNNING and job.reason != self._jobs.own_reason(found.job):
            trouble = Trouble("Hindered", job.reason)
        return self._write(found, status_of(found, job, phase or PHASES[job.state], datetime.now(UTC), trouble, words))

    def _write(self, found: VideoJob, status: dict[str, object]) -> VideoJob | None:
        """Write a status that differs from the present one, figures not too often, and tell what a person should
        know."""
        before = self._claims.newest(found).status
        uid = found.metadata.uid
        if status == before:
            return None
        if steady(status) == steady(before) and self._clock() < self._written.get(uid, 0.0) + _FIGURES_S:
            return None
        self._written[uid] = self._clock()
        written = self._noted(self._api.write_status(found, status))
        for kind, reason, message in changes_worth_an_event(before, status):
            self._tell(found, kind, reason, message)
        return written

    def _noted(self, found: VideoJob | None) -> VideoJob:
        if found is None:
            raise NotFound("it is gone")
        self._claims.note(found)
        return found

    def _tell(self, found: VideoJob, kind: str, reason: str, words: str) -> None:
        try:
            self._api.tell(found, kind, reason, words)
        except EsspError as error:  # an Event is a courtesy
            log.info("VideoJob %s: no Event: %s", found.metadata.name, error)


def refusal(error: EsspError) -> Trouble:
    """What an error says about a VideoJob."""
    if isinstance(error, ConfigError):
        return Trouble("Invalid", str(error.within("spec") if error.field or error.parts else error))
    if isinstance(error, Conflict):
        return Trouble("NameTaken", str(error))
    return Trouble("Forbidden" if isinstance(error, Forbidden) else "Refused", str(error))


def _output(found: VideoJob) -> str:
    return str(found.spec.get("output", ""))
