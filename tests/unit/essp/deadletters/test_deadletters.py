"""Dead letters: what people are told of them, forgetting them, and when doing it again makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from essp.deadletters.entries import Filter, letter_of
from essp.deadletters.replay import obstacle, publish_again, standing
from essp.deadletters.sink import Archive
from essp.deadletters.store import BusBox, OutputBox
from essp_common import topics
from essp_common.bus import reading
from essp_common.bus.memory import MemoryBus
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


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus in memory has everything at once."""
    monkeypatch.setattr(reading, "_FIRST_S", 0.0)
    monkeypatch.setattr(reading, "_NEXT_S", 0.0)


def unit(job: str = "j", index: int = 5, attempt: int = 0, fence: int = 3, purpose: int = TRAIN) -> DecodeSeed:
    return DecodeSeed(
        job=job,
        purpose=purpose,
        epoch=1,
        fence=fence,
        video=Video(id=f"video-{index}", uri=f"s3://bucket/{index}.mp4"),
        seeds=[Seed(index=index, attempt=attempt, class_id=2, first_frame=30, frame_count=4, stride=1)],
        recipe=RECIPE,
    )


def letter(message: DecodeSeed | ClipReady | bytes, kind: str = "damaged", reason: str = "bad") -> DeadLetter:
    topic = topics.CLIPS if isinstance(message, ClipReady) else topics.SEEDS
    content = message if isinstance(message, bytes) else message.SerializeToString()
    return DeadLetter(
        topic=topic, message=content, reason=reason, kind=kind_named(kind), attempts=1, worker="w", time_ms=1_700
    )


def put(bus: MemoryBus, *letters: DeadLetter) -> None:
    for each in letters:
        bus.publish(topics.DEADLETTER, b"k", each.SerializeToString())


def command(bus: MemoryBus, what: Control.Command, job: str = "j", fence: int = 3) -> None:
    bus.publish(topics.CONTROL, b"j", Control(job=job, fence=fence, command=what).SerializeToString())


def why_not(bus: MemoryBus, message: DecodeSeed | ClipReady | bytes) -> str:
    dead = letter(message)
    return obstacle(dead, standing(bus, [dead])) or ""


def test_a_letter_tells_the_reason_and_the_seed() -> None:
    told = letter_of("7", letter(unit(attempt=2), "truncated", "the file ends early"))
    assert (told.kind, told.reason, told.topic) == ("truncated", "the file ends early", topics.SEEDS)
    assert told.time == "1970-01-01T00:00:01.700+00:00"
    seed = told.seed
    assert (seed.job, seed.purpose, seed.epoch, seed.index, seed.attempt) == ("j", "train", 1, 5, 2)
    assert (seed.video, seed.uri, seed.first_frame, seed.class_id) == ("video-5", "s3://bucket/5.mp4", 30, 2)
    of_extractor = letter_of("8", letter(ClipReady(clip=ClipRef(job="j", purpose=VALIDATION, index=9, video_id="v"))))
    assert (of_extractor.seed.purpose, of_extractor.seed.index, of_extractor.seed.video) == ("validation", 9, "v")


def test_a_message_that_cannot_be_read_is_listed_without_a_seed() -> None:
    assert letter_of("1", letter(b"\xff\xff")).seed.job == ""
    assert letter_of("1", letter(b"")).seed.job == ""


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
    put(bus, letter(unit()), letter(unit(index=6), "vanished"), letter(unit(job="other")))
    letters = {identity: letter_of(identity, message) for identity, message in BusBox(bus).letters().items()}
    assert {identity for identity, each in letters.items() if wanted.matches(each)} == found


def test_purged_letters_are_forgotten_and_later_ones_are_not(bus: MemoryBus) -> None:
    box = BusBox(bus)
    put(bus, letter(unit(index=1)), letter(unit(index=2)))
    box.purge(["0"])
    put(bus, letter(unit(index=3)))
    assert [letter_of("", each).seed.index for each in box.letters().values()] == [2, 3]
    assert list(box.letters()) == ["1", "3"]
    box.purge(list(box.letters()))
    assert not box.letters()


def test_a_job_in_one_process_leaves_its_letters_in_its_output(bus: MemoryBus, tmp_path: Path) -> None:
    box = OutputBox(DirectoryStore.from_url(f"file://{tmp_path}"))
    first = letter(unit(index=1))
    put(bus, first, letter(unit(job="other")), letter(b"\xff"))
    archive = Archive(bus, box, "j")
    put(bus, letter(unit(index=2)))
    archive.close()
    Archive(bus, box, "j").close()  # one that reads the same again adds nothing
    kept = box.letters()
    assert sorted(letter_of("", each).seed.index for each in kept.values()) == [0, 1, 2]
    assert first in kept.values()
    box.purge(list(kept)[:2])
    assert len(box.letters()) == 1


def test_a_running_job_gets_its_message_again_as_it_was(bus: MemoryBus) -> None:
    command(bus, Control.START)
    bus.publish(topics.SEEDS, b"", unit().SerializeToString())
    seeds = letter(unit())
    assert obstacle(seeds, standing(bus, [seeds])) is None
    publish_again(bus, seeds)
    ready = ClipReady(clip=ClipRef(job="j", purpose=TRAIN, epoch=1, index=70), recipe=RECIPE, fence=3)
    clips = letter(ready)
    assert obstacle(clips, standing(bus, [clips])) is None
    publish_again(bus, clips)
    reader = bus.subscribe([topics.SEEDS, topics.CLIPS], group=None)
    records = reader.poll(10, 0.0)
    reader.close()
    assert [r.value for r in records if r.topic == topics.SEEDS][-1] == seeds.message
    assert [(r.value, r.partition) for r in records if r.topic == topics.CLIPS] == [(clips.message, 70 - 64)]


def test_what_nobody_waits_for_is_not_published_again(bus: MemoryBus) -> None:
    assert "cannot be read" in why_not(bus, b"\xff")
    assert "nothing is known of job j" in why_not(bus, unit())
    command(bus, Control.START)
    assert why_not(bus, unit()) == ""
    assert "earlier start" in why_not(bus, unit(fence=2))
    bus.publish(topics.SEEDS, b"", unit(attempt=1).SerializeToString())
    assert "another video, attempt 1" in why_not(bus, unit())
    assert why_not(bus, unit(attempt=1)) == ""
    assert why_not(bus, unit(purpose=VALIDATION)) == ""
    command(bus, Control.FAIL)
    assert "has ended (fail)" in why_not(bus, unit(attempt=1))


def test_a_skipped_index_is_not_done_again_once_all_streams_were_told(bus: MemoryBus) -> None:
    command(bus, Control.START)
    clip = ClipRef(job="j", purpose=TRAIN, epoch=1, index=5)
    skipped = ClipReady(clip=clip, skipped="bad")
    bus.publish(topics.CLIPS, b"5", skipped.SerializeToString(), partition=5)
    assert why_not(bus, unit()) == "", "consumers of flow may still wait"
    bus.publish(FEATURES, b"5", FeatureReady(clip=clip, skipped="bad").SerializeToString(), partition=5)
    assert "was skipped" in why_not(bus, unit())
    assert "was skipped" in why_not(bus, ClipReady(clip=clip, recipe=RECIPE, fence=3))
