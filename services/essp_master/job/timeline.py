"""The course of a job over its time, and of its trainers over their clips, in bounded memory.

Samples of the job are taken every few seconds and averaged over stretches. When there are too many stretches,
neighbours are joined, and the next ones are twice as long: 16 minutes are kept by 2 seconds, a day by 5 minutes. Of
the many reports of a trainer, every second, fourth, ... is kept. Pure: time is passed in. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from essp_common.job.status import CurvePoint, TrainerCurve
from essp_common.job.timeline import Figure, JobTimeline, StoredTimeline, TimelineSeries, UsageTotal
from essp_common.job.usage import PoolUsage
from essp_common.pb.v1.messages_pb2 import TRAIN, StepReport

SAMPLE_S = 2.0
MOST = 480
"""Largest number of stretches."""
MOST_POINTS = 512
"""Largest number of points of a curve."""
_MOST_SERIES = 256
"""Largest number of series; pools and trainers beyond them are left out."""
_DIGITS = 5

Key = tuple[Figure, str]


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total += value * weight
        self.weight += weight

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight else None


@dataclass(slots=True)
class _Stretch:
    """Samples of one stretch of time."""

    begin_s: float
    end_s: float
    means: dict[Key, _Mean] = field(default_factory=dict)

    @property
    def middle_s(self) -> float:
        return (self.begin_s + self.end_s) / 2

    def join(self, other: _Stretch) -> None:
        self.end_s = other.end_s
        for key, mean in other.means.items():
            own = self.means.setdefault(key, _Mean())
            own.total += mean.total
            own.weight += mean.weight


@dataclass(slots=True)
class _Total:
    """What a pool used so far."""

    seconds: float = 0.0
    cpu: _Mean = field(default_factory=_Mean)
    busy: _Mean = field(default_factory=_Mean)
    gpu: _Mean = field(default_factory=_Mean)
    peak_memory: int | None = None
    peak_gpu_memory: int | None = None
    joules: float | None = None

    def add(self, usage: PoolUsage, passed_s: float) -> None:
        self.seconds += passed_s
        for mean, value in ((self.cpu, usage.cpu_cores), (self.busy, usage.busy), (self.gpu, usage.gpu_busy)):
            if value is not None:
                mean.add(value, passed_s)
        self.peak_memory = _larger(self.peak_memory, usage.memory_bytes)
        self.peak_gpu_memory = _larger(self.peak_gpu_memory, usage.gpu_memory_bytes)
        if usage.gpu_watts is not None:
            self.joules = (self.joules or 0.0) + usage.gpu_watts * passed_s


class Timeline:
    """The course of one job."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._every_s = SAMPLE_S
        self._totals: dict[str, _Total] = {}
        self._sampled_s: float | None = None
        self._known: set[Key] = set()
        self.changed = False
        """Whether there are samples that are not in `stored` yet."""

    def due(self, now_s: float) -> bool:
        """Whether the next sample is to be taken. `now_s`: by the clock of the caller, as in `add`."""
        return self._sampled_s is None or now_s - self._sampled_s >= SAMPLE_S

    def add(self, values: Mapping[Key, float | None], usage: Iterable[PoolUsage], now_s: float, time_s: float) -> None:
        """Add a sample. `usage`: what the pools that work for the job use. `time_s`: seconds since 1970."""
        passed_s = 0.0 if self._sampled_s is None else min(now_s - self._sampled_s, 2 * SAMPLE_S)
        self._sampled_s, self.changed = now_s, True
        stretch = self._present(time_s)
        for key, value in values.items():
            if value is not None and self._knows(key):
                stretch.means.setdefault(key, _Mean()).add(value)
        for pool in usage:
            for figure, used in _figures(pool).items():
                if used is not None and self._knows((figure, pool.pool)):
                    stretch.means.setdefault((figure, pool.pool), _Mean()).add(used)
            if passed_s and (pool.pool in self._totals or len(self._totals) < _MOST_SERIES):
                self._totals.setdefault(pool.pool, _Total()).add(pool, passed_s)

    def model(self) -> JobTimeline:
        """Return it for users."""
        return JobTimeline(
            every_s=self._every_s,
            times=tuple(round(stretch.middle_s, 1) for stretch in self._stretches),
            series=tuple(self._series(key) for key in sorted(self._known)),
            totals=tuple(_total(pool, total) for pool, total in sorted(self._totals.items())),
        )

    def stored(self, curves: Iterable[TrainerCurve]) -> StoredTimeline:
        """Return what the job's output keeps."""
        self.changed = False
        return StoredTimeline(timeline=self.model(), curves=tuple(curves))

    def recall(self, before: JobTimeline) -> None:
        """Continue after what earlier runs, or earlier masters, have stored."""
        half_s, samples = before.every_s / 2, max(1.0, before.every_s / SAMPLE_S)
        self._every_s = max(SAMPLE_S, before.every_s)
        self._stretches = [_Stretch(time_s - half_s, time_s + half_s) for time_s in before.times]
        for series in before.series:
            self._known.add((series.figure, series.of))
            for stretch, value in zip(self._stretches, series.values, strict=False):
                if value is not None:
                    stretch.means[series.figure, series.of] = _Mean(value * samples, samples)
        self._totals = {total.pool: _recalled(total) for total in before.totals}

    def follow(self, before: Timeline) -> None:
        """Continue the course of the run that this one follows."""
        self.recall(before.model())

    def _present(self, time_s: float) -> _Stretch:
        """Return the stretch that a sample belongs to."""
        last = self._stretches[-1] if self._stretches else None
        if last is not None and time_s - last.begin_s < self._every_s:
            last.end_s = max(last.end_s, time_s)  # the clock may have been set back
            return last
        if len(self._stretches) >= MOST:
            self._thin()
            return self._present(time_s)
        begin_s = time_s if last is None else max(time_s, last.end_s)
        self._stretches.append(_Stretch(begin_s, begin_s))
        return self._stretches[-1]

    def _thin(self) -> None:
        """Join neighbours, and forget the oldest if that is not enough, as between the many runs of a job."""
        self._every_s *= 2
        kept: list[_Stretch] = []
        for stretch in self._stretches:
            if kept and stretch.begin_s - kept[-1].begin_s < self._every_s:
                kept[-1].join(stretch)
            else:
                kept.append(stretch)
        self._stretches = kept if len(kept) <= MOST * 3 // 4 else kept[-MOST // 2 :]

    def _knows(self, key: Key) -> bool:
        if key not in self._known and len(self._known) < _MOST_SERIES:
            self._known.add(key)
        return key in self._known

    def _series(self, key: Key) -> TimelineSeries:
        means = (stretch.means.get(key) for stretch in self._stretches)
        values = tuple(None if mean is None else _rounded(mean.value) for mean in means)
        return TimelineSeries(figure=key[0], of=key[1], values=values)


