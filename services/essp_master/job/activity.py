"""Which workers are active on a job, and how fast, from recent messages: for users, and for pool sizing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from essp_common.artifacts.early_stop import EarlyStop
from essp_common.job import status
from essp_common.job.sweeps import words
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Fit, PhaseReport, Progress, StepReport
from essp_common.quantities import duration
from essp_common.runtime import ids
from essp_master.job.timeline import Curve

WINDOW_S = 10.0
_CLOSED_WINDOW_S = 60.0
"""Slow clips complete in lumps: a whole batch of the slowest consumer at once."""
_ALIVE_S = 30.0
"""A worker that has been silent for this long is not counted any more."""


class Rate:
    """An amount per second, over a sliding window."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._past: deque[tuple[int, float]] = deque()
        self._past_sum = 0.0
        self._second: int | None = None
        self._present = 0.0
        """The amount within `_second`."""
        self._since = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Add an amount that arrived now."""
        second = int(now_s)
        if second != self._second:
            self._turn(second, now_s)
        self._present += amount

    def per_s(self, now_s: float) -> float:
        """Return the current rate per second."""
        if self._second is None:
            return 0.0
        self._turn(int(now_s), now_s)
        return self.amount / min(self._window_s, max(1.0, now_s - self._since))

    @property
    def amount(self) -> float:
        """The amount within the window."""
        return self._past_sum + self._present

    def _turn(self, second: int, now_s: float) -> None:
        """Close all earlier seconds, and drop those that have left the window."""
        if self._second is None:
            self._since = now_s
        elif second != self._second:
            self._past.append((self._second, self._present))
            self._past_sum += self._present
            self._present = 0.0
        self._second = second
        while self._past and self._past[0][0] < now_s - self._window_s:
            self._past_sum -= self._past.popleft()[1]


@dataclass
class _Pool:
    done: int = 0
    clips: Rate = field(default_factory=Rate)
    seconds: Rate = field(default_factory=Rate)
    seen: dict[str, float] = field(default_factory=dict)
    """When each worker last produced something, ordered from the longest silent."""

    def see(self, worker: str, now_s: float) -> None:
        """Note that a worker has produced something, and forget the workers that are not counted any more."""
        self.seen.pop(worker, None)
        self.seen[worker] = now_s
        while (oldest := next(iter(self.seen))) != worker and now_s - self.seen[oldest] > _ALIVE_S:
            del self.seen[oldest]


@dataclass
class TrainerActivity:
    """The live state of one training."""

    spec: TrainerSpec
    step: StepReport | None = None
    curve: Curve = field(default_factory=Curve)
    reports: dict[tuple[str, int], status.PhaseReport] = field(default_factory=dict)
    """By purpose and epoch, in order. A trainer that falls back produces the reports after its checkpoint again, and
    messages are delivered again to a new master."""
    checkpoint: str | None = None
    stopped: EarlyStop | None = None
    unsaved: str = ""
    """Why its last checkpoint could not be saved; empty if it was saved."""

    def has_figures(self, step: StepReport) -> bool:
        """Whether a report's metrics are meaningful: not before the first clip of a phase, nor before anything was
        learned. A trainer without a learning rate learns only when an epoch has ended; until then it guesses."""
        learned = self.spec.has_rate or step.purpose != TRAIN or any(purpose == "train" for purpose, _ in self.reports)
        return step.clips_done > 0 and learned

    @property
    def phase(self) -> status.PurposeName | None:
        """The purpose of its present phase; None before its first report."""
        return None if self.step is None else status.purpose_name(self.step.purpose)

    @property
    def fits(self) -> bool:
        """Whether it is fitting a model to all clips of a phase."""
        return self.step is not None and self.step.HasField("fit")


class Activity:
    """The workers of one job."""

    def __init__(self, features: Mapping[str, str], trainers: Mapping[str, TrainerSpec]) -> None:
        """`features`: stream -> feature."""
        self._pool_of = {"": ids.DECODER} | {
            stream: ids.extractor_pool([feature]) for stream, feature in features.items()
        }
        self._pools: dict[str, _Pool] = {}
        self.trainers = {name: TrainerActivity(spec) for name, spec in trainers.items()}
        self._closed = Rate(_CLOSED_WINDOW_S)
        self.listener: Callable[[Progress], None] | None = None
        """Also receives the reports of training runs, unless the training has not advanced."""

    def goes_on(self, now_s: float) -> None:
        """Restart the rate: the job works again from now, and the time before a pause or a fit must not count."""
        self._closed = Rate(_CLOSED_WINDOW_S)
        self._closed.add(0, now_s)

    def closed(self, clips: int, now_s: float) -> None:
        """Note that all consumers are done with this many more clips."""
        self._closed.add(clips, now_s)

    def clips_per_s(self, now_s: float) -> float:
        """Return the clips per second that all consumers finished over the last minute of running."""
        return self._closed.per_s(now_s)

    def made(self, stream: str, clips: int, seconds: float, worker: str, now_s: float) -> None:
        """Note that a worker has produced clips of a stream (empty: has decoded clips) in this many seconds."""
        name = self._pool_of.get(stream)
        if name is None:
            return
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        pool.done += clips
        pool.clips.add(clips, now_s)
        pool.seconds.add(seconds, now_s)
        pool.see(worker, now_s)

    def scored(self, clips: int, worker: str, now_s: float) -> None:
        """Note that a predictor has scored clips of a stream."""
        pool = self._pools.setdefault(ids.PREDICTOR, _Pool())
        pool.done += clips
        pool.clips.add(clips, now_s)
        pool.see(worker, now_s)

    @property
    def fits(self) -> bool:
        """Whether a trainer is fitting a model to all clips of a phase, and takes no clips meanwhile."""
        return any(training.fits for training in self.trainers.values())

    def note(self, progress: Progress, now_s: float) -> None:
        """Note a trainer's message."""
        fits = self.fits
        self._note(progress)
        if fits and not self.fits:
            self.goes_on(now_s)

    def _note(self, progress: Progress) -> None:
        match progress.WhichOneof("event"):
            case "step":
                if training := self.trainers.get(progress.step.trainer):
                    waits = training.step is not None and _place(training.step) == _place(progress.step)
                    training.step = progress.step
                    if not waits:
                        if training.has_figures(progress.step):
                            training.curve.add(progress.step)
                        self._pass_on(progress)
            case "phase_report":
                if training := self.trainers.get(progress.phase_report.trainer):
                    training.reports |= _by_phase([_report(progress.phase_report)])
                    if training.step is not None:
                        training.step.ClearField("fit")
                    self._pass_on(progress)
            case "checkpoint":
                if training := self.trainers.get(progress.checkpoint.trainer):
                    training.checkpoint = progress.checkpoint.uri
                    training.unsaved = training.unsaved if progress.checkpoint.resumed else ""
            case "stopped":
                if training := self.trainers.get(progress.stopped.trainer):
                    training.stopped = EarlyStop(progress.stopped.epoch, progress.stopped.best)
            case "trouble" if progress.trouble.unsaved:
                if training := self.trainers.get(progress.trouble.trainer):
                    training.unsaved = progress.trouble.reason

    def recall(
        self, trainer: str, reports: list[status.PhaseReport], checkpoint: str, stopped: EarlyStop | None
    ) -> None:
        """Restore the results of an earlier run of the job."""
        self.trainers[trainer].stopped = stopped
        self.trainers[trainer].reports = _by_phase(reports)
        self.trainers[trainer].checkpoint = checkpoint

    def done(self) -> dict[str, int]:
        """Return the number of clips that each pool has finished."""
        return {name: pool.done for name, pool in self._pools.items()}

    def rates(self, now_s: float) -> dict[str, float]:
        """Return the clips per second that each pool finishes at present."""
        return {name: pool.clips.per_s(now_s) for name, pool in self._pools.items()}

    def pool_statuses(
        self, backlog: Mapping[str, int], now_s: float, waiting: int = 0
    ) -> tuple[status.PoolStatus, ...]:
        """Return the pools that worked on the job, by name. `backlog`: as in `status.JobStatus`. `waiting`: clips that
        wait for predictors."""
        queues: Counter[str] = Counter({ids.PREDICTOR: waiting})
        for part, count in backlog.items():
            queues[ids.DECODER if part == ids.DECODER else self._pool_of[part]] += count
        return tuple(_pool(name, self._pools[name], queues[name], now_s) for name in sorted(self._pools))

    def trainer_statuses(
        self, finals: set[str], held_back: Mapping[str, str], waits: bool
    ) -> tuple[status.TrainerStatus, ...]:
        """Return the trainers in the order of the job. `held_back`: trainer that is too far ahead -> the slowest one.
        `waits`: the job is waiting, so the last reported rates no longer apply."""
        return tuple(
            _trainer(name, training, name in finals, held_back.get(name), waits)
            for name, training in self.trainers.items()
        )

    def _pass_on(self, progress: Progress) -> None:
        if self.listener is not None:
            self.listener(progress)


