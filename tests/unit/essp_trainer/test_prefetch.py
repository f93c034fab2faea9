"""Batches are the same whoever decodes and crops their clips."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key
from essp_common.features.registry import layout_of
from essp_common.job.clip_spec import ClipSpec, CodecSpec
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.learning.augment import training_view
from essp_common.learning.wanted import reading
from essp_common.messages.ordered import IntakeOptions, OrderedIntake, PhaseEnd
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipReady, ClipRef, FrameCodec, PhasePlan, Recipe, StreamRequest
from essp_common.planning.position import Position
from essp_common.video import codec
from essp_trainer.data.prefetch import Prefetch, PrefetchOptions, on_host

CONSUMER = "trainer.t"
CLIPS, BATCH = 12, 5
AUGMENT = AugmentSpec(crop=16)
SKIPPED = 7


def batches(fused: bool) -> tuple[list[NDArray[np.uint8]], list[int], set[str]]:
    """What comes out: frames, indices, and the threads that made the view."""
    bus, cache = MemoryBus(), MemoryCache()
    bus.ensure_topics({topics.CLIPS: topics.DATA_PARTITIONS, topics.PROGRESS: 1})
    recipe = Recipe(streams=[StreamRequest(stream="t", feature="rgb", consumers=[CONSUMER])])
    for index in reversed(range(CLIPS)):
        key = clip_key("job", TRAIN, 0, index, 0)
        clip = ClipRef(job="job", purpose=TRAIN, index=index)
        frames = np.random.default_rng(index).integers(0, 256, (5, 32, 40, 3), dtype=np.uint8)
        value = bytes(codec.encode(frames, FrameCodec(name="zstd")))
        skipped = "no such video" if index == SKIPPED else ""
        cache.put(key, value, [CONSUMER], 60)
        message = ClipReady(clip=clip, key=key, bytes=len(value), recipe=recipe, skipped=skipped)
        bus.publish(topics.CLIPS, b"", message.SerializeToString(), partition=index % topics.DATA_PARTITIONS)
    threads: set[str] = set()

    def view(clip: ClipRef, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return training_view(frames, AUGMENT, layout_of("rgb"), 3, clip.epoch, clip.index)

    read = reading(ClipSpec(frames=5, codec=CodecSpec(name="zstd")), 2)
    taking: dict[str, Any] = {"fetches": 2, "prepare": on_host(view)} if fused else {}
    options = IntakeOptions("job", CONSUMER, "t", "rgb", read=read, **taking)
    phases, start = [PhasePlan(purpose=TRAIN, clips=CLIPS)], Position(0, 0)
    prepared = PrefetchOptions(batch_size=BATCH, ahead=BATCH, loaders=1, wanted_frames=2, name="t")
    intake = OrderedIntake(bus, cache, options, phases, start)
    found: list[NDArray[np.uint8]] = []
    indices: list[int] = []
    with closing(Prefetch(intake, phases, start, on_host(view), prepared)) as prefetch:
        while not isinstance(batch := prefetch.next(10.0), PhaseEnd):
            assert batch is not None
            found += batch.frames
            indices += [item.clip.index for item in batch.clips]
            prefetch.finish(batch.items)
    bus.close()
    return found, indices, threads


def test_views_made_where_clips_are_fetched_are_the_same() -> None:
    plain, plain_indices, loaders = batches(fused=False)
    fused, fused_indices, fetchers = batches(fused=True)
    assert plain_indices == fused_indices == [index for index in range(CLIPS) if index != SKIPPED]
    assert all(np.array_equal(a, b) for a, b in zip(plain, fused, strict=True))
    assert loaders == {"essp-load-t"}
    assert fetchers == {f"essp-fetch-{CONSUMER}"}