class Curve:
    """The course of one trainer within its epochs: points that are evenly spaced over all its reports."""

    def __init__(self) -> None:
        self._points: list[CurvePoint] = []
        self._every = 1
        self._seen = 0

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The points, in order."""
        return tuple(self._points)

    def recall(self, points: Sequence[CurvePoint]) -> None:
        """Continue after these points."""
        self._points = list(points)[-MOST_POINTS + 1 :]

    def add(self, step: StepReport) -> None:
        """Add a report. Only reports of a training phase that has begun enter the curve."""
        if step.purpose != TRAIN or not step.clips_done:
            return
        if self._seen % self._every == 0:
            point = CurvePoint(epoch=step.epoch, clips_done=step.clips_done, loss=step.loss, top1=step.top1)
            self._points.append(point)
        self._seen += 1
        if len(self._points) == MOST_POINTS:
            self._points = self._points[::2]
            self._every *= 2


def _figures(usage: PoolUsage) -> dict[Figure, float | None]:
    return {
        "cpu_cores": usage.cpu_cores,
        "memory_bytes": usage.memory_bytes,
        "gpu_busy": usage.gpu_busy,
        "gpu_memory_bytes": usage.gpu_memory_bytes,
        "gpu_watts": usage.gpu_watts,
    }


def _total(pool: str, total: _Total) -> UsageTotal:
    return UsageTotal(
        pool=pool,
        seconds=round(total.seconds, 1),
        cpu_cores=_rounded(total.cpu.value),
        busy=_rounded(total.busy.value),
        peak_memory_bytes=total.peak_memory,
        gpu_busy=_rounded(total.gpu.value),
        peak_gpu_memory_bytes=total.peak_gpu_memory,
        gpu_joules=_rounded(total.joules),
    )


def _recalled(total: UsageTotal) -> _Total:
    found = _Total(
        total.seconds,
        peak_memory=total.peak_memory_bytes,
        peak_gpu_memory=total.peak_gpu_memory_bytes,
        joules=total.gpu_joules,
    )
    for mean, value in ((found.cpu, total.cpu_cores), (found.busy, total.busy), (found.gpu, total.gpu_busy)):
        if value is not None:
            mean.add(value, total.seconds)
    return found


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
