"""How an extractor handles a message: a clip in, its features out.

The extractor reads the clip of a `ClipReady` from the cache once, and computes the requested features of this stage,
which share intermediate results. It puts each into the cache, publishes `FeatureReady`, and reports the feature. Once
the report is durable (`essp_engine/worker/reports.py`), it acks the clip.

An error in one stream does not affect the others: a stream that cannot succeed does not stop the retries of another
one, and each is reported with its own error. While the cache is full or a server does not answer, the extractor keeps
what it computed for the clip, and the next attempt continues where this one stopped. If published messages were lost,
it publishes all of them again.

Keys follow from the clip's identity, so handling a message twice is harmless. If the clip's bytes are gone or damaged,
either the clip was already extracted (a redelivery) or it was lost. The extractor reports it as lost; the master knows
which case applies, and orders a rebuild if necessary.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.cache.port import Buffer, FrameCache, stream_key
from essp_common.errors import BadFrames, CacheMiss, EsspError, OtherRelease, PermanentError, TransientError
from essp_common.failures import kind_of, kind_word, reason_of
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import (
    EXTRACTOR,
    LOST,
    ClipReady,
    Failed,
    FailureKind,
    FeatureReady,
    Progress,
    StreamRequest,
)
from essp_common.runtime import ids, metrics, tracing
from essp_common.runtime.failpoints import failpoint
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import Extractor, SignedExtractor
from essp_engine.features.quantization import usage
from essp_engine.video import codec
from essp_engine.video.joined import has_motion, is_joined, separate
from essp_engine.worker.dead_letters import publish_dead_letter
from essp_engine.worker.loop import unexpected
from essp_engine.worker.reports import Reports

Snippets = Sequence[Intermediates]
"""The intermediate results of each snippet of a clip. Features are computed per snippet."""


class _Feature(NamedTuple):
    """A computed stream of a clip, encoded for the cache."""

    value: Buffer
    seconds: float
    """Computing time."""


@dataclass(slots=True)
class _Held:
    """The current message and the state of its streams. After a transient error it is handled again."""

    record: Record
    computed: dict[str, _Feature] = field(default_factory=dict)
    """Streams whose announcements are not durable yet."""
    made: set[str] = field(default_factory=set)
    """The streams that are stored and announced."""
    errors: dict[str, Exception] = field(default_factory=dict)
    """Why other streams could not be computed."""


class ExtractStage:
    """One lane of an extractor for some features."""

    def __init__(
        self,
        bus: Bus,
        cache: FrameCache,
        control: ControlFeed,
        features: Collection[str],
        reports: Reports,
        worker: str,
    ) -> None:
        self._bus = bus
        self._cache = cache
        self._control = control
        self._features = features
        self._reports = reports
        self._worker = worker
        self._extractors: dict[tuple[str, str], Extractor] = {}
        self._held: _Held | None = None

    def setup(self) -> None:
        """Look up the features, so that an unknown one is refused at startup."""
        for feature in self._features:
            registry.extractor_class(feature)

    def handle(self, record: Record) -> None:
        """Compute the features of one clip, one for each requesting stream."""
        self._work_on(self._begin(record))
        self._held = None

    def reject(self, record: Record, error: EsspError, attempts: int) -> None:
        """Report each stream that could not be computed, and free the clip.

        The record may never have been handled here: workers may have crashed on it.
        """
        held = self._begin(record)
        try:
            ready = parsed(ClipReady, record)
        except BadMessage:
            ready = None
        if ready is not None:
            for stream in self._streams(ready):
                if stream.stream not in held.made:
                    own = held.errors.get(stream.stream, error)
                    self._fail(ready, stream, own if isinstance(own, EsspError) else unexpected(own))
                self._cache.ack(ready.key, ids.extractor_consumer(stream.stream))
        publish_dead_letter(self._bus, record, error, attempts, self._worker)
        self._bus.flush()
        self._held = None

    def close(self) -> None:
        """Drop the extractors."""
        self._held = None
        self._extractors.clear()

    def _work_on(self, held: _Held) -> None:
        ready = parsed(ClipReady, held.record)
        streams = self._streams(ready)
        job, fence = ready.clip.job, ready.fence
        if not streams or ready.skipped or self._control.ended(job, fence) or self._control.of_earlier_run(job, fence):
            return
        held.errors = {name: error for name, error in held.errors.items() if _is_final(error)}
        try:
            self._compute(held, ready, streams)
        except (CacheMiss, BadFrames) as error:
            self._have_made_again(ready, streams, error)
            return
        for stream in streams:
            if stream.stream in held.computed and stream.stream not in held.made:
                self._deliver(held, ready, stream)
        try:
            self._bus.flush()
        except EsspError:
            held.made -= held.computed.keys()  # any of them may be lost
            raise
        held.computed.clear()
        failpoint("extractor.flushed")
        if held.errors:
            raise min(held.errors.values(), key=_is_final)  # retryable errors first
        self._reports.then(partial(self._free, ready.key, streams))

    def _have_made_again(self, ready: ClipReady, streams: Sequence[StreamRequest], error: EsspError) -> None:
        """Report the clip as lost. Damaged bytes are given up: the video behind them is intact."""
        for stream in streams:
            self._cache.ack(ready.key, ids.extractor_consumer(stream.stream))
            self._fail(ready, stream, error, LOST, awaited=isinstance(error, OtherRelease))
        self._bus.flush()

    def _begin(self, record: Record) -> _Held:
        """The state of this record; empty if it is not the current one."""
        if self._held is None or self._held.record != record:
            self._held = _Held(record)
        return self._held

    def _free(self, key: str, streams: Sequence[StreamRequest]) -> None:
        """Ack the clip for these streams."""
        for stream in streams:
            self._cache.ack(key, ids.extractor_consumer(stream.stream))
        failpoint("extractor.acked")

    def _streams(self, ready: ClipReady) -> list[StreamRequest]:
        return [stream for stream in ready.recipe.streams if stream.feature in self._features]

    def _compute(self, held: _Held, ready: ClipReady, streams: Sequence[StreamRequest]) -> None:
        """Compute the streams without a result or an error so far, and record their errors.

        An exception raised from here concerns the clip as a whole.
        """
        known = held.computed.keys() | held.made | held.errors.keys()
        missing = [stream for stream in streams if stream.stream not in known]
        shared = self._read(ready, {stream.view for stream in missing}) if missing else {}
        for stream in missing:
            try:
                held.computed[stream.stream] = self._extract(stream, shared[stream.view])
            except Exception as error:  # noqa: BLE001  raised after the other streams are done
                held.errors[stream.stream] = error

    def _read(self, ready: ClipReady, views: Collection[str]) -> dict[str, Snippets]:
        """The frames of these views, by view."""
        value = self._cache.get(ready.key)
        failpoint("extractor.read")
        if not is_joined(value):
            only = self._snippets(ready, value)
            return dict.fromkeys(views, only)
        values = {view.name: part for view, part in zip(ready.recipe.views, separate(value), strict=True)}
        return {view: self._snippets(ready, values[view]) for view in views}

    def _snippets(self, ready: ClipReady, value: Buffer) -> Snippets:
        motion: NDArray[np.int16] | None = None
        if has_motion(value):
            value, of_motion = separate(value)
            motion = codec.decode(of_motion, checked=True)
        clip: NDArray[np.uint8] = codec.decode(value, checked=True)
        snippets, colour = ready.recipe.snippets or 1, codec.header(value).colour
        if len(clip) % snippets:
            raise PermanentError(f"a clip of {len(clip)} frames does not divide into {snippets} equal snippets")
        of_each = [None] * snippets if motion is None else np.split(motion, snippets)
        return [
            Intermediates(*each) for each in zip(np.split(clip, snippets), [colour] * snippets, of_each, strict=True)
        ]

    def _extract(self, stream: StreamRequest, shared: Snippets) -> _Feature:
        started = time.monotonic()
        extractor = self._extractor(stream)
        made: list[NDArray[Any]] = [extract_with(extractor, snippet) for snippet in shared]
        feature = made[0] if len(made) == 1 else np.concatenate(made)
        if isinstance(extractor, SignedExtractor):
            _count_codes(stream.feature, feature)
        value = codec.encode(feature, stream.codec)
        return _Feature(value, time.monotonic() - started)

    def _deliver(self, held: _Held, ready: ClipReady, stream: StreamRequest) -> None:
        """Store and announce a computed stream. Records an error of the stream itself; raises transient errors."""
        try:
            self._publish(ready, stream, *held.computed[stream.stream])
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001  raised after the other streams are done
            held.errors[stream.stream] = error
            del held.computed[stream.stream]
        else:
            held.made.add(stream.stream)

    def _publish(self, ready: ClipReady, stream: StreamRequest, value: Buffer, seconds: float) -> None:
        started = time.monotonic()
        key = stream_key(ready.key, stream.stream)
        self._cache.put(key, codec.summed(value), list(stream.consumers), ready.recipe.ttl_s)
        failpoint("extractor.stored")
        seconds += time.monotonic() - started
        tracing.span(f"extract {stream.stream}", ready.clip, seconds, feature=stream.feature, bytes=len(value))
        message = FeatureReady(
            clip=ready.clip,
            stream=stream.stream,
            key=key,
            bytes=len(value),
            consumers=stream.consumers,
            fence=ready.fence,
        )
        self._bus.publish(
            topics.features(stream.feature),
            str(ready.clip.index).encode(),
            message.SerializeToString(),
            partition=topics.clip_partition(ready.clip.purpose, ready.clip.index, self._bus.partitions),
        )
        failpoint("extractor.announced")
        self._reports.made(ready.clip, ready.fence, len(value), seconds, stream.stream)

    def _extractor(self, stream: StreamRequest) -> Extractor:
        kind = (stream.feature, stream.params_json)
        extractor = self._extractors.get(kind)
        if extractor is None:
            extractor = registry.create(stream.feature, json.loads(stream.params_json))
            extractor.setup()
            self._extractors[kind] = extractor
        return extractor

    def _fail(
        self,
        ready: ClipReady,
        stream: StreamRequest,
        error: EsspError,
        kind: FailureKind | None = None,
        awaited: bool = False,
    ) -> None:
        kind = kind_of(error) if kind is None else kind
        metrics.FAILURES.labels(ids.EXTRACTOR, kind_word(kind)).inc()
        failed = Failed(
            clip=ready.clip,
            stage=EXTRACTOR,
            reason=reason_of(error),
            kind=kind,
            stream=stream.stream,
            consumer=ids.extractor_consumer(stream.stream),
            awaited=awaited,
        )
        progress = Progress(job=ready.clip.job, worker=self._worker, fence=ready.fence, failed=failed)
        self._bus.publish(topics.PROGRESS, ready.clip.job.encode(), progress.SerializeToString())
        failpoint("extractor.failed")


def _is_final(error: Exception) -> bool:
    """Whether another attempt is pointless."""
    return isinstance(error, EsspError) and not isinstance(error, TransientError)


def _count_codes(name: str, feature: NDArray[Any]) -> None:
    """Count clipped and zero codes: many clipped ones mean the bound is too small for the videos, many zeros
    too large."""
    for what, count in usage(feature)._asdict().items():
        metrics.FLOW_CODES.labels(name, what).inc(count)
