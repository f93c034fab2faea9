"""Measures what a clip of a job costs by running the job in this process for some seconds. No output is kept.

Everything is real: decoders, extractors, trainers, and the transport between them, which is in memory. Processor time
is measured because other programs on the machine disturb it less than they disturb rates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from essp.capacity.cpu import TICK_S, cpu_by_part
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common import topics
from essp_common.bus.port import Subscription
from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.pb.v1.messages_pb2 import Progress
from essp_common.runtime import ids
from essp_common.runtime.config import Settings
from essp_common.runtime.temporary import TemporaryFolder
from essp_common.wiring import Stores
from essp_engine.planning.decode_cost import decode_cost
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared

_LOOK_S = 0.2
_LAST = 0.99
"""The progress shown when the time is over but a batch is still awaited."""
_PATIENCE = 3
"""Maximum time for a trainer's first batch, and for its second, as a multiple of the requested seconds."""
ENOUGH_CLIPS = 300
"""From this number of clips on, the constant cost of ESSP per second is small compared to the cost of the clips."""


class _Figures(dict[str, float]):
    """Counters by name. A missing counter is 0."""

    def __missing__(self, name: str) -> float:
        return 0.0


Tell = Callable[[str, float, "float | None"], None]
"""Called several times a second with the current activity, the completed share, and the seconds left (None:
unknown)."""


@dataclass(frozen=True)
class Costs:
    """The cost of one clip, by part. `essp/capacity/cpu.py` lists the parts."""

    seconds: dict[str, float]
    """Processor time. A part without work is missing."""
    bytes: dict[str, float]
    """Size in the cache: of `clip`, and of each extracted stream."""
    read_bytes: float
    """Compressed video that is read for the clip."""
    clips: int
    """Clips that the slowest trainer consumed during the measurement."""
    clips_per_s: float
    """The rate of these clips on this machine, under its load at the time."""
    ended: bool = False
    """The job ended before the measurement did."""
    rough: frozenset[str] = frozenset()
    """Parts that had finished their work when every trainer had completed its first batch. Their figures include the
    start of the job."""
    epoch_clips: int = 0
    """Clips in a training epoch of the job."""

    @property
    def known(self) -> bool:
        """Whether enough was measured to say what a clip costs."""
        return self.clips >= ENOUGH_CLIPS and not self.rough


def measure(spec: JobSpec, settings: Settings, seconds: float, tell: Tell = lambda *_: None) -> Costs:
    """Run a training job for about this number of seconds after its first batches.

    Raises `ConfigError` if the job cannot run, and `EsspError` if it fails.
    """
    with TemporaryFolder("plan") as folder:
        memory = {"bus": "memory://", "cache": "memory://", "stores": (*settings.stores, f"file://{folder}")}
        settings = settings.model_copy(update=memory)
        spec = spec.model_copy(update={"output": f"file://{folder}/run"})
        found = preflight(spec, Stores(settings.stores), True, Declared(code=settings.code))
        with Embedded(found, settings, EmbeddedOptions(alone=True)) as job:
            made = job.adapters.bus.subscribe([topics.PROGRESS], None)
            try:
                return _measured(job, found, made, seconds, tell)
            finally:
                made.close()


def _measured(job: Embedded, found: Preflight, progress: Subscription, seconds: float, tell: Tell) -> Costs:
    spec = found.spec

    def starting(_: float, counts: _Figures) -> None:
        tell(f"waiting for the first batch of {_slowest(counts, spec)}", 0.0, None)

    begin, _ = _until(job, lambda counts, _: _least(counts, spec) > 0, seconds, starting)
    warm = _least(begin, spec)  # every trainer has completed a step

    def measuring(elapsed_s: float, counts: _Figures) -> None:
        if elapsed_s < seconds:
            tell("measuring the job", elapsed_s / seconds, seconds - elapsed_s)
        else:
            tell(f"waiting for the next batch of {_slowest(counts, spec)}", _LAST, None)

    end, status = _until(
        job, lambda counts, elapsed_s: elapsed_s >= seconds and _least(counts, spec) > warm, seconds, measuring
    )
    used = _Figures({name: value - begin[name] for name, value in end.items()})
    clips, ended = int(_least(used, spec)), status.state.ended
    if not clips:
        raise EsspError(_too_short(_slowest(used, spec), used["time"], ended))
    parts = ("decoder", "master", *(f"{kind}.{name}" for name in spec.trainers for kind in ("feed", "trainer")))
    costs, rough = _costs(parts, used, end)
    extractors = _extractors(used, status)
    made = _extractors(end, status)
    rough |= made.keys() - extractors.keys()
    read = _read_bytes(found)
    return Costs(
        costs | made | extractors,
        _bytes(progress),
        read,
        clips,
        clips / used["time"],
        ended,
        frozenset(rough),
        found.phases.plans[0].clips,
    )


