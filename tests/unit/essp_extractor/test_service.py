"""Clips become features: the right bytes under the right key, and nothing lost or left behind when things fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from essp_common import topics
from essp_common.bus.kafka_clients import Undelivered
from essp_common.bus.port import Subscription
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer, Part, Summed, stream_key
from essp_common.errors import BadVideo, CacheFull, ConfigError, OtherRelease, PermanentError, Unavailable
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import CRASHED, EXTRACTOR, LOST, Control
from essp_engine.features import registry
from essp_engine.features.port import ArraySpec, Extractor
from essp_engine.features.quantization import usage
from essp_engine.video import codec
from essp_engine.worker.reports import Reports
from essp_extractor.features.frame_diff import FrameDiff
from essp_extractor.features.frame_stack import FrameStack
from essp_extractor.stage import ExtractStage
from tests.harness.extractor_bench import CONSUMER, JOB, ExtractorBench, frames_at, stream

FLOW = stream("motion", "flow", length=5)
DIFF = stream("change", "frame_diff", length=2)


def expected(feature: str, index: int, **params: Any) -> np.ndarray[Any, Any]:
    extractor = registry.create(feature, params)
    extractor.setup()
    return extractor.extract(frames_at(index))


def test_features_are_stored_announced_and_reported() -> None:
    bench = ExtractorBench(FLOW)
    with bench.extractor("flow"):
        keys = {index: bench.decoded(index) for index in range(8)}
        ready = bench.ready(8)
    sizes: dict[int, int] = {}
    for report in bench.said_so_far():
        assert (report.job, report.worker, report.made.stream) == (JOB, "extractor-1", "motion")
        assert report.made.seconds > 0
        sizes |= dict(zip(report.made.indices, report.made.bytes, strict=True))
    for index, key in keys.items():
        message = ready[index, "motion"]
        assert message.key == stream_key(key, "motion")
        assert message.clip.video_id == f"v{index}"
        assert np.array_equal(bench.take(message), expected("flow", index, length=5))
        assert sizes[index] == message.bytes
    assert bench.cache.usage().keys == 0
    assert bench.bus.backlog(topics.CLIPS, "extractor.flow") == 0


def test_a_feature_is_computed_of_each_snippet_by_itself() -> None:
    """No flow from the last frame of a snippet to the first of the next one."""
    bench = ExtractorBench(stream("motion", "flow", length=2), stream("change", "frame_diff", length=2))
    bench.recipe.snippets = 2
    with bench.extractor("flow", "frame_diff"):
        bench.decoded(3)
        ready = bench.ready(2)
    for name, feature in (("motion", "flow"), ("change", "frame_diff")):
        extractor = registry.create(feature, {"length": 2})
        extractor.setup()
        parts = [extractor.extract(frames_at(3)[begin : begin + 3]) for begin in (0, 3)]
        assert np.array_equal(bench.take(ready[3, name]), np.concatenate(parts))
        whole = ArraySpec(frames_at(3).shape, "uint8")
        assert registry.output_of(feature, {"length": 2}, whole, snippets=2).shape == np.concatenate(parts).shape


def test_the_use_of_flow_s_codes_is_counted() -> None:
    before = {what: codes(what) for what in ("codes", "clipped", "zero")}
    bench = ExtractorBench(FLOW)
    with bench.extractor("flow"):
        bench.decoded(0)
        bench.ready(1)
    found = usage(expected("flow", 0, length=5))
    assert {what: codes(what) - count for what, count in before.items()} == found._asdict()
    assert found.codes > 0


def codes(what: str) -> float:
    return REGISTRY.get_sample_value("essp_flow_codes_total", {"feature": "flow", "what": what}) or 0.0


def test_clip_stays_until_every_reader_is_done() -> None:
    bench = ExtractorBench(FLOW, DIFF, stream("pictures", "rgb"))
    with bench.extractor("flow"):
        key = bench.decoded(1)
        bench.ready(1)
        bench.progress(1)
    bench.cache.get(key)
    with bench.extractor("frame_diff"):
        bench.ready(1)
        bench.progress(1)
    assert not bench.cache.ack(key, "extractor.motion"), "has acked"
    assert not bench.cache.ack(key, "extractor.change"), "has acked"
    assert bench.cache.ack(key, CONSUMER), "the trainer of rgb is the last"


def test_one_process_makes_several_features_and_several_streams_of_one() -> None:
    short, long = stream("short", "frame_diff", length=1), stream("long", "frame_diff", "zstd", length=4)
    bench = ExtractorBench(FLOW, short, long)
    with bench.extractor("flow", "frame_diff"):
        bench.decoded(3)
        ready = bench.ready(3)
        bench.progress(3)
    assert np.array_equal(bench.take(ready[3, "motion"]), expected("flow", 3, length=5))
    assert np.array_equal(bench.take(ready[3, "short"]), expected("frame_diff", 3, length=1))
    assert np.array_equal(bench.take(ready[3, "long"]), expected("frame_diff", 3, length=4))
    assert bench.cache.usage().keys == 0


def test_all_installed_features_but_rgb_are_made_by_default() -> None:
    bench = ExtractorBench(FLOW, DIFF)
    with bench.extractor():
        bench.decoded(2)
        assert set(bench.ready(2)) == {(2, "motion"), (2, "change")}


def test_lost_bytes_are_reported_so_that_the_clip_is_made_again() -> None:
    bench = ExtractorBench(FLOW)
    with bench.extractor("flow"):
        bench.announce(4, "essp:job-1:{1.0.4.0}")
        (report,) = bench.progress(1)
        assert (report.failed.kind, report.failed.stage) == (LOST, EXTRACTOR)
        assert (report.failed.clip.index, report.failed.stream) == (4, "motion")
        assert report.failed.consumer == "extractor.motion"
        bench.decoded(4)
        assert np.array_equal(bench.take(bench.ready(1)[4, "motion"]), expected("flow", 4, length=5))


def test_bytes_of_another_release_are_made_again_and_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, get = ExtractorBench(FLOW), MemoryCache.get
    older = iter([OtherRelease("of 0.1")])

    def of_a_mixed_pool(cache: MemoryCache, key: str, parts: Sequence[Part] = ()) -> Buffer:
        if f":{JOB}:" in key and (error := next(older, None)):
            raise error
        return get(cache, key, parts)

    monkeypatch.setattr(MemoryCache, "get", of_a_mixed_pool)
    with bench.extractor("flow"):
        bench.decoded(4)
        (report,) = bench.progress(1)
        assert (report.failed.kind, report.failed.awaited) == (LOST, True)
        bench.decoded(4)
        bench.ready(1)


def test_message_delivered_again_changes_nothing() -> None:
    bench = ExtractorBench(FLOW, DIFF)
    with bench.extractor("flow"):
        key = bench.decoded(5)
        first = bench.ready(1)[5, "motion"]
        bench.announce(5, key)
        second = bench.ready(1)[5, "motion"]
    assert first == second
    assert np.array_equal(bench.take(second), expected("flow", 5, length=5))


def test_index_without_a_clip_is_left_to_the_master() -> None:
    bench = ExtractorBench(FLOW)
    with bench.extractor("flow", lanes=1):
        bench.decoded(0, skipped="no replacement left")
        bench.decoded(64)  # same partition, so it comes after
        assert set(bench.ready(1)) == {(64, "motion")}
    assert bench.bus.backlog(topics.CLIPS, "extractor.flow") == 0


def flipped(value: bytes) -> bytes:
    """A bit of the header."""
    return value[:20] + bytes([value[20] ^ 1]) + value[21:]


@pytest.mark.parametrize("damage", [lambda _: b"", lambda _: b"\x00" * 100, lambda value: value[:-5], flipped])
def test_a_clip_whose_bytes_were_damaged_is_made_again(damage: Callable[[bytes], bytes]) -> None:
    """In the cache: the video that it came from is sound. The others go on meanwhile."""
    bench = ExtractorBench(FLOW)
    with bench.extractor("flow", lanes=1):
        key = bench.decoded(0, value=damage(bytes(codec.encode(frames_at(0), bench.recipe.codec))))
        bench.decoded(64)
        failed, extracted = bench.progress(2)
        assert (failed.failed.kind, failed.failed.clip.index, failed.failed.stream) == (LOST, 0, "motion")
        assert extracted.made.indices == [64]
        assert not bench.cache.ack(key, "extractor.motion"), "given up"
        bench.ready(1)
        bench.decoded(0)
        assert np.array_equal(bench.take(bench.ready(1)[0, "motion"]), expected("flow", 0, length=5))
    assert bench.no_letters()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (stream("motion", "flow", length=9), "the clip has 6 frame"),
        (stream("motion", "flow", lenght=5), "no parameter 'lenght'"),
    ],
    ids=["clip_too_short", "unknown_parameter"],
)
def test_impossible_stream_is_reported(request_: Any, reason: str) -> None:
    bench = ExtractorBench(request_)
    with bench.extractor("flow"):
        bench.decoded(0)
        (report,) = bench.progress(1)
        (letter,) = bench.letters(1)
    assert reason in report.failed.reason
    assert reason in letter.reason
    assert bench.cache.usage().keys == 0


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("faults", [2, 3])
def test_a_stream_has_its_tries_and_its_own_error_whatever_is_wrong_with_others(
    monkeypatch: pytest.MonkeyPatch, faults: int, order: int
) -> None:
    stack = [stream("stack", "frame_stack", length=2)]
    tried = extractions(monkeypatch, FrameStack, *[RuntimeError("out of luck")] * faults)
    tried_in_vain = extractions(monkeypatch, FrameDiff, *[PermanentError("out of reach")] * 3)
    bench = ExtractorBench(*[*stack, DIFF][::order])
    with bench.extractor("frame_stack", "frame_diff"):
        bench.decoded(0)
        reports = bench.progress(2)
        (letter,) = bench.letters(1)
    assert (len(tried), len(tried_in_vain)) == (3, 1)
    failed = {report.failed.stream: report.failed.reason for report in reports if report.HasField("failed")}
    unlucky = {"stack": "RuntimeError: out of luck"} if faults == 3 else {}
    assert failed == {"change": "out of reach", **unlucky}
    assert letter.attempts == 3
    assert {report.made.stream for report in reports if report.HasField("made")} == {"stack"} - unlucky.keys()


def test_unexpected_errors_of_several_streams_are_each_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = extractions(monkeypatch, FrameStack, *[RuntimeError("out of luck")] * 3)
    extractions(monkeypatch, FrameDiff, *[ValueError("out of sight")] * 3)
    bench = ExtractorBench(stream("stack", "frame_stack", length=2), DIFF)
    with bench.extractor("frame_stack", "frame_diff"):
        bench.decoded(0)
        reasons = {report.failed.stream: report.failed.reason for report in bench.progress(2)}
    assert reasons == {"stack": "RuntimeError: out of luck", "change": "ValueError: out of sight"}
    assert len(tried) == 3


def extractions(monkeypatch: pytest.MonkeyPatch, kind: type[Extractor], *faults: Exception) -> Sequence[None]:
    """An item for each extraction of a feature, of which the first ones have these faults."""
    tried: list[None] = []
    original = kind.extract

    def extract(self: Extractor, clip: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        tried.append(None)
        if len(tried) <= len(faults):
            raise faults[len(tried) - 1]
        return original(self, clip)

    monkeypatch.setattr(kind, "extract", extract)
    return tried


@pytest.mark.parametrize("snippets", [4, 7, 2**32 - 1])
def test_a_clip_that_is_no_such_snippets_is_reported(snippets: int) -> None:
    bench = ExtractorBench(FLOW)
    bench.recipe.snippets = snippets
    with bench.extractor("flow"):
        bench.decoded(0)
        (report,) = bench.progress(1)
        (letter,) = bench.letters(1)
    assert report.failed.reason == letter.reason == f"a clip of 6 frames does not divide into {snippets} equal snippets"
    assert bench.cache.usage().keys == 0


@pytest.mark.parametrize("words", ["x" * 2**21, "no file b\udcff.npy"], ids=["long", "no_utf8"])
def test_an_error_is_reported_whatever_it_says(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(*_: object) -> None:
        raise ValueError(words)

    monkeypatch.setattr(FrameDiff, "extract", extract)
    bench = ExtractorBench(DIFF)
    with bench.extractor("frame_diff"):
        bench.decoded(0)
        (letter,) = bench.letters(1)
        (report,) = bench.progress(1)
    assert report.failed.reason.startswith(f"ValueError: {words[:9]}")
    assert letter.reason.startswith(f"ValueError: {words[:9]}")
    assert bench.cache.usage().keys == 0


def test_message_that_is_none_goes_to_the_dead_letters() -> None:
    bench = ExtractorBench(FLOW)
    with bench.extractor("flow", lanes=1):
        bench.bus.publish(topics.CLIPS, b"k", b"\xff\xff\xff", partition=0)
        bench.decoded(64)
        bench.ready(1)
        (letter,) = bench.letters(1)
    assert letter.message == b"\xff\xff\xff"


def test_a_clip_that_is_given_up_untried_is_reported() -> None:
    """Workers died of it before; this one has made others, and is never to handle that one."""
    bench = ExtractorBench(FLOW)
    for index in (0, 64):
        bench.decoded(index)
    with (
        closing(bench.bus.subscribe([topics.CLIPS], "extractor.flow")) as clips,
        closing(ControlFeed(bench.bus)) as control,
    ):
        reports = Reports(bench.bus, "extractor-1")
        stage = ExtractStage(bench.bus, bench.cache, control, ["flow"], reports, "extractor-1")
        made, deadly = clips.poll(2, 1.0)
        stage.handle(made)
        stage.reject(deadly, BadVideo("3 workers died while they worked on it", "crashed"), 3)
        stage.close()
    (failed,) = bench.said_so_far()
    assert (failed.failed.kind, failed.failed.clip.index, failed.failed.stream) == (CRASHED, 64, "motion")
    (letter,) = bench.letters(1)
    assert (letter.kind, letter.attempts) == (CRASHED, 3)


@pytest.mark.parametrize(("fence", "reports"), [(1, 0), (2, 1)])
def test_clips_of_an_ended_job_are_dropped_but_not_those_of_its_next_start(fence: int, reports: int) -> None:
    bench = ExtractorBench(FLOW)
    bench.control(Control.STOP)
    bench.decoded(0, fence=fence)
    with closing(ControlFeed(bench.bus)) as control, closing(bench.bus.subscribe([topics.CLIPS], "g")) as clips:
        assert control.wait(JOB, 60, [Control.STOP])
        told = Reports(bench.bus, "extractor-1")
        stage = ExtractStage(bench.bus, bench.cache, control, ["flow"], told, "extractor-1")
        stage.setup()
        (record,) = clips.poll(1, 60)
        stage.handle(record)
        told.flush()
        stage.close()
    assert [(said.WhichOneof("event"), said.fence) for said in bench.said_so_far()] == [("made", 2)] * reports


class FullAtFirst(MemoryCache):
    """A cache that has no room for the first features."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.read: list[str] = []

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        self.read.append(key)
        return super().get(key, parts)

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        if key.endswith(":motion") and self.refusals:
            self.refusals -= 1
            raise CacheFull("no room", retry_after_s=0.001)
        super().put(key, value, consumers, ttl_s)


