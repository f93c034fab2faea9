"""What became of one clip, as the history of a real master tells it, and of each thing that can befall one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp.audit.story import Story, story_of
from essp_common.job.status import PURPOSES
from essp_common.pb.v1.messages_pb2 import (
    DECODER,
    LOST,
    TEST,
    TRAIN,
    ClipFailure,
    HistoryEntry,
    HistorySegment,
    JobSnapshot,
    PhaseEvents,
    PhasePlan,
    Position,
    Runs,
    RunStart,
)
from essp_common.wiring import Adapters
from tests.unit.essp.audit.test_audit import Audited

THIS = Runs(lengths=[7, 1])
"""The clip at index 7."""


def said(story: Story | None) -> list[str]:
    assert story is not None
    return [step.what for step in story.steps]


def test_a_clip_that_nothing_befell(adapters: Adapters, tmp_path: Path) -> None:
    segments = Audited(adapters, tmp_path).run()
    story = story_of(segments, "train", 1, 3)
    assert said(story) == [
        "run 1 of the job began",
        "issued: a decoder was asked for it",
        "decoded",
        "stream diff extracted",
        "used by trainer diff",
        "used by trainer rgb",
        "in the checkpoint of trainer rgb after step 45",
        "in the checkpoint of trainer diff after step 45",
    ]
    assert story is not None
    assert (story.lacking, story.attempts) == ((), {})
    times = [step.time_ms for step in story.steps]
    assert times == sorted(times)
    assert story_of(segments, "train", 1, 10) is None
    assert story_of(segments, "train", 2, 0) is None


def test_a_video_that_cannot_be_decoded_is_replaced_in_training(adapters: Adapters, tmp_path: Path) -> None:
    segments = Audited(adapters, tmp_path, "train/v2.mp4").run()
    failures = [f for segment in segments for entry in segment.entries for f in entry.failures]
    failure = next(f for f in failures if f.position.phase_index == 0)
    story = story_of(segments, "train", 0, failure.position.index)
    assert "failed in the decoder: train/v2.mp4 (damaged); another video replaces it" in said(story)
    assert {what for what in said(story) if "replacement" in what} == {
        f"trainer {name} trained replacement {failure.attempt + 1} of its video" for name in ("rgb", "diff")
    }
    assert story is not None
    assert set(story.attempts) == {"trainer.rgb", "trainer.diff"}


def test_a_video_that_cannot_be_decoded_is_skipped_in_a_test(adapters: Adapters, tmp_path: Path) -> None:
    segments = Audited(adapters, tmp_path, "test/v1.mp4").run()
    stories = [said(story_of(segments, "test", 0, index)) for index in range(16)]
    skipped = [story for story in stories if "skipped by all that read stream rgb: there is nothing to use" in story]
    assert len(skipped) == 2, "the clips of a video"
    assert all("failed in the decoder: test/v1.mp4 (damaged); nothing replaces it" in story for story in skipped)


def entry(**fields: Any) -> HistoryEntry:
    return HistoryEntry(time_ms=1000, **fields)


def begins(**start: Position) -> HistoryEntry:
    phases = [PhasePlan(purpose=TRAIN, clips=10), PhasePlan(purpose=TEST, clips=5)]
    consumers = {name.replace("_", "."): position for name, position in start.items()}
    return entry(started=RunStart(snapshot=JobSnapshot(phases=phases), start=consumers))


@pytest.mark.parametrize(
    ("befalls", "tells"),
    [
        (
            entry(failures=[ClipFailure(position=Position(index=7), stage=DECODER, kind=LOST)]),
            "lost between decoder and its consumer; asked for again",
        ),
        (
            entry(phases=[PhaseEvents(released={"trainer.rgb": THIS})]),
            "released unread by trainer rgb, to be made again later",
        ),
        (
            entry(phases=[PhaseEvents(retrained={"consumer.camera": THIS})]),
            "used once more by loop camera, which had fallen back to a checkpoint",
        ),
        (
            entry(phases=[PhaseEvents(trained_before={"trainer.rgb": THIS})]),
            "trainer rgb had it already, in a checkpoint",
        ),
        (entry(taken_over=True), "another master took the job over"),
    ],
)
def test_what_can_befall_a_clip_is_told(befalls: HistoryEntry, tells: str) -> None:
    segment = HistorySegment(entries=[begins(trainer_rgb=Position()), befalls])
    assert said(story_of([segment], "train", 0, 7))[1:] == [tells]
    assert said(story_of([segment], "train", 0, 6))[1:] == ([tells] if befalls.taken_over else [])


def test_who_lacks_a_clip_and_who_never_needs_it_again() -> None:
    before, behind = Position(index=3), Position(index=9)
    segment = HistorySegment(
        entries=[
            begins(trainer_rgb=Position(), trainer_flow=Position()),
            entry(phases=[PhaseEvents(trained={"trainer.rgb": THIS})]),
            begins(trainer_rgb=behind, trainer_flow=before),
        ]
    )
    story = story_of([segment], "train", 0, 7)
    assert story is not None
    assert [(step.run, step.what) for step in story.steps] == [
        (1, "run 1 of the job began"),
        (1, "used by trainer rgb"),
        (2, "run 2 of the job began"),
        (2, "trainer rgb had it already and continues after it"),
    ]
    assert story.lacking == ("trainer.flow",)


def test_each_pass_can_be_asked_for() -> None:
    phases = [PhasePlan(purpose=name.upper(), clips=10) for name in PURPOSES.values()]
    segment = HistorySegment(entries=[entry(started=RunStart(snapshot=JobSnapshot(phases=phases)))])
    for name in PURPOSES.values():
        assert said(story_of([segment], name, 0, 9)) == ["run 1 of the job began"]
