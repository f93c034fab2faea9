"""A decoder as the rest of the system meets it: seeds in by the bus, clips out to the cache, reports, dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.bus.kafka_clients import Undelivered
from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key
from essp_common.errors import BadVideo, CacheFull, PermanentError
from essp_common.failures import kind_word
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import (
    CRASHED,
    DECODER,
    TRAIN,
    TRUNCATED,
    ClipReady,
    Control,
    DeadLetter,
    DecodeSeed,
    Progress,
)
from essp_common.wiring import Adapters, Stores
from essp_decoder.config import DecoderSettings
from essp_decoder.service import build
from essp_decoder.stage import DecodeStage
from essp_engine.decoding.sandbox import Outcome, Sandbox
from essp_engine.worker.reports import Reports
from tests.harness.decode_units import FRAMES, SIZE, numbers, unit
from tests.harness.lossy_bus import LossyBus
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.processes


class DecoderBench:
    """A memory bus and cache, and what a decoder publishes."""

    def __init__(self, limit_bytes: int = 2**26) -> None:
        self.bus = LossyBus()
        self.bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
        self.cache = MemoryCache(limit_bytes)
        self._seen = {t: self.bus.subscribe([t], None) for t in (topics.CLIPS, topics.PROGRESS, topics.DEADLETTER)}

    def send(self, work: DecodeSeed) -> None:
        self.bus.publish(topics.SEEDS, work.video.id.encode(), work.SerializeToString())

    def published(self, topic: str, count: int) -> list[Record]:
        """The next `count` messages of a topic."""
        found: list[Record] = []
        while len(found) < count:
            records = self._seen[topic].poll(count - len(found), LONGEST_S)
            assert records, f"{len(found)} of {count} messages on {topic}"
            found += [record for record in records if not _is_heartbeat(record)]
        return found

    def told(self) -> list[Progress]:
        """The reports to the master so far, without heartbeats."""
        records = self._seen[topics.PROGRESS].poll(1000, 0.0)
        return [Progress.FromString(record.value) for record in records if not _is_heartbeat(record)]

    def quiet(self, topic: str) -> bool:
        return not self._seen[topic].poll(1, 0.0)

    def close(self) -> None:
        for subscription in self._seen.values():
            subscription.close()
        self.bus.close()


@pytest.fixture
def bench() -> Iterator[DecoderBench]:
    bench = DecoderBench()
    yield bench
    bench.close()


def _is_heartbeat(record: Record) -> bool:
    return record.topic == topics.PROGRESS and Progress.FromString(record.value).HasField("heartbeat")


def _record(work: DecodeSeed, offset: int = 0) -> Record:
    return Record(topics.SEEDS, 0, offset, work.video.id.encode(), work.SerializeToString())


@contextmanager
def _stage(bench: DecoderBench, sandbox: Sandbox) -> Iterator[tuple[DecodeStage, ControlFeed]]:
    control = ControlFeed(bench.bus)
    reports = Reports(bench.bus, "w1")
    stage = DecodeStage(bench.bus, bench.cache, control, sandbox, reports, "w1")
    try:
        stage.setup()
        yield stage, control
        reports.flush()
    finally:
        stage.close()
        control.close()


def test_a_clip_ends_with_its_video(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    """Beyond the end of the video it repeats the last frame."""
    with _stage(bench, sandbox) as (stage, _):
        stage.handle(_record(unit(folder, "a.mp4", 9, FRAMES - 2)))
    found = [ClipReady.FromString(record.value).clip for record in bench.published(topics.CLIPS, 2)]
    assert [(clip.first_frame, clip.last_frame) for clip in found] == [(9, 13), (FRAMES - 2, FRAMES - 1)]


def test_a_clip_of_chosen_frames_ends_with_the_last_of_them(
    bench: DecoderBench, sandbox: Sandbox, folder: Path
) -> None:
    work = unit(folder, "a.mp4", 9)
    [seed] = work.seeds
    seed.frame_count, seed.stride = 4, 0
    seed.offsets.extend([0, 1])
    seed.later.add(first_frame=14, offsets=[0, 2])
    with _stage(bench, sandbox) as (stage, _):
        stage.handle(_record(work))
    [record] = bench.published(topics.CLIPS, 1)
    clip = ClipReady.FromString(record.value).clip
    assert (clip.first_frame, clip.last_frame) == (9, 16)


def test_a_clip_is_stored_announced_and_reported(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    with _stage(bench, sandbox) as (stage, _):
        stage.handle(_record(unit(folder, "a.mp4", 5, 9)))
    records = bench.published(topics.CLIPS, 2)
    assert [record.partition for record in records] == [0, 1]
    ready = ClipReady.FromString(records[1].value)
    assert ready.key == clip_key("j", TRAIN, 3, 1, 0)
    assert (ready.clip.video_id, ready.clip.first_frame, ready.clip.index) == ("a.mp4", 9, 1)
    value = bench.cache.get(ready.key)
    assert numbers(value)[0] == 9
    assert (ready.bytes, ready.fence) == (len(value), 7)
    progress = Progress.FromString(bench.published(topics.PROGRESS, 1)[0].value)
    assert (progress.job, progress.worker, progress.fence) == ("j", "w1", 7)
    assert (progress.made.purpose, progress.made.epoch, progress.made.stream) == (TRAIN, 3, "")
    assert (list(progress.made.indices), list(progress.made.bytes)) == ([0, 1], [ready.bytes] * 2)
    assert progress.made.seconds > 0
    assert bench.cache.ack(ready.key, "trainer.rgb")


def test_doing_a_message_again_is_harmless(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    with _stage(bench, sandbox) as (stage, _):
        for _ in range(2):
            stage.handle(_record(unit(folder, "a.mp4", 5)))
    first, again = (ClipReady.FromString(record.value) for record in bench.published(topics.CLIPS, 2))
    assert first == again
    assert bench.cache.usage().keys == 1


def test_what_cannot_be_decoded_is_reported(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    work = unit(folder, "a.mp4", 2, 38)
    work.seeds[1].last_frame = 100
    with _stage(bench, sandbox) as (stage, _):
        stage.handle(_record(work))
    failed, decoded = (Progress.FromString(record.value) for record in bench.published(topics.PROGRESS, 2))
    assert decoded.made.indices == [0]
    assert (failed.failed.clip.index, failed.failed.stage, failed.failed.kind) == (1, DECODER, TRUNCATED)
    letter = bench.published(topics.DEADLETTER, 1)[0]
    assert letter.key == b"a.mp4"
    dead = DeadLetter.FromString(letter.value)
    assert (dead.kind, dead.topic, dead.worker) == (TRUNCATED, topics.SEEDS, "w1")
    assert [seed.first_frame for seed in DecodeSeed.FromString(dead.message).seeds] == [38]


def test_a_full_cache_does_not_decode_twice(sandbox: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = unit(folder, "a.mp4", 2, 20)
    decoded = []
    decode: Callable[[DecodeSeed], list[Outcome]] = sandbox.decode

    def noted(unit: DecodeSeed) -> list[Outcome]:
        decoded.append(unit)
        return decode(unit)

    monkeypatch.setattr(sandbox, "decode", noted)
    bench = DecoderBench(limit_bytes=5 * SIZE * 2 * SIZE * 3 + 1000)  # one clip
    with _stage(bench, sandbox) as (stage, _):
        with pytest.raises(CacheFull):
            stage.handle(_record(work))
        ready = ClipReady.FromString(bench.published(topics.CLIPS, 1)[0].value)
        bench.cache.ack(ready.key, "trainer.rgb")
        stage.handle(_record(work))
        assert ClipReady.FromString(bench.published(topics.CLIPS, 1)[0].value).clip.index == 1
    assert len(decoded) == 1
    bench.close()


def test_what_the_bus_lost_is_published_again(
    bench: DecoderBench, sandbox: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = unit(folder, "a.mp4", 2, 38)
    work.seeds[1].last_frame = 100  # which the file does not have
    record = _record(work)
    with _stage(bench, sandbox) as (stage, _):
        bench.bus.loses = 3
        with pytest.raises(Undelivered):
            stage.handle(record)
        monkeypatch.setattr(sandbox, "decode", None)  # done already
        stage.handle(record)
    assert ClipReady.FromString(bench.published(topics.CLIPS, 1)[0].value).clip.index == 0
    assert bench.published(topics.DEADLETTER, 1)
    assert "failed" in [progress.WhichOneof("event") for progress in bench.told()]


def test_seeds_of_a_stopped_job_are_dropped(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    with _stage(bench, sandbox) as (stage, control):
        stop = Control(job="j", fence=7, command=Control.STOP)
        bench.bus.publish(topics.CONTROL, b"j", stop.SerializeToString())
        assert control.wait("j", LONGEST_S, [Control.STOP]) is not None
        stage.handle(_record(unit(folder, "a.mp4", 2)))
        assert bench.quiet(topics.CLIPS)
        assert bench.quiet(topics.PROGRESS)
        stage.handle(_record(unit(folder, "a.mp4", 2, job="other")))
        assert ClipReady.FromString(bench.published(topics.CLIPS, 1)[0].value).clip.job == "other"


def test_what_was_decoded_while_its_job_was_started_anew_is_dropped(
    bench: DecoderBench, sandbox: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run stores its own clips under the same keys, and may have planned others."""
    decode: Callable[[DecodeSeed], list[Outcome]] = sandbox.decode
    with _stage(bench, sandbox) as (stage, control):

        def started_meanwhile(unit: DecodeSeed) -> list[Outcome]:
            outcomes = decode(unit)
            start = Control(job="j", fence=8, since=8, command=Control.START)
            bench.bus.publish(topics.CONTROL, b"j", start.SerializeToString())
            assert control.wait("j", LONGEST_S, [Control.START]) is not None
            return outcomes

        monkeypatch.setattr(sandbox, "decode", started_meanwhile)
        stage.handle(_record(unit(folder, "a.mp4", 2)))
        assert bench.quiet(topics.CLIPS)
        assert bench.quiet(topics.PROGRESS)
        assert bench.cache.usage().keys == 0


