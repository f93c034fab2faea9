"""Passes the metrics of training runs on to trackers, and never makes a job wait for them.

Each tracker has a queue and a thread. Items that a tracker cannot take are offered again after growing pauses. If too
many points wait, new ones are dropped, which is logged; the beginning and the end of a run are never dropped. At the
end, a tracker has a few seconds for the rest.

The x-axis of a point is the number of clips trained by then, over all epochs, so that training runs with other batch
sizes, and other trainers of a job, can be compared. A resuming training continues in its run; its points after the
checkpoint are sent again and replace the earlier ones.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import TEST, TRAIN, VALIDATION, PhaseReport, Progress, StepReport
from essp_common.runtime.threads import guarded

log = logging.getLogger(__name__)

QUEUED = 10_000
"""How many points a tracker may be behind."""
_AT_ONCE = 500
_LAST_S = 20.0
"""Time for the remaining items at the end: W&B alone takes up to fifteen seconds to open a run."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_PURPOSES = {TRAIN: "epoch", VALIDATION: "validation", TEST: "test"}
"""Names of the metrics of whole phases; `train` is for those within an epoch."""


class RunName(NamedTuple):
    """One training of a job."""

    job: str
    trainer: str
    output: str
    """URI of the job's output."""


class Begin(NamedTuple):
    """A run begins."""

    run: RunName
    facts: Mapping[str, str]
    """Settings of the training."""
    anew: bool
    """False: it continues."""


class Point(NamedTuple):
    """One value of a metric."""

    run: RunName
    tag: str
    """For example `train/loss`, `validation/top1`."""
    clips: int
    """Number of clips trained by then."""
    value: float
    time_s: float
    """Seconds since 1970."""


class End(NamedTuple):
    """A run is over."""

    run: RunName
    state: JobState


Item: TypeAlias = Begin | Point | End


class Tracker(Protocol):
    """Writes points somewhere. Used by one thread."""

    name: str

    def write(self, items: Sequence[Item]) -> None:
        """Write all items, or raise any exception: then they are offered again from the first. Items that will never be
        accepted must be skipped, since all others wait behind them."""

    def close(self) -> None:
        """Close files and connections."""


class TrackingServer(Tracker):
    """A tracker whose server may refuse a run: this is logged, and the run is skipped until it begins again."""

    def __init__(self) -> None:
        self._begun: dict[RunName, Begin] = {}
        """By run: its last beginning that was accepted or refused."""
        self._refused: set[RunName] = set()
        self._last: dict[tuple[RunName, str], int] = {}
        """The number of clips at the last point of each tag that the server has."""

    @abstractmethod
    def _begin(self, begin: Begin) -> None:
        """Continue the server's run of this training, or create one."""

    @staticmethod
    @abstractmethod
    def _may_end(error: Exception) -> bool:
        """Whether the server or the connection is at fault, and not the request."""

    def _offer_begin(self, begin: Begin) -> None:
        self._refused.discard(begin.run)
        self._last = {key: clips for key, clips in self._last.items() if key[0] != begin.run}
        self._offer(begin.run, partial(self._begin, begin))
        self._begun[begin.run] = begin

    def _offer(self, run: RunName, call: Callable[[], object]) -> None:
        """Call the server for a run, unless it has refused something of this run before. Raises errors that may
        pass."""
        if run in self._refused:
            return
        try:
            call()
        except Exception as error:
            if self._may_end(error):
                raise
            log.warning("%s: trainer %s of job %s is not tracked any more: %s", self.name, run.trainer, run.job, error)
            self._refuse(run)

    def _refuse(self, run: RunName) -> None:
        self._refused.add(run)


