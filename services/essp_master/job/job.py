"""One job in the master. It passes each event to the components that it concerns.

    run         what the master owns: specification, fence, history
    life        the job's state, and since when
    run_state   whether this run ends for the next one, and who writes its history
    changes     changes that users made while it ran
    extension   more epochs or trainers, for which this run ends
    recorder    the only writer of the ledger, and of its notes for the history
    activity    which workers are active and how fast, for users and pools
    reporter    events, failures and result, for users
    handshake   what it waits for before it begins to issue
    rescored    which clips are scored again because a predictor left
    stored      the newest clips in the frame cache, for previews
    timeline    its course over time, for users
    stall_watch detects that nothing was reported for a long time
    handover    what is still owed to a run that was taken over
    messages    how its instructions become messages

Pure but for the event log: time is passed in, and the caller carries out the instructions that it gets. Not
thread-safe; `service.py` guards it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any

from essp_common.errors import Fenced
from essp_common.failures import shortened
from essp_common.job import status
from essp_common.job.changes import gains
from essp_common.job.spec import JobSpec
from essp_common.job.status import PURPOSES, JobState, QueueStatus
from essp_common.messages.snapshot import in_message, is_large
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    PREDICTOR,
    TRAINER,
    Control,
    HistorySegment,
    Loop,
    Made,
    PhaseReport,
    Progress,
    StepReport,
    StoppedEarly,
)
from essp_common.runtime import ids
from essp_engine.preflight.preflight import Preflight
from essp_engine.seeding.instructions import Instruction, IssueUnits, TellOfChanges, TellOfLoops
from essp_engine.seeding.message_builder import MessageBuilder
from essp_master.job.activity import Activity
from essp_master.job.changes import Changes
from essp_master.job.event_reporter import EventReporter
from essp_master.job.events import EventLog
from essp_master.job.extension import Extension
from essp_master.job.handover import Handover
from essp_master.job.handshake import Handshake
from essp_master.job.life import JobLife
from essp_master.job.recorder import Recorder
from essp_master.job.rescored import Rescored
from essp_master.job.run import Run
from essp_master.job.run_state import RunEvent, RunState, after
from essp_master.job.stall_watch import StallWatch
from essp_master.job.stored_clips import StoredClips
from essp_master.job.timeline import Timeline
from essp_master.ledger.ledger import Ledger

COMMANDS = {
    JobState.QUEUED: Control.PAUSE,
    JobState.PAUSED: Control.PAUSE,
    JobState.RUNNING: Control.RESUME,
    JobState.STOPPED: Control.STOP,
    JobState.COMPLETED: Control.COMPLETE,
    JobState.FAILED: Control.FAIL,
}
"""The command that announces a state to all workers."""
_HAVE = ("has", "have")
_LIVE = ("step", "heartbeat", "loop")
"""Messages that workers also send while no work gets done: a trainer reports how long it has waited."""


class Job:
    """A job that was started."""

    def __init__(self, run: Run, now_s: float, events: EventLog, team: str = "") -> None:
        """`team`: the owning team."""
        spec, phases = run.preflight.spec, run.preflight.phases
        self.run = run
        self.team = team
        self.priority: int | None = run.preflight.spec.priority
        """In the queue; None if this master has no queue."""
        self.place: QueueStatus | None = None
        """Its position in the queue, as far as it is known; None while it does not wait."""
        self.life = JobLife(spec.name)
        self._phases = frozenset(phases.order)
        self.recorder = Recorder(run)
        self.changes = Changes(spec, run.changes)
        self.messages = MessageBuilder(spec, phases, run.fence, run.preflight.labels)
        self.activity = Activity(
            {name: stream.feature for name, stream in spec.streams.items()},
            spec.trainers,
        )
        self.reporter = EventReporter(spec.name, phases, events)
        self.stored = StoredClips(spec, phases)
        self.rescored = Rescored()
        self.timeline = Timeline()
        self.run_state = RunState.ACTIVE
        self.extension: Extension | None = None
        """What the job gains, and which trainers have left, while `run_state.makes_way`; otherwise None."""
        self.ended_s = -math.inf
        """When the job ended, by the master's clock."""
        self.leftovers = False
        """Whether workers may have stored bytes for the job after its end. Not part of `run_state`, since it is about
        the cache."""
        self.grouped = False
        """Whether the broker may know consumer groups of the job, which has ended."""
        self._heard_s: dict[str, float] = {}
        """When each loop last gave a sign of life."""
        self._handshake: Handshake | None = None
        """Set until the job begins; None if nothing holds it back. Not part of `run_state`: a run that ends for the
        next one may still wait for workers, which the next one needs too."""
        self._stall_watch = StallWatch(now_s)
        self._handover = Handover(run.continued is not None)
        self._recall()
        if run.continued is None:
            self.recorder.started(_now_ms())
            self._stop_again(now_s)
        else:
            self._continue(run.continued)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.run.preflight.spec.name

    @property
    def spec(self) -> JobSpec:
        """The specification of this run."""
        return self.run.preflight.spec

    @property
    def goal(self) -> JobSpec:
        """The specification of the next run if one follows, else of this one."""
        return self.spec if self.extension is None else self.extension.goal.spec

    @property
    def reason(self) -> str:
        """Why the job failed or was stopped, or that its run ends for the next one."""
        if self.extension is None:
            return self.life.reason
        lacking = self.extension.lacking(self.ledger.finals)
        words = f"it gets {gains(self.spec, self.goal)}"
        return f"{words} as soon as {' and '.join(lacking)} {_HAVE[len(lacking) > 1]} saved" if lacking else words

    @property
    def state(self) -> JobState:
        """The present state."""
        return self.life.state

    @property
    def ledger(self) -> Ledger:
        """The ledger, for reading only; `recorder` changes it."""
        return self.recorder.ledger

    @property
    def finishes(self) -> bool:
        """Whether the job waits in the queue while its consumers still have whole batches to finish."""
        return self.state is JobState.QUEUED and self.ledger.outstanding > self.run.preflight.budget.least_clips

    @property
    def needed_pools(self) -> Set[str]:
        """The pools of workers that its clips go through, without its trainers."""
        features = {stream.feature for stream in self.spec.streams.values()} - {"rgb"}
        ends = {ids.PREDICTOR} if self.spec.predicts else {ids.AGGREGATOR} if self.spec.trainers else set()
        return {ids.DECODER, *map(ids.extractor_pool, ([feature] for feature in features)), *ends}

    @property
    def works(self) -> bool:
        """Whether workers have, or get, work for this job."""
        return self.state is JobState.RUNNING or self.finishes

    @property
    def held(self) -> bool:
        """Whether the job still waits to issue its first clip."""
        return self._handshake is not None

    @property
    def awaits(self) -> tuple[str, ...]:
        """The pools that the job waits for before it begins to issue."""
        runs = self.state is JobState.RUNNING
        return self._handshake.lacking if runs and self._handshake is not None else ()

    # --- its state ---

    def enter(self, wanted: JobState, now_s: float, reason: str = "") -> bool:
        """Enter another state. Returns False if the job is already there. Raises `Conflict`."""
        reason = shortened(reason)
        if not self.life.enter(wanted, now_s, reason):
            return False
        if wanted.ended:
            self._go(RunEvent.END)
            self.extension = None
        self._stall_watch.restarted(now_s)
        if wanted is JobState.RUNNING:
            self.activity.goes_on(now_s)
        self.recorder.entered(wanted, reason, _now_ms())
        self.reporter.entered(wanted, reason)
        self.place = None
        return True

    def wait_at(self, place: QueueStatus) -> None:
        """Set its position in the queue."""
        if self.place is None:
            self.reporter.queued(place)
        self.place = place

    def prioritise(self, priority: int) -> bool:
        """Give it another priority in the queue. Returns False if it has this priority already."""
        if priority == self.priority:
            return False
        self.reporter.prioritised(priority, self.priority or 0)
        self.priority = priority
        return True

    def change(self, fields: Mapping[str, Any], goal: JobSpec) -> bool:
        """Change the values of fields while the job is under way. Returns False if they have these values already.
        `goal`: the specification of the job, or of its next run if one follows.

        Raises `ConfigError` for fields that cannot be changed, and `Conflict` if it is too late.
        """
        now_ms = _now_ms()
        ended = self.ledger.finals if goal.epochs == self.spec.epochs else ()
        change = self.changes.make(fields, ended, goal.trainers.keys() <= set(ended), now_ms)
        if change is None:
            return False
        self.recorder.changed(change, now_ms)
        self.reporter.changed(change)
        return True

    def extend(self, goal: Preflight, now_s: float) -> None:
        """End this run so that the next one can begin with the additional epochs and trainers of `goal`."""
        before = self.goal
        self._go(RunEvent.EXTEND)
        if self.extension is None:
            self.extension = Extension(self.spec.trainers, goal, now_s)
            self.recorder.pause()
        else:
            self.extension.goal = goal
        self.reporter.extended(before, self.goal)

    def follow(self, before: Job, now_s: float) -> None:
        """Continue the run that ended for this one: to users they are one job."""
        self.life.follow(before.life, now_s)
        self.timeline.follow(before.timeline)
        for name, training in before.activity.trainers.items():
            if name in self.activity.trainers:
                self.activity.trainers[name].curve.recall(training.curve.points)
        self.reporter.renewed(before.spec, self.spec)

    def has_closed(self, up: Collection[str], now_s: float) -> bool:
        """Whether this run is over and the next one may begin. `up`: the pools that have a worker."""
        extension, closed = self.extension, self.run_state.closed
        if extension is None or not (closed or extension.has_closed(up, self.ledger.finals, now_s)):
            return False
        self._go(RunEvent.CLOSE)
        self.recorder.urgent = True
        return True

    def yield_to(self, fence: int, now_s: float) -> Fenced | None:
        """Leave the job to another master if `fence` is higher than this one's. Returns the error that says so, else
        None."""
        if fence <= self.run.fence or self.state.ended or self.run_state is RunState.RENEWING:
            return None
        self._go(RunEvent.YIELD)
        self.enter(JobState.STOPPED, now_s, "another master has taken the job over")
        return Fenced(
            f"another master has taken job {self.name} over (its fence is {fence}, this one's {self.run.fence}); "
            "only one master may run on a bus, so this one leaves",
            fence,
        )

    def control(self, command: Control.Command) -> Control:
        """Return the message that announces a command to all workers."""
        return Control(
            job=self.name,
            fence=self.run.fence,
            command=command,
            snapshot=in_message(self.run.snapshot),
            reason=self.life.reason,
            since=self.run.since,
            stored=self.run.preflight.spec.output if is_large(self.run.snapshot) else "",
            loops=self.ledger.loops(),
            team=self.team,
            queued=self.state is JobState.QUEUED,
            priority=self.priority or 0,
            changes=self.changes.made,
            next_spec_json="" if self.extension is None else self.goal.model_dump_json(),
        )

    def mark(self) -> Progress:
        """Return a message without an event: when it comes back, this master has read all messages before it."""
        return Progress(job=self.name, worker="master", fence=self.run.fence)

    # --- issuing ---

    def hold(self, handshake: Handshake) -> None:
        """Hold back issuing until `look` finds workers. Only if this run has issued nothing yet and has clips left."""
        clips = sum(plan.clips for plan in self.run.preflight.phases.plans)
        if not self.ledger.counts.issued and self.ledger.closed < clips:
            self._handshake = handshake
            self.recorder.pause()

    def look(self, up: Collection[str], now_s: float) -> Sequence[Instruction]:
        """Check whether the job may begin. `up`: the pools that have a worker."""
        if self._handshake is None:
            return ()
        if self.state is not JobState.RUNNING:
            self._handshake.rest()
            return ()
        before = self.awaits
        begins, lacking = self._handshake.look(up, self.ledger.finals, now_s), self.awaits
        if begins:
            self._handshake = None
            self.activity.goes_on(now_s)
            self.reporter.begins(before, lacking)
            return self.resume()
        if lacking != before:
            self.reporter.awaits(lacking)
        return ()

    def start(self) -> Sequence[Instruction]:
        """Begin to issue, or continue."""
        return self.recorder.start()

    def pause(self, finishes: bool = False) -> None:
        """Issue nothing until `resume`. `finishes`: still reissue the clips that consumers need to finish
        their work."""
        self.recorder.pause(finishes)

    def resume(self) -> Sequence[Instruction]:
        """Issue again."""
        if self._handshake is not None or self.run_state.makes_way:
            return ()
        return [*self.recorder.resume(), *self._hand_over()]

    def issue(self) -> Sequence[Instruction]:
        """Return what can be issued after the messages that came."""
        return self.recorder.issue()

    def has_stalled(self, now_s: float, stall_s: float) -> bool:
        """Whether clips are outstanding and nothing was reported for a long time."""
        if self.run_state.makes_way:
            return False
        if any(ids.serves(it.subject, made) for it in self.reporter.paused for made in self.needed_pools):
            self._stall_watch.reported(now_s)  # no worker is to blame, and seeds issued again would be decoded twice
            return False
        return self.works and self.ledger.outstanding > 0 and self._stall_watch.has_stalled(now_s, stall_s)

    def issue_again(self, now_s: float) -> Sequence[Instruction]:
        """Respond to a stall."""
        self._stall_watch.acted(now_s)
        out = self.recorder.issue_again()
        if out:
            self.reporter.stalled(sum(len(each.units) for each in out if isinstance(each, IssueUnits)))
        return out

    def dismiss_silent(self, now_s: float, patience_s: float) -> Sequence[Instruction]:
        """Make loops leave that have given no sign of life for this long, while the job listens to them."""
        if self.state.ended or self.run_state.makes_way:
            return ()
        out: list[Instruction] = []
        for loop in self.ledger.loops():
            if now_s - self._heard_s.setdefault(loop.consumer, now_s) > patience_s:
                self.reporter.lost_sight(loop.consumer, patience_s)
                left = Loop(consumer=loop.consumer, incarnation=loop.incarnation, left=True)
                out += self.handle(Progress(job=self.name, fence=self.run.fence, loop=left), now_s)
        return out

    def _hand_over(self) -> Sequence[Instruction]:
        works = self.works and not self.run_state.makes_way
        return self.recorder.issue_inherited() if self._handover.is_due(works) else ()

    # --- incoming messages ---

    def handle(self, progress: Progress, now_s: float) -> Sequence[Instruction]:
        """Account for a message, and keep what users want to know about it."""
        run, fence = self.run, progress.fence
        # Messages about an earlier run, or from a master with a higher fence, are not about this run.
        if 0 < fence < run.since or fence > run.fence:
            return ()
        kind = progress.WhichOneof("event")
        if kind not in _LIVE and not _waits(progress):
            self._stall_watch.reported(now_s)
        # The marker of this master has come back: all messages of its predecessor are accounted for.
        if kind is None:
            return self._mark_read() if fence == run.fence else ()
        if self.state.ended:
            # Clips made for a job that another master has taken belong to that master.
            self.leftovers |= kind == "made" and self.run_state is not RunState.FENCED
            self.recorder.handle_late(progress)
            self._take(progress)
            return ()
        if self.extension is not None:
            return self._leave(progress, self.extension)
        if kind == "left":
            return ()
        if kind in ("step", "phase_report") and not self._has_phase(getattr(progress, kind)):
            return ()
        if kind == "change_taken":
            return (TellOfChanges(),) if self._take(progress) else ()
        if kind == "made":
            self._note_made(progress.made, progress.worker, now_s)
        elif kind == "trained":
            self._note_scored(progress, now_s)
        else:
            self.activity.note(progress, now_s)
            self._note_rescored(progress)
        # Taken before the ledger accounts for the message, to see afterwards what the message has changed.
        ledger = self.ledger
        told = kind == "stopped" and ledger.has_stopped(progress.stopped.trainer)
        closed, failed = ledger.closed, ledger.counts.failed
        out = self.recorder.handle(progress)
        # While the predecessor's messages are read, issue after each one: the next message may be about a clip that
        # this ledger has to issue first (`handover.py`).
        if self._handover.reads:
            out += self.recorder.issue()
        if kind == "loop" and any(_same_process(loop, progress.loop) for loop in ledger.loops()):
            # a message from a process that was replaced is not a sign of life
            self._heard_s[progress.loop.consumer] = now_s
        if ledger.closed != closed:
            self.activity.closed(ledger.closed - closed, now_s)
        if ledger.counts.failed != failed:
            self.reporter.failed(progress.failed)
        elif kind in ("phase_report", "checkpoint", "trouble") or (kind == "stopped" and not told):
            self.reporter.progressed(progress)
        if kind == "finished":
            self.reporter.too_late(self.changes.too_late(progress.finished.changes))
        if out:
            self.reporter.instructed(out)
            if any(isinstance(instruction, TellOfLoops) for instruction in out):
                self.reporter.loops(ledger.loops())
        return out

    def _has_phase(self, report: StepReport | PhaseReport) -> bool:
        """Whether the job has the phase that a trainer reports: one report per phase is kept."""
        return report.purpose in PURPOSES and (report.purpose, report.epoch) in self._phases

    def _note_made(self, made: Made, worker: str, now_s: float) -> None:
        """Note how fast workers are, and which clips are available for previews."""
        stream, clips = made.stream, len(made.indices)
        self.activity.made(stream, clips, made.seconds, worker, now_s)
        if clips:
            self.stored.note(stream, made)

    def tell_rescored(self) -> None:
        """Add an event for clips that are made again because a predictor has left."""
        for worker, clips in self.rescored.take().items():
            self.reporter.rescored(worker, clips)

    def _note_scored(self, progress: Progress, now_s: float) -> None:
        trained, worker = progress.trained, progress.worker
        if ids.service_of(trained.consumer) == ids.PREDICTOR and not trained.again:
            self.activity.scored(len(trained.indices), worker, now_s)
            self.rescored.scored(trained.consumer, trained.indices, worker)

    def _note_rescored(self, progress: Progress) -> None:
        failed = progress.failed
        if failed.kind == LOST and failed.stage == PREDICTOR:
            self.rescored.lost(failed.consumer, failed.clip.index, progress.worker)

    def _leave(self, progress: Progress, extension: Extension) -> Sequence[Instruction]:
        """Handle a message while the run ends: as after a stop, further work of trainers counts only for their
        checkpoints."""
        if self.run_state.closed:
            return ()
        match progress.WhichOneof("event"):
            case "left":
                extension.left(progress.left.trainer)
            case "checkpoint" if progress.checkpoint.final:
                extension.left(progress.checkpoint.trainer)
            case "failed" if progress.failed.stage == TRAINER:
                return self.recorder.handle(progress)
        self.recorder.handle_late(progress)
        return (TellOfChanges(),) if self._take(progress) else ()

    def _take(self, progress: Progress) -> bool:
        """Note where a trainer applies a change. Returns False if that is not new."""
        change = self.changes.take(progress.change_taken) if progress.HasField("change_taken") else None
        if change is None:
            return False
        self.recorder.change_taken(progress.change_taken)
        self.reporter.change_taken(change, progress.change_taken)
        return True

    def _mark_read(self) -> Sequence[Instruction]:
        self._handover.mark_read()
        return self._hand_over()

    def let_go(self) -> None:
        """Release what only issuing needs; the job has ended. Idempotent."""
        self.messages.let_go()
        self.run.preflight.phases.let_go()

    # --- its history ---

    def hand_on(self) -> None:
        """A later run is about to begin: this one writes no more history. Everything noted must have been written."""
        self._go(RunEvent.HAND_ON)

    def take_back(self) -> None:
        """The later run did not begin: this one writes its history again."""
        self._go(RunEvent.TAKE_BACK)

    def lose_history(self) -> None:
        """A segment could not be made or written: no more segments follow."""
        self._go(RunEvent.LOSE)

    def swept(self, stray_keys: int) -> None:
        """The cache was searched after the job's end, and what was found was freed; repeated until nothing is found."""
        self.leftovers |= stray_keys > 0
        self.recorder.swept(stray_keys, _now_ms())

    def segment(self, writer: str, now_s: float) -> HistorySegment:
        """Return what was noted since the last segment, with the job's present state."""
        segment = self.recorder.segment(writer, _now_ms())
        segment.state = self.state
        segment.created_ms = round(self.life.created.timestamp() * 1000)
        segment.worked_s = self.life.elapsed_s(now_s)
        segment.failures.extend(self.reporter.failures.values())
        segment.changes.extend(self.changes.made)
        return segment

    def _go(self, event: RunEvent) -> None:
        self.run_state = after(self.run_state, event)

    def _continue(self, segment: HistorySegment) -> None:
        """Restore the state of the previous master's job."""
        with self.run.history.understood(segment.last):
            self.life.restore(segment.created_ms, segment.worked_s)
        self.recorder.taken_over(_now_ms())
        self.reporter.taken_over(segment, self.run.fence)

    def _recall(self) -> None:
        """Restore what earlier runs achieved, for users."""
        purposes = {value: value for value in PURPOSES.values()}
        uris = {checkpoint.trainer: checkpoint.uri for checkpoint in self.run.checkpoints}
        for name, manifest in self.run.resume.manifests.items():
            reports = [
                status.PhaseReport(purpose=purposes[r.purpose], epoch=r.epoch, metrics=r.metrics)
                for r in manifest.history
                if r.purpose in purposes
            ]
            self.activity.recall(name, reports, uris[name], self.run.resume.stops.get(name))
        self.reporter.warn(self.run.preflight.warnings)
        if (course := self.run.course) is not None:
            self.timeline.recall(course.timeline)
            for curve in course.curves:
                if curve.trainer in self.activity.trainers:
                    self.activity.trainers[curve.trainer].curve.recall(curve.points)

    def _stop_again(self, now_s: float) -> None:
        """Account for early stops of trainers before they report them again, so that nothing is issued for epochs that
        they do not train."""
        for name, stop in self.run.resume.stops.items():
            position = self.run.resume.start[ids.trainer_consumer(name)].message()
            stopped = StoppedEarly(trainer=name, position=position, epoch=stop.epoch, best=stop.best)
            self.handle(Progress(job=self.name, fence=self.run.fence, stopped=stopped), now_s)


def _waits(progress: Progress) -> bool:
    """Whether a consumer only reports that it is waiting."""
    return progress.failed.awaited or progress.trained.again


def _same_process(one: Loop, other: Loop) -> bool:
    return (one.consumer, one.incarnation) == (other.consumer, other.incarnation)


def _now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)