def _costs(parts: Sequence[str], used: _Figures, end: _Figures) -> tuple[dict[str, float], set[str]]:
    """What a clip costs in each part, and the parts whose figures include the start of the job.

    Those are the parts that had finished all their clips before the measurement began.
    """
    costs: dict[str, float] = {}
    rough: set[str] = set()
    for part in parts:
        counter = _counter(part)
        if used[counter] > 0:
            costs[part] = per_clip(used[f"cpu.{part}"], used[counter])
        elif end[counter] > 0:
            costs[part] = per_clip(end[f"cpu.{part}"], end[counter])
            rough.add(part)
    return costs, rough


def _too_short(trainer: str, seconds: float, ended: bool) -> str:
    """The reason why nothing was measured, with advice. `trainer`: the slowest one."""
    if ended:
        return (
            f"the job was over before trainer {trainer} had learned from a second batch, so nothing was measured; give "
            "it more epochs or sampling.clips_per_epoch, or a smaller batch_size"
        )
    longer = 2 * max(1, round(seconds))
    return (
        f"trainer {trainer} did not get through a second batch in {seconds:.0f} s, so nothing was measured; try "
        f"--seconds {longer}, or a smaller batch_size"
    )


def per_clip(processor_s: float, clips: float) -> float:
    """Seconds of a part per clip.

    At least one tick of the kernel is assumed, because a part with zero seconds would have no limit.
    """
    return max(processor_s, TICK_S) / clips


def _extractors(used: _Figures, status: JobStatus) -> dict[str, float]:
    """Seconds per clip of each feature. One process computes all features, so its time is divided in proportion to how
    long its lanes were busy with each."""
    busy = {
        pool.name: pool.seconds_per_clip
        for pool in status.pools
        if pool.name.startswith(ids.EXTRACTOR) and pool.seconds_per_clip and used[pool.name] > 0
    }
    whole = sum(seconds * used[name] for name, seconds in busy.items())
    processor_s = sum(value for name, value in used.items() if name.startswith(f"cpu.{ids.EXTRACTOR}."))
    return {name: per_clip(processor_s, whole / seconds) for name, seconds in busy.items()}


def _until(
    job: Embedded,
    enough: Callable[[_Figures, float], bool],
    seconds: float,
    tell: Callable[[float, _Figures], None],
) -> tuple[_Figures, JobStatus]:
    """Poll until there is enough. Returns the counters with processor times, and the status. Raises `EsspError` if the
    job fails."""
    began_s = time.monotonic()
    while True:
        ended = job.ended(_LOOK_S)
        elapsed_s = time.monotonic() - began_s
        status = job.status()
        if status.state is JobState.FAILED:
            raise EsspError(f"the job failed: {status.reason}")
        counts = _counts(status)
        if ended or enough(counts, elapsed_s) or elapsed_s > _PATIENCE * seconds:
            return counts, status
        tell(elapsed_s, counts)


def _counts(status: JobStatus) -> _Figures:
    """The number of clips that each part has finished, and the processor time it has used."""
    counts = _Figures({f"cpu.{part}": seconds for part, seconds in cpu_by_part().items()})
    counts["time"] = time.monotonic()
    counts |= {pool.name: pool.done for pool in status.pools}
    for phase in status.phases:
        for consumer, done in phase.done.items():
            counts[consumer] += done
    return counts


def _counter(part: str) -> str:
    """The name of the counter for the clips of a part."""
    kind, _, name = part.partition(".")
    return {"feed": ids.trainer_consumer(name), "master": ids.DECODER}.get(kind, part)


def _slowest(counts: _Figures, spec: JobSpec) -> str:
    """The trainer with the fewest clips."""
    return min(spec.trainers, key=lambda name: counts[ids.trainer_consumer(name)])


def _least(counts: _Figures, spec: JobSpec) -> float:
    return min(counts[consumer] for consumer in spec.readers())


def _bytes(made: Subscription) -> dict[str, float]:
    """Mean sizes in the cache, by part of a clip."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    while records := made.poll(10_000, 0):
        for record in records:
            message = Progress.FromString(record.value)
            if message.HasField("made"):
                part = message.made.stream or "clip"
                total[part] += sum(message.made.bytes)
                count[part] += len(message.made.bytes)
    return {part: total[part] / count[part] for part in total}


def _read_bytes(found: Preflight) -> float:
    """Compressed bytes of the frames decoded for a clip, computed from the catalog."""
    phases = found.phases
    view = phases.view(0)
    if found.spec.data.records:
        return float(view.rows.numbers("size_bytes").mean())
    cost = decode_cost(phases.plan(0), view, found.spec.sampling.issue_window, found.budget.unit_clips)
    frames = float(view.rows.numbers("frame_count").sum())
    return cost.frames / cost.clips * float(view.rows.numbers("size_bytes").sum()) / max(1.0, frames)
