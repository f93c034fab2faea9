"""Dead letters: how people see them, purging, and when a replay makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from essp.deadletters.entries import Filter, entry_of
from essp.deadletters.replay import obstacle, publish_again, replay_state
from essp.deadletters.sink import DeadLetterSink
from essp.deadletters.store import BusEntryStore, OutputEntryStore
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record
from essp_common.failures import kind_named
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    VALIDATION,
    ClipReady,
    ClipRef,
    Control,
    DeadLetter,
    DecodeSeed,
    FeatureReady,
    Purpose,
    Recipe,
    Seed,
    StreamRequest,
    Video,
)

RECIPE = Recipe(streams=[StreamRequest(stream="rgb", feature="rgb"), StreamRequest(stream="flow", feature="flow")])
FEATURES = topics.features("flow")


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    made = MemoryBus()
    made.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, FEATURES)})
    yield made
    made.close()


def unit(job: str = "j", index: int = 5, attempt: int = 0, fence: int = 3, purpose: Purpose = TRAIN) -> DecodeSeed:
    return DecodeSeed(
        job=job,
        purpose=purpose,
        epoch=1,
        fence=fence,
        video=Video(id=f"video-{index}", uri=f"s3://bucket/{index}.mp4"),
        seeds=[Seed(index=index, attempt=attempt, class_id=2, first_frame=30, frame_count=4, stride=1)],
        recipe=RECIPE,
    )


def dead_letter(message: DecodeSeed | ClipReady | bytes, kind: str = "damaged", reason: str = "bad") -> DeadLetter:
    topic = topics.CLIPS if isinstance(message, ClipReady) else topics.SEEDS
    content = message if isinstance(message, bytes) else message.SerializeToString()
    return DeadLetter(
        topic=topic, message=content, reason=reason, kind=kind_named(kind), attempts=1, worker="w", time_ms=1_700
    )


def put(bus: MemoryBus, *entries: DeadLetter) -> None:
    for entry in entries:
        bus.publish(topics.DEADLETTER, b"k", entry.SerializeToString())


def command(bus: MemoryBus, what: Control.Command, job: str = "j", fence: int = 3) -> None:
    bus.publish(topics.CONTROL, b"j", Control(job=job, fence=fence, command=what).SerializeToString())


def why_not(bus: MemoryBus, message: DecodeSeed | ClipReady | bytes) -> str:
    dead = dead_letter(message)
    return obstacle(dead, replay_state(bus, [dead])) or ""


def test_a_letter_tells_the_reason_and_the_seed() -> None:
    shown = entry_of("7", dead_letter(unit(attempt=2), "truncated", "the file ends early"))
    assert (shown.kind, shown.reason, shown.topic) == ("truncated", "the file ends early", topics.SEEDS)
    assert shown.time == "1970-01-01T00:00:01.700+00:00"
    seed = shown.seed
    assert (seed.job, seed.purpose, seed.epoch, seed.index, seed.attempt) == ("j", "train", 1, 5, 2)
    assert (seed.video, seed.uri, seed.first_frame, seed.class_id) == ("video-5", "s3://bucket/5.mp4", 30, 2)
    of_extractor = entry_of(
        "8", dead_letter(ClipReady(clip=ClipRef(job="j", purpose=VALIDATION, index=9, video_id="v")))
    )
    assert (of_extractor.seed.purpose, of_extractor.seed.index, of_extractor.seed.video) == ("validation", 9, "v")


def test_a_message_that_cannot_be_read_is_listed_without_a_seed() -> None:
    assert entry_of("1", dead_letter(b"\xff\xff")).seed.job == ""
    assert entry_of("1", dead_letter(b"")).seed.job == ""


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), {"0", "1", "2"}),
        (Filter(job="j"), {"0", "1"}),
        (Filter(kind="vanished"), {"1"}),
        (Filter(video="bucket/6"), {"1"}),
        (Filter(job="j", kind="damaged"), {"0"}),
        (Filter(ids=("0", "2"), job="other"), {"2"}),
    ],
)
def test_filters_leave_out_what_is_not_meant(bus: MemoryBus, wanted: Filter, found: set[str]) -> None:
    put(bus, dead_letter(unit()), dead_letter(unit(index=6), "vanished"), dead_letter(unit(job="other")))
    entries = {identity: entry_of(identity, message) for identity, message in BusEntryStore(bus).entries().items()}
    assert {identity for identity, entry in entries.items() if wanted.matches(entry)} == found


def test_any_number_of_letters_is_purged(bus: MemoryBus) -> None:
    """More than one message can name."""
    reader = bus.subscribe([topics.DEADLETTER], None)
    offsets = range(10**6, 10**6 + 400_000)
    BusEntryStore(bus).purge([str(offset) for offset in offsets])
    messages = [DeadLetter.FromString(record.value) for record in reader.poll(1000, 0.0)]
    assert sorted(offset for message in messages for offset in message.purged) == list(offsets)


def test_purged_letters_are_forgotten_and_later_ones_are_not(bus: MemoryBus) -> None:
    store = BusEntryStore(bus)
    put(bus, dead_letter(unit(index=1)), dead_letter(unit(index=2)))
    store.purge(["0"])
    put(bus, dead_letter(unit(index=3)))
    assert [entry_of("", entry).seed.index for entry in store.entries().values()] == [2, 3]
    assert list(store.entries()) == ["1", "3"]
    store.purge(list(store.entries()))
    assert not store.entries()


def test_a_job_in_one_process_leaves_its_dead_letters_in_its_output(bus: MemoryBus, tmp_path: Path) -> None:
    store = OutputEntryStore(DirectoryStore.from_url(f"file://{tmp_path}"))
    first = dead_letter(unit(index=1))
    put(bus, first, dead_letter(unit(job="other")), dead_letter(b"\xff"))
    sink = DeadLetterSink(bus, store, "j")
    put(bus, dead_letter(unit(index=2)))
    sink.close()
    DeadLetterSink(bus, store, "j").close()  # one that reads the same again adds nothing
    kept = store.entries()
    assert sorted(entry_of("", entry).seed.index for entry in kept.values()) == [0, 1, 2]
    assert first in kept.values()
    store.purge(list(kept)[:2])
    assert len(store.entries()) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"deadletter": "%"}',
        '{"deadletter": "/w=="}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_what_is_no_dead_letter_is_told_and_hides_no_other(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = OutputEntryStore(DirectoryStore.from_url(f"file://{tmp_path}"))
    letter = dead_letter(unit())
    store.add(Record(topics.DEADLETTER, 0, 7, b"", letter.SerializeToString()), letter)
    (tmp_path / "deadletters/damaged.json").write_text(content)
    assert list(store.entries().values()) == [letter]
    assert f"{tmp_path}/deadletters/damaged.json is not a dead letter" in caplog.text


def test_a_running_job_gets_its_message_again_unchanged(bus: MemoryBus) -> None:
    command(bus, Control.START)
    bus.publish(topics.SEEDS, b"", unit().SerializeToString())
    seeds = dead_letter(unit())
    assert obstacle(seeds, replay_state(bus, [seeds])) is None
    publish_again(bus, seeds)
    ready = ClipReady(clip=ClipRef(job="j", purpose=TRAIN, epoch=1, index=70), recipe=RECIPE, fence=3)
    clips = dead_letter(ready)
    assert obstacle(clips, replay_state(bus, [clips])) is None
    publish_again(bus, clips)
    reader = bus.subscribe([topics.SEEDS, topics.CLIPS], group=None)
    records = reader.poll(10, 0.0)
    reader.close()
    assert [r.value for r in records if r.topic == topics.SEEDS][-1] == seeds.message
    assert [(r.value, r.partition) for r in records if r.topic == topics.CLIPS] == [(clips.message, 70 - 64)]


def test_a_message_that_no_consumer_needs_is_not_published_again(bus: MemoryBus) -> None:
    assert "cannot be read" in why_not(bus, b"\xff")
    assert "has no command for job j" in why_not(bus, unit())
    command(bus, Control.START)
    assert why_not(bus, unit()) == ""
    assert "earlier start" in why_not(bus, unit(fence=2))
    bus.publish(topics.SEEDS, b"", unit(attempt=1).SerializeToString())
    assert "another video, attempt 1" in why_not(bus, unit())
    assert why_not(bus, unit(attempt=1)) == ""
    assert why_not(bus, unit(purpose=VALIDATION)) == ""
    command(bus, Control.FAIL)
    assert "has ended (fail)" in why_not(bus, unit(attempt=1))


def test_a_skipped_index_is_not_replayed_once_all_streams_skip_it(bus: MemoryBus) -> None:
    command(bus, Control.START)
    clip = ClipRef(job="j", purpose=TRAIN, epoch=1, index=5)
    skipped = ClipReady(clip=clip, skipped="bad")
    bus.publish(topics.CLIPS, b"5", skipped.SerializeToString(), partition=5)
    assert why_not(bus, unit()) == "", "consumers of flow may still wait"
    bus.publish(FEATURES, b"5", FeatureReady(clip=clip, skipped="bad").SerializeToString(), partition=5)
    assert "was skipped" in why_not(bus, unit())
    assert "was skipped" in why_not(bus, ClipReady(clip=clip, recipe=RECIPE, fence=3))


def test_only_dead_letters_are_purged(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    for name in ("notes.json", "0000000000001-7.json"):
        store.put(layout.DEADLETTERS + name, b"{}")
    OutputEntryStore(store).purge(["notes", "0000000000001-7"])
    assert [info.key for info in store.list()] == [f"{layout.DEADLETTERS}notes.json"]
