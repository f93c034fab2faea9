"""What the master tells decoders of a video and of its clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from essp_common import topics
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.label_sets import label_names
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.targets import Span, Targets, pack
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Seed, Video
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.instructions import IssueUnits, PublishSkip
from essp_engine.seeding.message_builder import MessageBuilder
from tests.harness.pinned import CATALOG, POOLED, digest, job

ROW = VideoRow(
    id="a.mp4",
    uri="file:///a.mp4",
    class_name="a",
    split="train",
    size_bytes=1000,
    etag="tag",
    width=64,
    height=48,
    frame_count=60,
    last_frame=59,
    seekable=True,
    lookahead=3,
    keyframe_pts=(0, 1500),
    keyframe_frame=(0, 30),
    keyframe_offset=(48, 500),
    sums=b"\x12abcd",
)


SPEC = JobSpec.model_validate(
    {
        "name": "job",
        "output": "file:///out",
        "data": {"catalog": "file:///catalog.parquet", "validation": "train", "test": None},
        "clip": {"frames": 5, "resize": {"mode": "exact", "height": 32, "width": 32}},
        "sampling": {"clips_per_epoch": 3},
        "streams": {"rgb": {"feature": "rgb"}},
        "trainers": {"rgb": {"stream": "rgb", "batch_size": 2}},
    }
)


def unit(count: int = 3) -> DecodeSeed:
    """The first clips of a job over one video, as decoders are told."""
    phases = Phases(SPEC, Catalog((ROW,)))
    clips = tuple(phases.plan(0).clip(index) for index in range(count))
    ((key, message),) = MessageBuilder(SPEC, phases, fence=7).units(IssueUnits(0, (clips,), ("trainer.rgb",)))
    assert key == ROW.uri.encode()
    return DecodeSeed.FromString(message)


def told(video: VideoRow, first_frames: tuple[int, ...]) -> list[tuple[bytes, DecodeSeed]]:
    """Key and message of the clips of one work unit that begin at these frames."""
    clips = tuple(PlannedClip(index, 0, 0, 0, first, 5, 1) for index, first in enumerate(first_frames))
    messages = MessageBuilder(SPEC, Phases(SPEC, Catalog((video,))), fence=7)
    units = messages.units(IssueUnits(0, (clips,), ("trainer.rgb",)))
    return [(key, DecodeSeed.FromString(message)) for key, message in units]


def test_decoders_are_told_all_that_the_catalog_knows_of_a_video() -> None:
    told = unit().video
    known = {field.name for field in Video.DESCRIPTOR.fields} - {"labels"}
    assert known == {field.name for field, _ in told.ListFields()}
    assert all(getattr(told, name) == getattr(ROW, name) for name in known)


@pytest.mark.parametrize(
    ("labels", "numbers"), [((), [0]), (("run", "jump"), [1, 2]), (("jump", "left", "jump"), [0, 1])]
)
def test_decoders_are_told_the_labels_of_a_video_where_trainers_learn_them(
    labels: tuple[str, ...], numbers: list[int]
) -> None:
    """Of a video without labels, its class."""
    row = replace(ROW, class_name="left", targets=pack(Targets(labels=labels)))
    other = replace(row, id="other", uri="file:///other", targets=pack(Targets(labels=("jump", "run"))))
    catalog = Catalog((row, other))
    assert label_names(catalog, of_spans=False) == ("jump", "left", "run")
    spec = SPEC.model_copy(update={"data": SPEC.data.model_copy(update={"targets": "labels"})})
    phases = Phases(spec, catalog)
    clip = PlannedClip(0, 0, 0, [r.id for r in catalog.rows].index(row.id), 0, 5, 1)
    builder = MessageBuilder(spec, phases, 7, ("left", "jump", "run"))
    ((_, message),) = builder.units(IssueUnits(0, ((clip,),), ("trainer.rgb",)))
    assert list(DecodeSeed.FromString(message).video.labels) == numbers


def test_a_skip_says_which_master_it_is_of() -> None:
    streams = {"rgb": {"feature": "rgb"}, "flow": {"feature": "flow"}}
    spec = JobSpec.model_validate(SPEC.model_dump() | {"streams": streams})
    phases = Phases(spec, Catalog((ROW,)))
    skip = PublishSkip(0, phases.plan(0).clip(1), ("rgb", "flow"), "gone")
    said = [(topic, m.clip.index, m.skipped, m.fence) for topic, m in MessageBuilder(spec, phases, 7).skips(skip)]
    assert said == [(topic, 1, "gone", 7) for topic in (topics.CLIPS, topics.features("flow"))]


def test_each_seed_names_the_last_keyframe_before_it() -> None:
    seeds: list[Seed] = list(unit().seeds)
    assert [seed.index for seed in seeds] == [0, 1, 2]
    for seed in seeds:
        assert seed.seek.frame_index == (30 if seed.first_frame >= 30 else 0)
        assert seed.last_frame == ROW.last_frame


def test_each_snippet_names_the_last_keyframe_before_it() -> None:
    clip = {"frames": 6, "snippets": 3, "resize": SPEC.clip.resize.model_dump()}
    spec = SPEC.model_copy(update={"clip": ClipSpec.model_validate(clip)})
    phases = Phases(spec, Catalog((ROW,)))
    clips = tuple(phases.plan(0).clip(index) for index in range(3))
    ((_, message),) = MessageBuilder(spec, phases, fence=7).units(IssueUnits(0, (clips,), ("trainer.rgb",)))
    told = DecodeSeed.FromString(message)
    assert told.recipe.snippets == 3
    assert [[part.first_frame for part in seed.later] for seed in told.seeds] == [list(clip.later) for clip in clips]
    for part in (part for seed in told.seeds for part in seed.later):
        assert part.seek.frame_index == (30 if part.first_frame >= 30 else 0)
    assert {part.seek.frame_index for seed in told.seeds for part in seed.later} == {0, 30}


TIMED = replace(
    ROW, fps=10.0, frame_count=120, last_frame=119, keyframe_pts=(0, 15, 30, 60, 90),
    keyframe_frame=(0, 15, 30, 60, 90), keyframe_offset=(48, 300, 500, 700, 900),
)  # fmt: skip


def timed(row: VideoRow, **clip: Any) -> list[Seed]:
    """The seeds of the first clips of a job whose frames are chosen by time."""
    document = SPEC.model_dump(exclude_unset=True) | {"clip": clip}
    phases = Phases(JobSpec.model_validate(document), Catalog((row,)))
    clips = tuple(phases.plan(0).clip(index) for index in range(3))
    ((_, message),) = MessageBuilder(phases.spec, phases, fence=7).units(IssueUnits(0, (clips,), ("trainer.rgb",)))
    return list(DecodeSeed.FromString(message).seeds)


def frames(seed: Seed) -> list[int]:
    assert not seed.stride, "which a decoder that knows no `offsets` refuses"
    return [part.first_frame + offset for part in (seed, *seed.later) for offset in part.offsets]


def test_a_seed_has_the_frames_that_are_chosen_by_time() -> None:
    for seed in timed(TIMED, fps=4, frames=8):
        assert frames(seed) == [seed.first_frame + offset for offset in (0, 2, 5, 7, 10, 12, 15, 17)]
        assert not seed.later, "groups of pictures between its frames are as good as none"
    assert frames(timed(TIMED, frames=5, spread="video")[0]) == [0, 29, 59, 89, 119]


def test_a_seed_seeks_past_what_it_need_not_decode() -> None:
    seed = timed(TIMED, frames=3, snippets=1, every_s=4.0)[0]
    first = seed.first_frame
    assert frames(seed) == [first, first + 40, first + 80]
    parts = [(part.first_frame, part.seek.frame_index) for part in (seed, *seed.later)]
    keyframes = [max(k for k in TIMED.keyframe_frame if k <= frame) for frame in frames(seed)]
    assert parts == list(zip(frames(seed), keyframes, strict=True))
    unseekable = timed(replace(TIMED, seekable=False), every_s=4.0, frames=3)[0]
    assert (frames(unseekable), len(unseekable.later)) == (frames(seed), 0)
    assert not unseekable.HasField("seek")


def test_each_snippet_has_its_own_frames() -> None:
    for seed in timed(TIMED, frames=6, snippets=2, seconds=1.0):
        shown = frames(seed)
        assert [frame - shown[0] for frame in shown[:3]] == [0, 3, 6]
        assert [frame - shown[3] for frame in shown[3:]] == [0, 3, 6]


def test_frames_chosen_by_time_have_the_labels_of_their_spans() -> None:
    spans = (Span(0, 9, "a"), Span(11, 19, "between"), Span(60, 60, "b"), Span(118, 119, "end"))
    row = replace(TIMED, targets=pack(Targets(spans=spans)))
    document = SPEC.model_dump(exclude_unset=True) | {"clip": {"frames": 3, "every_s": 6.0}}
    spec = JobSpec.model_validate(document | {"data": document["data"] | {"targets": "spans"}})
    phases = Phases(spec, Catalog((row,)))
    builder = MessageBuilder(spec, phases, 7, ("a", "b", "between", "end"))
    clip = PlannedClip(0, 0, 0, 0, 0, 3, 0, (), ((0, 60, 120),))
    ((_, message),) = builder.units(IssueUnits(0, ((clip,),), ("trainer.rgb",)))
    [seed] = DecodeSeed.FromString(message).seeds
    assert (frames(seed), list(seed.labels)) == ([0, 60, 119], [0, 1, 3])


def test_decoders_are_told_what_they_were_told_before() -> None:
    phases = Phases(job(POOLED), CATALOG)
    messages = MessageBuilder(phases.spec, phases, fence=3)
    told = []
    for number in range(len(phases.order)):
        plan = phases.plan(number)
        for clips in plan.units(0, len(plan)):
            ((key, message),) = messages.units(IssueUnits(number, (tuple(clips),), ("trainer.rgb",)))
            unit = DecodeSeed.FromString(message)
            unit.ClearField("recipe")
            told.append((key, str(unit)))
    assert digest(told) == "42603e503c696f57"


def test_clips_of_a_long_video_are_told_to_several_decoders() -> None:
    """Where they share no group of pictures. What a decoder is told of each clip is the same either way."""
    keyframes = tuple(range(0, 3000, 300))
    long = replace(
        ROW, width=640, height=360, frame_count=3000, last_frame=2999, keyframe_pts=keyframes,
        keyframe_frame=keyframes, keyframe_offset=keyframes,
    )  # fmt: skip
    first_frames = (290, 2699, 5, 295, 299)
    divided = told(long, first_frames)
    assert [[seed.index for seed in unit.seeds] for _, unit in divided] == [[0, 2, 3, 4], [1]]
    assert [key for key, _ in divided] == [b"file:///a.mp4#0", b"file:///a.mp4#8"]
    for _, unit in divided:
        for seed in unit.seeds:
            alone = told(long, first_frames[: seed.index + 1])[0 if seed.index != 1 else -1][1]
            assert seed in alone.seeds
            assert (unit.recipe, unit.video) == (alone.recipe, alone.video)
    ((key, _),) = told(replace(long, seekable=False), first_frames)
    assert key == b"file:///a.mp4", "decoded from its start, which two would do twice"