def test_full_cache_is_waited_for_however_long() -> None:
    bench = ExtractorBench(FLOW, cache=FullAtFirst(refusals=8))
    with bench.extractor("flow"):
        bench.decoded(6)
        assert np.array_equal(bench.take(bench.ready(1)[6, "motion"]), expected("flow", 6, length=5))
        (report,) = bench.progress(1)
    assert report.HasField("made")


def test_what_was_made_before_the_cache_was_full_is_not_made_again() -> None:
    bench = ExtractorBench(DIFF, FLOW, cache=FullAtFirst(refusals=8))
    with bench.extractor("flow", "frame_diff"):
        bench.decoded(6)
        assert sorted(name for _, name in bench.ready(2)) == ["change", "motion"]
        reports = bench.progress(2)
    assert [report.made.stream for report in reports] == ["change", "motion"]
    assert bench.said_so_far() == []


@pytest.mark.parametrize("order", [1, -1])
def test_nothing_is_read_or_made_twice_because_the_cache_is_full(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    made = [extractions(monkeypatch, kind) for kind in (FrameStack, FrameDiff)]
    cache = FullAtFirst(refusals=6)
    bench = ExtractorBench(*[stream("motion", "frame_stack", length=2), DIFF][::order], cache=cache)
    with bench.extractor("frame_stack", "frame_diff"):
        key = bench.decoded(6)
        ready = bench.ready(2)
    assert cache.refusals == 0
    assert cache.read.count(key) == 1
    assert [len(times) for times in made] == [1, 1]
    assert np.array_equal(bench.take(ready[6, "motion"]), expected("frame_stack", 6, length=2))
    assert np.array_equal(bench.take(ready[6, "change"]), expected("frame_diff", 6, length=2))
    assert cache.usage().keys == 0


def test_what_is_kept_of_a_clip_goes_into_no_other() -> None:
    bench = ExtractorBench(stream("motion", "frame_stack", length=2), cache=FullAtFirst(refusals=1))
    for index in (0, 64):
        bench.decoded(index)
    with lane(bench, "frame_stack") as (stage, clips):
        refused, other = clips.poll(2, 1.0)
        with pytest.raises(CacheFull):
            stage.handle(refused)
        stage.handle(other)
        stage.handle(refused)
    for (index, _), message in bench.ready(2).items():
        assert np.array_equal(bench.take(message), expected("frame_stack", index, length=2))


def test_a_feature_that_has_to_wait_holds_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    extractions(monkeypatch, FrameStack, Unavailable("its server is away"))
    bench = ExtractorBench(stream("stack", "frame_stack", length=2), DIFF)
    bench.decoded(0)
    with lane(bench, "frame_stack", "frame_diff") as (stage, clips):
        (record,) = clips.poll(1, 1.0)
        with pytest.raises(Unavailable):
            stage.handle(record)
        assert set(bench.ready(1)) == {(0, "change")}
        stage.handle(record)
        assert set(bench.ready(1)) == {(0, "stack")}


def test_what_the_bus_lost_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = extractions(monkeypatch, FrameStack)
    bench = ExtractorBench(stream("stack", "frame_stack", length=2), DIFF)
    bench.decoded(0)
    with lane(bench, "frame_stack", "frame_diff") as (stage, clips):
        (record,) = clips.poll(1, 1.0)
        bench.bus.loses = 2
        with pytest.raises(Undelivered):
            stage.handle(record)
        stage.handle(record)
    assert set(bench.ready(2)) == {(0, "change"), (0, "stack")}
    assert len(made) == 1


def test_what_the_bus_lost_is_reported_when_it_is_given_up() -> None:
    bench = ExtractorBench(DIFF)
    bench.decoded(0)
    with lane(bench, "frame_diff") as (stage, clips):
        (record,) = clips.poll(1, 1.0)
        bench.bus.loses = 1
        with pytest.raises(Undelivered) as caught:
            stage.handle(record)
        stage.reject(record, caught.value, 1)
    assert [said.failed.stream for said in bench.said_so_far()] == ["change"]


@contextmanager
def lane(bench: ExtractorBench, *features: str) -> Iterator[tuple[ExtractStage, Subscription]]:
    """A lane of an extractor, and the clips for it."""
    with (
        closing(bench.bus.subscribe([topics.CLIPS], "extractor")) as clips,
        closing(ControlFeed(bench.bus)) as control,
    ):
        reports = Reports(bench.bus, "extractor-1")
        stage = ExtractStage(bench.bus, bench.cache, control, features, reports, "extractor-1")
        yield stage, clips
        stage.close()


def test_feature_that_is_not_installed_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="no extractor 'flwo' is installed"), ExtractorBench(FLOW).extractor("flwo"):
        pass


def test_rgb_which_nobody_would_read_stops_the_start() -> None:
    bench = ExtractorBench(stream("pictures", "rgb"), FLOW)
    with pytest.raises(ConfigError, match=r"rgb is the clip itself.*ESSP_FEATURES"), bench.extractor("flow", "rgb"):
        pass
