"""Seeds become clips; what cannot be decoded is reported, and the decoder goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from essp_common import codec, topics
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key
from essp_common.control import ControlFeed
from essp_common.errors import BadVideo, CacheFull, EsspError, PermanentError, Unavailable
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    ClipReady,
    Control,
    DeadLetter,
    DecodeSeed,
    FrameCodec,
    Progress,
    Recipe,
    Resize,
    Seed,
    Seek,
    StreamRequest,
    Video,
)
from essp_common.reports import Reports
from essp_common.testing.videos import Encoding, numbered, read_number, write_video
from essp_common.video.probe import probe
from essp_common.wiring import Adapters, Stores, open_store
from services.decoder.config import DecoderSettings
from services.decoder.memory import SharedMemory
from services.decoder.sandbox import Outcome, Sandbox, SandboxOptions
from services.decoder.service import build, sandbox_options
from services.decoder.stage import DecodeStage

LIMIT_S = 60.0
FRAMES = 40
SIZE = 64

pytestmark = pytest.mark.usefixtures("no_thread_leaks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "a.mp4", numbered(FRAMES), Encoding(bframes=2))
    write_video(folder / "b.avi", numbered(FRAMES), Encoding(codec="mpeg4"))
    (folder / "text.mp4").write_text("no video at all " * 100)
    return folder


@pytest.fixture
def options(folder: Path) -> SandboxOptions:
    return sandbox_options(DecoderSettings(stores=(f"file://{folder}",)))


@pytest.fixture
def sandbox(options: SandboxOptions) -> Iterator[Sandbox]:
    with _closing(Sandbox(options)) as sandbox:
        yield sandbox


@contextmanager
def _closing(sandbox: Sandbox) -> Iterator[Sandbox]:
    try:
        yield sandbox
    finally:
        sandbox.close()


def unit(folder: Path, name: str, *first: int, clip_codec: str = "raw", job: str = "j") -> DecodeSeed:
    path = folder / name
    facts = probe(str(path)) if name in ("a.mp4", "b.avi") else None
    seeds = []
    for index, frame in enumerate(first):
        seed = Seed(index=index, first_frame=frame, frame_count=5, stride=1, last_frame=FRAMES - 1)
        if facts is not None:
            at = [k for k in zip(facts.keyframe_frame, facts.keyframe_pts, strict=True) if k[0] <= frame][-1]
            seed.seek.CopyFrom(Seek(frame_index=at[0], pts=at[1]))
        seeds.append(seed)
    return DecodeSeed(
        job=job,
        purpose=TRAIN,
        epoch=3,
        fence=7,
        video=Video(
            id=name,
            uri=f"file://{path}",
            size_bytes=path.stat().st_size if path.exists() else 0,
            frame_count=FRAMES,
            width=160,
            height=120,
            seekable=True,
        ),
        seeds=seeds,
        recipe=Recipe(
            resize=Resize(mode=Resize.EXACT, height=SIZE, width=2 * SIZE, interpolation="bilinear"),
            codec=FrameCodec(name=clip_codec, quality=95 if clip_codec == "jpeg" else 0),
            streams=[StreamRequest(stream="rgb", feature="rgb", consumers=["trainer.rgb"])],
            ttl_s=600,
            strict=True,
        ),
    )


def numbers(outcome: Outcome) -> list[int]:
    assert not isinstance(outcome, EsspError), outcome
    frames = codec.decode(outcome)
    assert frames.shape == (5, SIZE, 2 * SIZE, 3)
    return [read_number(frame) for frame in frames]


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind if isinstance(outcome, PermanentError) else "clip" for outcome in outcomes]


# --- the sandbox ---


@pytest.mark.parametrize("clip_codec", ["raw", "jpeg", "zstd"])
def test_clips_come_out_as_cache_values(sandbox: Sandbox, folder: Path, clip_codec: str) -> None:
    for name in ("a.mp4", "b.avi"):
        outcomes = sandbox.decode(unit(folder, name, 30, 0, 7, 9, clip_codec=clip_codec))
        assert [numbers(outcome)[0] for outcome in outcomes] == [30, 0, 7, 9]
        assert numbers(outcomes[2]) == [7, 8, 9, 10, 11]
        assert {codec.header(outcome).codec for outcome in outcomes if not isinstance(outcome, EsspError)} == {
            clip_codec
        }


def test_clips_stay_as_they_are_while_others_are_decoded(sandbox: Sandbox, folder: Path) -> None:
    first = sandbox.decode(unit(folder, "a.mp4", 3))[0]
    assert not isinstance(first, EsspError)
    frames = codec.decode(first)
    before = frames.copy()
    del first
    for frame in range(12, 20):
        sandbox.decode(unit(folder, "a.mp4", frame))
    np.testing.assert_array_equal(frames, before)


def test_memory_is_used_again() -> None:
    memory = SharedMemory()
    try:
        taken = [memory.take(1 << 20) for _ in range(8)]
        views = [memory.view(place, 1 << 20) for place in taken]
        parts = [np.frombuffer(view[:100], np.uint8) for view in views]
        del views
        other = memory.take(1 << 20)
        assert other not in taken  # those are still in use, through `parts`
        parts.clear()
        assert {memory.take(1 << 20) for _ in range(8)} == set(taken)
    finally:
        memory.close()


def test_bad_files_say_what_is_wrong(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    changed = unit(folder, "a.mp4", 0)
    changed.video.size_bytes += 1
    foreign = unit(folder, "a.mp4", 0)
    foreign.video.uri = f"file://{tmp_path}/a.mp4"
    pointless = unit(folder, "a.mp4", 0)
    pointless.seeds[0].frame_count = 0
    units = [unit(folder, "text.mp4", 0, 5), unit(folder, "none.mp4", 0), changed, foreign, pointless]
    found = [kinds(sandbox.decode(each)) for each in units]
    assert found == [["not_video"] * 2, ["vanished"], ["changed"], ["vanished"], ["error"]]
    assert numbers(sandbox.decode(unit(folder, "a.mp4", 1))[0])[0] == 1


def test_a_file_that_changes_while_open_is_not_read_on(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    path = folder / "c.mp4"
    write_video(path, numbered(FRAMES), Encoding())
    work = unit(folder, "a.mp4", 0)
    work.video.uri, work.video.size_bytes = f"file://{path}", path.stat().st_size
    assert kinds(sandbox.decode(work)) == ["clip"]
    path.write_bytes(path.read_bytes() + b"\0")
    assert kinds(sandbox.decode(work)) == ["changed"]
    path.unlink()
    assert kinds(sandbox.decode(work)) == ["vanished"]


def test_one_bad_seed_leaves_the_others_alone(sandbox: Sandbox, folder: Path) -> None:
    work = unit(folder, "a.mp4", 2, 38, 20)
    work.seeds[1].last_frame = FRAMES + 10
    outcomes = sandbox.decode(work)
    assert kinds(outcomes) == ["clip", "truncated", "clip"]
    assert numbers(outcomes[2])[0] == 20


def test_a_killed_child_costs_nothing_but_time(sandbox: Sandbox, folder: Path) -> None:
    sandbox.start()
    child = sandbox.pid
    assert child is not None
    os.kill(child, signal.SIGSTOP)  # it will not answer before it dies
    killer = threading.Timer(0.1, os.kill, (child, signal.SIGKILL))
    killer.start()
    outcomes = sandbox.decode(unit(folder, "a.mp4", 4, 8))
    killer.join()
    assert [numbers(outcome)[0] for outcome in outcomes] == [4, 8]
    assert sandbox.pid not in (None, child)


class Poisoned(Sandbox):
    """Kills its child when it is asked for a clip that begins at frame 13."""

    def _ask(self, request: bytes) -> dict[str, object]:
        self.start()
        if Seed(first_frame=13).SerializeToString() in request:
            os.kill(self.pid or 0, signal.SIGKILL)
        return super()._ask(request)


def test_only_the_seed_that_crashes_the_child_is_lost(options: SandboxOptions, folder: Path) -> None:
    with _closing(Poisoned(options)) as sandbox:
        outcomes = sandbox.decode(unit(folder, "a.mp4", 2, 13, 20))
    assert kinds(outcomes) == ["clip", "crashed", "clip"]


def test_too_long_is_too_long(options: SandboxOptions, folder: Path) -> None:
    with _closing(Sandbox(replace(options, timeout_s=1e-4))) as sandbox:
        assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["timeout"]


def test_children_are_replaced_and_leave_nothing_behind(options: SandboxOptions, folder: Path) -> None:
    pids = []
    with _closing(Sandbox(replace(options, units=2))) as sandbox:
        for _ in range(4):
            sandbox.start()
            pids.append(sandbox.pid)
            assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["clip"]
    assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


def test_more_memory_than_allowed_is_refused(options: SandboxOptions, folder: Path) -> None:
    with _closing(Sandbox(replace(options, clip_bytes=1000))) as sandbox:
        assert kinds(sandbox.decode(unit(folder, "a.mp4", 2))) == ["limit"]


def test_a_child_that_cannot_start_is_not_blamed_on_the_video(
    options: SandboxOptions, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with _closing(Sandbox(options)) as sandbox, pytest.raises(Unavailable, match="does not start"):
        sandbox.decode(unit(folder, "a.mp4", 2))


@pytest.mark.integration
def test_videos_in_an_object_store_are_read_there(s3_url: str, folder: Path) -> None:
    store = open_store(s3_url)
    info = store.put_file("videos/a.mp4", str(folder / "a.mp4"))
    work = unit(folder, "a.mp4", 3, 30)
    work.video.uri, work.video.etag = store.uri("videos/a.mp4"), info.etag
    with _closing(Sandbox(sandbox_options(DecoderSettings(stores=(s3_url,))))) as sandbox:
        assert [numbers(outcome)[0] for outcome in sandbox.decode(work)] == [3, 30]
        store.put("videos/a.mp4", b"another")
        assert kinds(sandbox.decode(work)) == ["changed"] * 2
        store.delete("videos/a.mp4")
        assert kinds(sandbox.decode(work)) == ["vanished"] * 2


# --- the stage ---


class World:
    """A memory bus and cache, and what a decoder publishes."""

    def __init__(self, limit_bytes: int = 2**26) -> None:
        self.bus = MemoryBus()
        self.bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
        self.cache = MemoryCache(limit_bytes)
        self._seen = {t: self.bus.subscribe([t], None) for t in (topics.CLIPS, topics.PROGRESS, topics.DEADLETTER)}

    def send(self, work: DecodeSeed) -> None:
        self.bus.publish(topics.SEEDS, work.video.id.encode(), work.SerializeToString())

    def published(self, topic: str, count: int) -> list[Record]:
        """The next `count` messages of a topic."""
        found: list[Record] = []
        while len(found) < count:
            records = self._seen[topic].poll(count - len(found), LIMIT_S)
            assert records, f"{len(found)} of {count} messages on {topic}"
            found += [record for record in records if not _is_heartbeat(record)]
        return found

    def told(self) -> list[Progress]:
        """What the master was told by now, but for heartbeats."""
        records = self._seen[topics.PROGRESS].poll(1000, 0.0)
        return [Progress.FromString(record.value) for record in records if not _is_heartbeat(record)]

    def quiet(self, topic: str) -> bool:
        return not self._seen[topic].poll(1, 0.0)

    def close(self) -> None:
        for subscription in self._seen.values():
            subscription.close()
        self.bus.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def _is_heartbeat(record: Record) -> bool:
    return record.topic == topics.PROGRESS and Progress.FromString(record.value).HasField("heartbeat")


def _record(work: DecodeSeed, offset: int = 0) -> Record:
    return Record(topics.SEEDS, 0, offset, work.video.id.encode(), work.SerializeToString())


@contextmanager
def _stage(world: World, sandbox: Sandbox) -> Iterator[tuple[DecodeStage, ControlFeed]]:
    control = ControlFeed(world.bus)
    reports = Reports(world.bus, "w1")
    stage = DecodeStage(world.bus, world.cache, control, sandbox, reports, "w1")
    try:
        stage.setup()
        yield stage, control
        reports.flush()
    finally:
        stage.close()
        control.close()


def test_a_clip_is_stored_announced_and_reported(world: World, sandbox: Sandbox, folder: Path) -> None:
    with _stage(world, sandbox) as (stage, _):
        stage.handle(_record(unit(folder, "a.mp4", 5, 9)))
    records = world.published(topics.CLIPS, 2)
    assert [record.partition for record in records] == [0, 1]
    ready = ClipReady.FromString(records[1].value)
    assert ready.key == clip_key("j", TRAIN, 3, 1, 0)
    assert (ready.clip.video_id, ready.clip.first_frame, ready.clip.index) == ("a.mp4", 9, 1)
    value = world.cache.get(ready.key)
    assert numbers(value)[0] == 9
    assert (ready.bytes, ready.fence) == (len(value), 7)
    progress = Progress.FromString(world.published(topics.PROGRESS, 1)[0].value)
    assert (progress.job, progress.worker, progress.fence) == ("j", "w1", 7)
    assert (progress.made.purpose, progress.made.epoch, progress.made.stream) == (TRAIN, 3, "")
    assert (progress.made.indices, progress.made.bytes) == ([0, 1], [ready.bytes] * 2)
    assert progress.made.seconds > 0
    assert world.cache.ack(ready.key, "trainer.rgb")


def test_doing_a_message_again_is_harmless(world: World, sandbox: Sandbox, folder: Path) -> None:
    with _stage(world, sandbox) as (stage, _):
        for _ in range(2):
            stage.handle(_record(unit(folder, "a.mp4", 5)))
    first, again = (ClipReady.FromString(record.value) for record in world.published(topics.CLIPS, 2))
    assert first == again
    assert world.cache.usage().keys == 1


def test_what_cannot_be_decoded_is_reported(world: World, sandbox: Sandbox, folder: Path) -> None:
    work = unit(folder, "a.mp4", 2, 38)
    work.seeds[1].last_frame = 100
    with _stage(world, sandbox) as (stage, _):
        stage.handle(_record(work))
    failed, decoded = (Progress.FromString(record.value) for record in world.published(topics.PROGRESS, 2))
    assert decoded.made.indices == [0]
    assert (failed.failed.clip.index, failed.failed.stage, failed.failed.kind) == (1, "decoder", "truncated")
    letter = world.published(topics.DEADLETTER, 1)[0]
    assert letter.key == b"a.mp4"
    dead = DeadLetter.FromString(letter.value)
    assert (dead.kind, dead.topic, dead.worker) == ("truncated", topics.SEEDS, "w1")
    assert [seed.first_frame for seed in DecodeSeed.FromString(dead.message).seeds] == [38]


def test_a_full_cache_does_not_decode_twice(sandbox: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = unit(folder, "a.mp4", 2, 20)
    decoded = []
    decode: Callable[[DecodeSeed], list[Outcome]] = sandbox.decode
    monkeypatch.setattr(sandbox, "decode", lambda unit: decoded.append(unit) or decode(unit))
    world = World(limit_bytes=5 * SIZE * 2 * SIZE * 3 + 1000)  # one clip
    with _stage(world, sandbox) as (stage, _):
        with pytest.raises(CacheFull):
            stage.handle(_record(work))
        ready = ClipReady.FromString(world.published(topics.CLIPS, 1)[0].value)
        world.cache.ack(ready.key, "trainer.rgb")
        stage.handle(_record(work))
        assert ClipReady.FromString(world.published(topics.CLIPS, 1)[0].value).clip.index == 1
    assert len(decoded) == 1
    world.close()


def test_seeds_of_a_stopped_job_are_dropped(world: World, sandbox: Sandbox, folder: Path) -> None:
    with _stage(world, sandbox) as (stage, control):
        stop = Control(job="j", fence=7, command=Control.STOP)
        world.bus.publish(topics.CONTROL, b"j", stop.SerializeToString())
        assert control.wait("j", LIMIT_S, [Control.STOP]) is not None
        stage.handle(_record(unit(folder, "a.mp4", 2)))
        assert world.quiet(topics.CLIPS)
        assert world.quiet(topics.PROGRESS)
        stage.handle(_record(unit(folder, "a.mp4", 2, job="other")))
        assert ClipReady.FromString(world.published(topics.CLIPS, 1)[0].value).clip.job == "other"


def test_a_message_that_is_none_goes_to_the_dead_letters(world: World, sandbox: Sandbox) -> None:
    record = Record(topics.SEEDS, 0, 4, b"v", b"\xff\xff\xff")
    with _stage(world, sandbox) as (stage, _):
        with pytest.raises(PermanentError) as caught:
            stage.handle(record)
        stage.reject(record, caught.value, 1)
    letter = DeadLetter.FromString(world.published(topics.DEADLETTER, 1)[0].value)
    assert letter.message == record.value


def test_a_rejected_message_fails_all_its_seeds(world: World, sandbox: Sandbox, folder: Path) -> None:
    with _stage(world, sandbox) as (stage, _):
        stage.reject(_record(unit(folder, "a.mp4", 2, 20)), BadVideo("no", "crashed"), 3)
    failed = [Progress.FromString(record.value).failed for record in world.published(topics.PROGRESS, 2)]
    assert [(each.clip.index, each.kind) for each in failed] == [(0, "crashed"), (1, "crashed")]


# --- the service ---


def test_the_service_decodes_what_it_can_and_goes_on(world: World, folder: Path) -> None:
    stores = (f"file://{folder}",)
    adapters = Adapters(world.bus, world.cache, Stores(stores))
    service = build(adapters, DecoderSettings(stores=stores, decoder_processes=2), "w1")
    works = [
        unit(folder, "a.mp4", 3),
        unit(folder, "text.mp4", 0),
        unit(folder, "none.mp4", 0),
        unit(folder, "b.avi", 20),
    ]
    for number, work in enumerate(works):
        work.seeds[0].index = number
        world.send(work)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        clips = [ClipReady.FromString(record.value) for record in world.published(topics.CLIPS, 2)]
        world.published(topics.DEADLETTER, 2)
    finally:
        service.drain()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    progress = world.told()
    assert sorted(index for p in progress for index in p.made.indices) == [0, 3]
    assert {p.failed.clip.index: p.failed.kind for p in progress if p.HasField("failed")} == {
        1: "not_video",
        2: "vanished",
    }
    assert {clip.clip.index: numbers(world.cache.get(clip.key))[0] for clip in clips} == {0: 3, 3: 20}
    assert world.bus.backlog(topics.SEEDS, "decoder") == 0
