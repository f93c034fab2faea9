"""Clips become features: the right bytes under the right key, and nothing lost or left behind when things fail."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from essp_common import topics
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer, stream_key
from essp_common.errors import CacheFull, ConfigError
from essp_common.features import registry
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import DAMAGED, EXTRACTOR, LOST, Control
from essp_common.worker.reports import Reports
from essp_extractor.stage import ExtractStage
from tests.harness.extractor_world import CONSUMER, JOB, World, frames_at, stream

FLOW = stream("motion", "flow", length=5)
DIFF = stream("change", "frame_diff", length=2)


def expected(feature: str, index: int, **params: Any) -> np.ndarray[Any, Any]:
    extractor = registry.create(feature, params)
    extractor.setup()
    return extractor.extract(frames_at(index))


def test_features_are_stored_announced_and_reported() -> None:
    world = World(FLOW)
    with world.extractor("flow"):
        keys = {index: world.decoded(index) for index in range(8)}
        ready = world.ready(8)
    sizes, told = {}, world.said_so_far()
    for report in told:
        assert (report.job, report.worker, report.made.stream) == (JOB, "extractor-1", "motion")
        assert report.made.seconds > 0
        sizes |= dict(zip(report.made.indices, report.made.bytes, strict=True))
    for index, key in keys.items():
        message = ready[index, "motion"]
        assert message.key == stream_key(key, "motion")
        assert message.clip.video_id == f"v{index}"
        assert np.array_equal(world.take(message), expected("flow", index, length=5))
        assert sizes[index] == message.bytes
    assert world.cache.usage().keys == 0
    assert world.bus.backlog(topics.CLIPS, "extractor.flow") == 0


def test_clip_stays_until_every_reader_is_done() -> None:
    world = World(FLOW, DIFF, stream("pictures", "rgb"))
    with world.extractor("flow"):
        key = world.decoded(1)
        world.ready(1)
        world.progress(1)
    world.cache.get(key)
    with world.extractor("frame_diff"):
        world.ready(1)
        world.progress(1)
    assert not world.cache.ack(key, "extractor.motion"), "has acked"
    assert not world.cache.ack(key, "extractor.change"), "has acked"
    assert world.cache.ack(key, CONSUMER), "the trainer of rgb is the last"


def test_one_process_makes_several_features_and_several_streams_of_one() -> None:
    short, long = stream("short", "frame_diff", length=1), stream("long", "frame_diff", "zstd", length=4)
    world = World(FLOW, short, long)
    with world.extractor("flow", "frame_diff"):
        world.decoded(3)
        ready = world.ready(3)
        world.progress(3)
    assert np.array_equal(world.take(ready[3, "motion"]), expected("flow", 3, length=5))
    assert np.array_equal(world.take(ready[3, "short"]), expected("frame_diff", 3, length=1))
    assert np.array_equal(world.take(ready[3, "long"]), expected("frame_diff", 3, length=4))
    assert world.cache.usage().keys == 0


def test_all_installed_features_but_rgb_are_made_by_default() -> None:
    world = World(FLOW, DIFF)
    with world.extractor():
        world.decoded(2)
        assert set(world.ready(2)) == {(2, "motion"), (2, "change")}


def test_lost_bytes_are_reported_so_that_the_clip_is_made_again() -> None:
    world = World(FLOW)
    with world.extractor("flow"):
        world.announce(4, "essp:job-1:{1.0.4.0}")
        (report,) = world.progress(1)
        assert (report.failed.kind, report.failed.stage) == (LOST, EXTRACTOR)
        assert (report.failed.clip.index, report.failed.stream) == (4, "motion")
        assert report.failed.consumer == "extractor.motion"
        world.decoded(4)
        assert np.array_equal(world.take(world.ready(1)[4, "motion"]), expected("flow", 4, length=5))


def test_message_delivered_again_changes_nothing() -> None:
    world = World(FLOW, DIFF)
    with world.extractor("flow"):
        key = world.decoded(5)
        first = world.ready(1)[5, "motion"]
        world.announce(5, key)
        second = world.ready(1)[5, "motion"]
    assert first == second
    assert np.array_equal(world.take(second), expected("flow", 5, length=5))


def test_index_without_a_clip_is_left_to_the_master() -> None:
    world = World(FLOW)
    with world.extractor("flow", lanes=1):
        world.decoded(0, skipped="no replacement left")
        world.decoded(64)  # same partition, so it comes after
        assert set(world.ready(1)) == {(64, "motion")}
    assert world.bus.backlog(topics.CLIPS, "extractor.flow") == 0


@pytest.mark.parametrize("damage", [b"", b"no frames at all", b"\x00" * 100])
def test_damaged_bytes_are_reported_and_the_rest_goes_on(damage: bytes) -> None:
    world = World(FLOW)
    with world.extractor("flow", lanes=1):
        key = world.decoded(0, value=damage)
        world.decoded(64)
        failed, extracted = world.progress(2)
        (letter,) = world.letters(1)
    assert (failed.failed.kind, failed.failed.clip.index, failed.failed.stream) == (DAMAGED, 0, "motion")
    assert (letter.topic, letter.kind, letter.worker) == (topics.CLIPS, DAMAGED, "extractor-1")
    assert letter.reason == failed.failed.reason
    assert extracted.made.indices == [64]
    assert not world.cache.ack(key, "extractor.motion"), "freed with the report"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (stream("motion", "flow", length=9), "the clip has 6 frame"),
        (stream("motion", "flow", lenght=5), "no parameter 'lenght'"),
    ],
    ids=["clip_too_short", "unknown_parameter"],
)
def test_impossible_stream_is_reported(request_: Any, reason: str) -> None:
    world = World(request_)
    with world.extractor("flow"):
        world.decoded(0)
        (report,) = world.progress(1)
        (letter,) = world.letters(1)
    assert reason in report.failed.reason
    assert reason in letter.reason
    assert world.cache.usage().keys == 0


def test_message_that_is_none_goes_to_the_dead_letters() -> None:
    world = World(FLOW)
    with world.extractor("flow", lanes=1):
        world.bus.publish(topics.CLIPS, b"k", b"\xff\xff\xff", partition=0)
        world.decoded(64)
        world.ready(1)
        (letter,) = world.letters(1)
    assert letter.message == b"\xff\xff\xff"


@pytest.mark.parametrize(("fence", "reports"), [(1, 0), (2, 1)])
def test_clips_of_an_ended_job_are_dropped_but_not_those_of_its_next_start(fence: int, reports: int) -> None:
    world = World(FLOW)
    world.control(Control.STOP)
    world.decoded(0, fence=fence)
    with closing(ControlFeed(world.bus)) as control, closing(world.bus.subscribe([topics.CLIPS], "g")) as clips:
        assert control.wait(JOB, 60, [Control.STOP])
        told = Reports(world.bus, "extractor-1")
        stage = ExtractStage(world.bus, world.cache, control, ["flow"], told, "extractor-1")
        stage.setup()
        (record,) = clips.poll(1, 60)
        stage.handle(record)
        told.flush()
        stage.close()
    assert [(said.WhichOneof("event"), said.fence) for said in world.said_so_far()] == [("made", 2)] * reports


class FullAtFirst(MemoryCache):
    """A cache that has no room for the first features."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def put(self, key: str, value: Buffer, consumers: Sequence[str], ttl_s: float) -> None:
        if key.endswith(":motion") and self.refusals:
            self.refusals -= 1
            raise CacheFull("no room", retry_after_s=0.001)
        super().put(key, value, consumers, ttl_s)


def test_full_cache_is_waited_for_however_long() -> None:
    world = World(FLOW, cache=FullAtFirst(refusals=8))
    with world.extractor("flow"):
        world.decoded(6)
        assert np.array_equal(world.take(world.ready(1)[6, "motion"]), expected("flow", 6, length=5))
        (report,) = world.progress(1)
    assert report.HasField("made")


def test_what_was_made_before_the_cache_was_full_is_not_made_again() -> None:
    world = World(DIFF, FLOW, cache=FullAtFirst(refusals=8))
    with world.extractor("flow", "frame_diff"):
        world.decoded(6)
        assert sorted(name for _, name in world.ready(2)) == ["change", "motion"]
        reports = world.progress(2)
    assert [report.made.stream for report in reports] == ["change", "motion"]
    assert world.said_so_far() == []


def test_feature_that_is_not_installed_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="no extractor 'flwo' is installed"), World(FLOW).extractor("flwo"):
        pass