@pytest.mark.parametrize("later", [1, 6])
def test_frames_that_are_no_equal_snippets_are_refused(sandbox: Sandbox, folder: Path, later: int) -> None:
    """Rather than that some of them keep what lay in memory before."""
    work = unit(folder, "a.mp4", 0)
    for _ in range(later):
        work.seeds[0].later.add(first_frame=0)
    [error] = sandbox.decode(work)
    assert isinstance(error, PermanentError)
    assert str(error) == f"a.mp4: 5 frames do not divide into {later + 1} equal snippets"


def test_a_message_that_is_none_goes_to_the_dead_letters(bench: DecoderBench, sandbox: Sandbox) -> None:
    record = Record(topics.SEEDS, 0, 4, b"v", b"\xff\xff\xff")
    with _stage(bench, sandbox) as (stage, _):
        with pytest.raises(PermanentError) as caught:
            stage.handle(record)
        stage.reject(record, caught.value, 1)
    letter = DeadLetter.FromString(bench.published(topics.DEADLETTER, 1)[0].value)
    assert letter.message == record.value


def test_a_rejected_message_fails_all_its_seeds(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    with _stage(bench, sandbox) as (stage, _):
        stage.reject(_record(unit(folder, "a.mp4", 2, 20)), BadVideo("no", "crashed"), 3)
    failed = [Progress.FromString(record.value).failed for record in bench.published(topics.PROGRESS, 2)]
    assert [(each.clip.index, each.kind) for each in failed] == [(0, CRASHED), (1, CRASHED)]


def test_an_error_is_reported_whatever_it_says(bench: DecoderBench, sandbox: Sandbox, folder: Path) -> None:
    with _stage(bench, sandbox) as (stage, _):
        for words in ("x" * 2**21, "no file b\udcff.mp4"):
            stage.reject(_record(unit(folder, "a.mp4", 2)), BadVideo(words), 1)
    failed = [Progress.FromString(record.value).failed for record in bench.published(topics.PROGRESS, 2)]
    letters = [DeadLetter.FromString(record.value) for record in bench.published(topics.DEADLETTER, 2)]
    for reasons in ([each.reason for each in failed], [each.reason for each in letters]):
        assert [reason[:14] for reason in reasons] == ["x" * 14, "no file b?.mp4"]


def test_the_service_decodes_what_it_can_and_goes_on(bench: DecoderBench, folder: Path) -> None:
    stores = (f"file://{folder}",)
    adapters = Adapters(bench.bus, bench.cache, Stores(stores))
    service = build(adapters, DecoderSettings(stores=stores, decoder_processes=2), "w1")
    works = [
        unit(folder, "a.mp4", 3),
        unit(folder, "text.mp4", 0),
        unit(folder, "none.mp4", 0),
        unit(folder, "b.avi", 20),
    ]
    for number, work in enumerate(works):
        work.seeds[0].index = number
        bench.send(work)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        clips = [ClipReady.FromString(record.value) for record in bench.published(topics.CLIPS, 2)]
        bench.published(topics.DEADLETTER, 2)
    finally:
        service.drain()
        thread.join(LONGEST_S)
    assert not thread.is_alive()
    progress = bench.told()
    assert sorted(index for p in progress for index in p.made.indices) == [0, 3]
    assert {p.failed.clip.index: kind_word(p.failed.kind) for p in progress if p.HasField("failed")} == {
        1: "not_video",
        2: "vanished",
    }
    assert {clip.clip.index: numbers(bench.cache.get(clip.key))[0] for clip in clips} == {0: 3, 3: 20}
    assert bench.bus.backlog(topics.SEEDS, "decoder") == 0
