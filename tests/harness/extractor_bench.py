"""A bus and a cache with clips on them, and an extractor between: what decoder, master and trainer see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common import topics
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import FrameCache, clip_key
from essp_common.messages.recipe import clip_consumers
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    ClipReady,
    ClipRef,
    Control,
    DeadLetter,
    FeatureReady,
    FrameCodec,
    Progress,
    Recipe,
    StreamRequest,
)
from essp_common.wiring import Adapters, Stores
from essp_engine.video import codec
from essp_extractor.config import ExtractorSettings
from essp_extractor.service import build
from tests.harness.lossy_bus import LossyBus
from tests.harness.running import running

JOB = "job-1"
CONSUMER = "trainer.motion"


def stream(name: str, feature: str, codec_name: str = "raw", **params: Any) -> StreamRequest:
    return StreamRequest(
        stream=name,
        feature=feature,
        params_json=json.dumps(params),
        codec=FrameCodec(name=codec_name),
        consumers=[CONSUMER],
    )


def frames_at(index: int, frames: int = 6) -> NDArray[np.uint8]:
    """The clip at an index, `(frames, 40, 48, 3)`: noise that moves to the right by `index` pixels a frame."""
    picture = np.random.default_rng(index).integers(0, 256, (10, 12, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
    return np.stack([np.roll(picture, index * t, axis=1) for t in range(frames)])


class ExtractorBench:
    """The surroundings of an extractor, in memory."""

    def __init__(self, *streams: StreamRequest, cache: FrameCache | None = None) -> None:
        self.recipe = Recipe(codec=FrameCodec(name="raw"), streams=streams, ttl_s=60)
        self.cache = cache or MemoryCache()
        self.bus = LossyBus()
        self.adapters = Adapters(self.bus, self.cache, Stores(()))
        wanted = {s.feature for s in streams} - {"rgb"}
        self.features = [topics.features(feature) for feature in sorted(wanted)]
        self.bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, *self.features)})
        self._progress = self.bus.subscribe([topics.PROGRESS], group=None)
        self._letters = self.bus.subscribe([topics.DEADLETTER], group=None)
        self._features = self.bus.subscribe(self.features, group=None) if self.features else None

    def decoded(
        self, index: int, value: bytes | None = None, skipped: str = "", attempt: int = 0, fence: int = 1
    ) -> str:
        """What a decoder does: bytes into the cache, then the message. Gives the clip's key."""
        key = clip_key(JOB, TRAIN, 0, index, attempt)
        if not skipped:
            data = codec.encode(frames_at(index), self.recipe.codec) if value is None else value
            self.cache.put(key, data, clip_consumers(self.recipe), 60)
        self.announce(index, key, skipped, attempt, fence)
        return key

    def announce(self, index: int, key: str, skipped: str = "", attempt: int = 0, fence: int = 1) -> None:
        """The message alone, as when it is delivered again."""
        clip = ClipRef(job=JOB, purpose=TRAIN, epoch=0, index=index, attempt=attempt, video_id=f"v{index}")
        ready = ClipReady(clip=clip, key=key, recipe=self.recipe, skipped=skipped, fence=fence)
        self.bus.publish(topics.CLIPS, b"", ready.SerializeToString(), partition=index % topics.DATA_PARTITIONS)

    def control(self, command: Control.Command) -> None:
        control = Control(job=JOB, fence=1, command=command)
        self.bus.publish(topics.CONTROL, JOB.encode(), control.SerializeToString())

    @contextmanager
    def extractor(self, *features: str, lanes: int = 2) -> Iterator[None]:
        settings = ExtractorSettings(features=features, extractor_lanes=lanes)
        service = build(self.adapters, settings, "extractor-1")
        with running(service):
            yield

    def progress(self, count: int) -> list[Progress]:
        """The next `count` reports; the test's time limit ends a wait in vain."""
        found: list[Progress] = []
        while len(found) < count:
            found += self._reports(count - len(found), 1.0)
        return found

    def said_so_far(self) -> list[Progress]:
        return self._reports(100, 0.0)

    def _reports(self, most: int, timeout_s: float) -> list[Progress]:
        """What came, but for heartbeats."""
        found = [Progress.FromString(record.value) for record in self._progress.poll(most, timeout_s)]
        return [progress for progress in found if not progress.HasField("heartbeat")]

    def ready(self, count: int) -> dict[tuple[int, str], FeatureReady]:
        """The next `count` features by index and stream, each on the partition of its index."""
        found: dict[tuple[int, str], FeatureReady] = {}
        while self._features is not None and len(found) < count:
            for record in self._features.poll(count - len(found), 1.0):
                message = FeatureReady.FromString(record.value)
                assert record.partition == message.clip.index % topics.DATA_PARTITIONS
                found[message.clip.index, message.stream] = message
        return found

    def letters(self, count: int) -> Sequence[DeadLetter]:
        found: list[DeadLetter] = []
        while len(found) < count:
            found += [DeadLetter.FromString(r.value) for r in self._letters.poll(count - len(found), 1.0)]
        return found

    def no_letters(self) -> bool:
        return not self._letters.poll(1, 0.0)

    def take(self, message: FeatureReady) -> NDArray[Any]:
        """What a trainer does: read the bytes and ack them."""
        assert message.bytes == memoryview(self.cache.get(message.key)).nbytes
        array = codec.decode(self.cache.get(message.key)).copy()
        self.cache.ack(message.key, CONSUMER)
        return array
