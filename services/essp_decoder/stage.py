"""How a decoder handles a message: seeds in, clips out.

For each seed of a `DecodeSeed`, the decoder puts the clip into the cache, publishes `ClipReady` to `essp.clips`, and
reports to the master (`essp_engine/worker/reports.py`). A seed that cannot be decoded is reported (`Failed`,
`DeadLetter`) and does not affect the other seeds of its message.

Keys follow from the clip's identity, so handling a message twice is harmless. While the cache is full or a server does
not answer, the decoder keeps what it decoded, and the next attempt continues where this one stopped. If published
messages were lost, it publishes all of them again.

A message without seeds is the request of a catalog's build, which `probes.py` answers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.cache.port import Buffer, FrameCache, clip_key
from essp_common.errors import EsspError
from essp_common.failures import kind_of, kind_word, reason_of
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.messages.recipe import clip_consumers
from essp_common.pb.v1.messages_pb2 import DECODER, ClipReady, ClipRef, DecodeSeed, Failed, Progress, Seed, Snippet
from essp_common.runtime import ids, metrics, tracing
from essp_common.runtime.failpoints import failpoint
from essp_decoder.probes import Probes
from essp_engine.decoding.protocol import of_one_seed
from essp_engine.decoding.sandbox import Outcome, Sandbox
from essp_engine.video import codec
from essp_engine.worker.dead_letters import publish_dead_letter
from essp_engine.worker.reports import Reports


@dataclass(slots=True)
class _Held:
    """A message whose clips are decoded. They are kept until everything published about them is durable."""

    record: Record
    outcomes: list[tuple[Seed, Outcome]]
    seconds: float
    """Mean decoding time of a clip."""
    consumers: list[str]
    """The consumers of each clip."""
    ready: ClipReady
    """The announcement of the current clip. One message object serves all clips, since a new one would copy
    the recipe."""
    published: int = 0
    """Number of outcomes already published."""


class DecodeStage:
    """One lane of a decoder."""

    def __init__(
        self,
        bus: Bus,
        cache: FrameCache,
        control: ControlFeed,
        sandbox: Sandbox,
        reports: Reports,
        worker: str,
        probes: Probes,
    ) -> None:
        self._bus = bus
        self._cache = cache
        self._control = control
        self._sandbox = sandbox
        self._reports = reports
        self._worker = worker
        self._probes = probes
        self._held: _Held | None = None

    def setup(self) -> None:
        """Start the child process."""
        self._sandbox.start()

    def handle(self, record: Record) -> None:
        """Decode and deliver the clips of one `DecodeSeed`, or read its files for a catalog."""
        unit = parsed(DecodeSeed, record)
        if not unit.seeds:
            self._probes.handle(record, unit.probe)
            return
        self._probes.rest()
        held = self._held
        if self._is_wanted(unit) and (held is None or held.record != record):
            self._held = held = self._decoded(record, unit)
            failpoint("decoder.decoded")
        if held is None or not self._is_wanted(unit):  # checked again: decoding takes time
            self._held = None
            return
        for seed, outcome in held.outcomes[held.published :]:
            if isinstance(outcome, EsspError):
                self._fail(record, unit, seed, outcome, attempts=1)
            else:
                self._deliver(held, unit, seed, outcome)
            held.published += 1
        try:
            self._bus.flush()
        except EsspError:
            held.published = 0  # any of them may be lost
            raise
        failpoint("decoder.flushed")
        self._held = None

    def reject(self, record: Record, error: EsspError, attempts: int) -> None:
        """Report every seed of a message that could not be processed."""
        self._held = None
        try:
            unit = parsed(DecodeSeed, record)
        except BadMessage:
            publish_dead_letter(self._bus, record, error, attempts, self._worker)
        else:
            if not unit.seeds:
                self._probes.reject(unit.probe, error)
            for seed in unit.seeds:
                self._fail(record, unit, seed, error, attempts)
        self._bus.flush()

    def close(self) -> None:
        """End the child processes."""
        self._held = None
        self._probes.close()
        self._sandbox.close()

    def _is_wanted(self, unit: DecodeSeed) -> bool:
        """Whether the job is still active, in the run that issued this message.

        Results of an outdated run must not be stored: they would land under the keys of the current run.
        """
        return not self._control.ended(unit.job, unit.fence) and not self._control.outdated(unit.job, unit.fence)

    def _decoded(self, record: Record, unit: DecodeSeed) -> _Held:
        started = time.monotonic()
        outcomes = self._sandbox.decode(unit)
        seconds = (time.monotonic() - started) / max(1, len(outcomes))
        ready = ClipReady(recipe=unit.recipe, fence=unit.fence)
        return _Held(record, list(zip(unit.seeds, outcomes, strict=True)), seconds, clip_consumers(unit.recipe), ready)

    def _deliver(self, held: _Held, unit: DecodeSeed, seed: Seed, value: Buffer) -> None:
        clip = _clip(unit, seed)
        key = clip_key(clip.job, clip.purpose, clip.epoch, clip.index, clip.attempt)
        self._cache.put(key, codec.summed(value), held.consumers, unit.recipe.ttl_s)
        failpoint("decoder.stored")
        tracing.span("decode", clip, held.seconds, bytes=len(value))
        held.ready.clip.CopyFrom(clip)
        held.ready.key, held.ready.bytes = key, len(value)
        self._bus.publish(
            topics.CLIPS,
            str(clip.index).encode(),
            held.ready.SerializeToString(),
            partition=topics.clip_partition(clip.purpose, clip.index, self._bus.partitions),
        )
        failpoint("decoder.announced")
        self._reports.made(clip, unit.fence, len(value), held.seconds)

    def _fail(self, record: Record, unit: DecodeSeed, seed: Seed, error: EsspError, attempts: int) -> None:
        kind = kind_of(error)
        metrics.FAILURES.labels(ids.DECODER, kind_word(kind)).inc()
        failed = Failed(clip=_clip(unit, seed), stage=DECODER, reason=reason_of(error), kind=kind)
        progress = Progress(job=unit.job, worker=self._worker, fence=unit.fence, failed=failed)
        self._bus.publish(topics.PROGRESS, unit.job.encode(), progress.SerializeToString())
        failpoint("decoder.failed")
        message = of_one_seed(unit, seed).SerializeToString()
        publish_dead_letter(self._bus, record, error, attempts, self._worker, message)


def _last_frame(seed: Seed) -> int:
    part: Seed | Snippet = seed.later[-1] if seed.later else seed
    begin = part.first_frame
    if part.offsets:
        return min(begin + part.offsets[-1], seed.last_frame)
    length = seed.frame_count // (1 + len(seed.later))
    return min(begin + max(length - 1, 0) * seed.stride, seed.last_frame)


def _clip(unit: DecodeSeed, seed: Seed) -> ClipRef:
    return ClipRef(
        job=unit.job,
        purpose=unit.purpose,
        epoch=unit.epoch,
        index=seed.index,
        attempt=seed.attempt,
        class_id=seed.class_id,
        video_id=seed.record.id or unit.video.id,
        first_frame=seed.first_frame,
        last_frame=_last_frame(seed),
        labels=seed.labels or unit.video.labels,
    )