class Tracking:
    """The trackers of a master. `follow` and `ended` are called by its thread."""

    def __init__(self, trackers: Sequence[Tracker], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._senders = [_Sender(tracker) for tracker in trackers]

    def follow(self, spec: JobSpec, epoch_clips: int, resumed: Collection[str]) -> Callable[[Progress], None] | None:
        """Return a function that takes the reports of a job; None if there is no tracker.

        `epoch_clips`: clips of a training epoch. `resumed`: trainers that continue.
        """
        if not self._senders:
            return None
        for trainer in spec.trainers:
            for sender in self._senders:
                sender.offer(Begin(run_name(spec, trainer), facts_of(spec, trainer), trainer not in resumed))

        def take(progress: Progress) -> None:
            for point in points_of(progress, spec, epoch_clips, self._clock()):
                for sender in self._senders:
                    sender.offer(point)

        return take

    def ended(self, spec: JobSpec, state: JobState) -> None:
        """A job is over."""
        for trainer in spec.trainers:
            for sender in self._senders:
                sender.offer(End(run_name(spec, trainer), state))

    def close(self, within_s: float = _LAST_S) -> None:
        """Write the remaining items; those of a tracker that takes longer are lost, which is logged. Idempotent."""
        for sender in self._senders:
            sender.close(within_s)


class _Sender:
    """One tracker's queue and thread."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._left_out = 0
        self._thread = guarded("essp-tracker", self._run, of=tracker.name)
        self._thread.start()

    def offer(self, item: Item) -> None:
        if not isinstance(item, Point) or self._items.qsize() < QUEUED:
            self._items.put(item)
            return
        self._left_out += 1
        log.warning("%s is behind: %d points of training runs were left out", self.tracker.name, self._left_out)

    def close(self, within_s: float) -> None:
        self._closing.set()
        self._thread.join(within_s)
        if self._thread.is_alive():
            log.warning("%s does not answer; %d points are lost", self.tracker.name, self._items.qsize())

    def _run(self) -> None:
        wait_s, items = _FIRST_WAIT_S, list[Item]()
        while True:
            items = items or self._next()
            last = self._closing.is_set()
            if last and not items:
                break
            try:
                if items:
                    self.tracker.write(items)
            except Exception as error:  # noqa: BLE001  foreign code, which must not end the thread
                log.warning("%s: points of training runs cannot be written: %s", self.tracker.name, error)
                if last:
                    break
                self._closing.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                wait_s, items = _FIRST_WAIT_S, []
        self.tracker.close()

    def _next(self) -> list[Item]:
        """Return the queued items; empty if none arrives within a moment."""
        items: list[Item] = []
        try:
            items.append(self._items.get(timeout=0.05 if self._closing.is_set() else 0.5))
            while len(items) < _AT_ONCE:
                items.append(self._items.get_nowait())
        except queue.Empty:
            pass
        return items


def run_name(spec: JobSpec, trainer: str) -> RunName:
    """Return the run of a trainer."""
    return RunName(spec.name, trainer, spec.output)


def points_of(progress: Progress, spec: JobSpec, epoch_clips: int, now_s: float) -> Iterator[Point]:
    """Yield the points of a report; other messages have none."""
    match progress.WhichOneof("event"):
        case "step":
            step = progress.step
            if step.purpose == TRAIN and step.clips_done:
                clips = step.epoch * epoch_clips + step.clips_done
                yield from _points(run_name(spec, step.trainer), "train", clips, _of_step(step), now_s)
        case "phase_report" if progress.phase_report.purpose in _PURPOSES:
            report = progress.phase_report
            clips = spec.epochs * epoch_clips if report.purpose == TEST else (report.epoch + 1) * epoch_clips
            run = run_name(spec, report.trainer)
            yield from _points(run, _PURPOSES[report.purpose], clips, _of_phase(report), now_s)


def _points(run: RunName, group: str, clips: int, values: Mapping[str, float], now_s: float) -> Iterator[Point]:
    for name, value in values.items():
        if math.isfinite(value):
            yield Point(run, f"{group}/{name}", clips, value, now_s)


def _of_step(step: StepReport) -> dict[str, float]:
    return {
        "loss": step.loss,
        "top1": step.top1,
        "data_wait_ratio": step.data_wait_ratio,
        "clips_per_s": step.clips_per_s,
    }


def _of_phase(report: PhaseReport) -> dict[str, float]:
    return dict(sorted(report.metrics.items()))


def facts_of(spec: JobSpec, trainer: str) -> dict[str, str]:
    """Return the settings of a trainer and its stream, flattened: `optimizer.lr` -> `0.01`."""
    asked = spec.trainers[trainer]
    stream = spec.streams[asked.stream]
    whole = {"trainer": asked.model_dump(mode="json"), "stream": stream.model_dump(mode="json")}
    return {**_flat("", whole["trainer"]), **_flat("stream.", {k: v for k, v in whole["stream"].items() if v})}


def _flat(before: str, values: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(f"{before}{name}.", value)
        elif value is not None:
            found[f"{before}{name}"] = str(value)
    return found