def _pool(name: str, pool: _Pool, queue: int, now_s: float) -> status.PoolStatus:
    rate = pool.clips.per_s(now_s)
    pool.seconds.per_s(now_s)
    return status.PoolStatus(
        name=name,
        workers=sum(now_s - seen <= _ALIVE_S for seen in pool.seen.values()),
        done=pool.done,
        clips_per_s=rate,
        seconds_per_clip=pool.seconds.amount / pool.clips.amount if pool.clips.amount and pool.seconds.amount else None,
        queue=queue,
    )


def _place(step: StepReport) -> tuple[int, int, int]:
    return step.purpose, step.epoch, step.clips_done


def _trainer(
    name: str, training: TrainerActivity, final: bool, waits_for: str | None, waits: bool
) -> status.TrainerStatus:
    step, stop = training.step, training.stopped
    live = None if waits else step
    shown = step if step and training.has_figures(step) else None
    return status.TrainerStatus(
        name=name,
        stream=training.spec.stream,
        model=training.spec.model,
        sweep=words(training.spec.sweep),
        purpose=status.purpose_name(step.purpose) if step else None,
        epoch=step.epoch if step else max((report.epoch for report in training.reports.values()), default=0),
        clips_done=step.clips_done if step else 0,
        loss=shown.loss if shown else None,
        top1=shown.top1 if shown else None,
        data_wait_ratio=live.data_wait_ratio if live else None,
        clips_per_s=live.clips_per_s if live else None,
        queue=step.queue if step else None,
        waits_for=waits_for,
        lr=live.lr if live and live.HasField("lr") else None,
        fit=_fit(step.fit) if step and training.fits else None,
        reports=tuple(training.reports.values()),
        checkpoint=training.checkpoint,
        final=final,
        stopped=None if stop is None else status.StopStatus(epoch=stop.epoch, best=stop.best, words=stop.words),
    )


def _fit(fit: Fit) -> status.FitStatus:
    left = f", at most {duration(fit.left_s)} left" if fit.left_s else ""
    words = f"learns {fit.what}: step {fit.done:,} of at most {fit.most:,}{left}"
    return status.FitStatus(what=fit.what, done=fit.done, most=fit.most, left_s=fit.left_s or None, words=words)


def _by_phase(reports: Iterable[status.PhaseReport]) -> dict[tuple[str, int], status.PhaseReport]:
    return {(report.purpose, report.epoch): report for report in reports}


def _report(report: PhaseReport) -> status.PhaseReport:
    return status.PhaseReport(
        purpose=status.purpose_name(report.purpose), epoch=report.epoch, metrics=dict(report.metrics)
    )
