"""The fields of `clip` that choose frames by time: which go together, and what they make of the others."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.errors import ConfigCode
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.spec import JobSpec
from tests.harness.refused import refused


def job(**sections: Any) -> JobSpec:
    document = {
        "name": "job",
        "output": "file:///out",
        "data": {"catalog": "file:///c.parquet"},
        "trainers": {"rgb": {"stream": "rgb"}},
    }
    return JobSpec.model_validate(document | sections)


@pytest.mark.parametrize(
    ("clip", "frames", "period_s"),
    [
        ({}, 11, None),
        ({"fps": 4}, 11, 0.25),
        ({"every_s": 2, "frames": 5}, 5, 2.0),
        ({"seconds": 2.0, "frames": 16}, 16, 0.125),
        ({"seconds": 2.0, "frames": 16, "snippets": 4}, 16, 0.5),
        ({"seconds": 2, "fps": 4}, 8, 0.25),
        ({"seconds": 1.1, "fps": 10}, 11, 0.1),
        ({"seconds": 1.05, "every_s": 0.1}, 11, 0.1),
        ({"seconds": 0.01, "fps": 4}, 1, 0.25),
        ({"seconds": 2, "fps": 4, "snippets": 3}, 24, 0.25),
        ({"every_s": 1, "max_frames": 64}, 64, 1.0),
        ({"frames": 32, "spread": "video"}, 32, None),
    ],
)
def test_frames_and_their_distance_follow_from_what_is_given(
    clip: dict[str, Any], frames: int, period_s: float | None
) -> None:
    found = ClipSpec.model_validate(clip)
    assert (found.frames, found.period_s) == (frames, period_s)
    assert found.by_time == bool(clip)
    assert ClipSpec.model_validate(found.model_dump()) == found, "as models keep it"


@pytest.mark.parametrize(
    ("clip", "field", "code"),
    [
        ({"fps": 4, "stride": 2}, "stride", "conflict"),
        ({"seconds": 2, "stride": 2}, "stride", "conflict"),
        ({"spread": "video", "stride": 2}, "stride", "conflict"),
        ({"fps": 4, "every_s": 2}, "every_s", "conflict"),
        ({"fps": 4, "every_s": 0.25}, "every_s", "conflict"),
        ({"spread": "video", "fps": 4}, "fps", "conflict"),
        ({"spread": "video", "every_s": 4}, "every_s", "conflict"),
        ({"spread": "video", "seconds": 4}, "seconds", "conflict"),
        ({"spread": "video", "max_frames": 4}, "max_frames", "conflict"),
        ({"spread": "video", "frames": 12, "snippets": 3}, "snippets", "conflict"),
        ({"spread": "video", "frames": 1}, "frames", "range"),
        ({"spread": "clip"}, "spread", "unknown"),
        ({"max_frames": 8}, "max_frames", "missing"),
        ({"max_frames": 8, "seconds": 8}, "max_frames", "missing"),
        ({"max_frames": 8, "fps": 1, "seconds": 8}, "seconds", "conflict"),
        ({"max_frames": 8, "fps": 1, "frames": 9}, "frames", "conflict"),
        ({"max_frames": 8, "fps": 1, "snippets": 2}, "snippets", "conflict"),
        ({"max_frames": 1, "fps": 1}, "max_frames", "range"),
        ({"max_frames": 513, "fps": 1}, "max_frames", "range"),
        ({"seconds": 2, "fps": 4, "frames": 9}, "frames", "conflict"),
        ({"seconds": 200, "fps": 40}, "frames", "range"),
        ({"fps": 0}, "fps", "range"),
        ({"fps": True}, "fps", "type"),
        ({"fps": "fast"}, "fps", "type"),
        ({"fps": float("inf")}, "fps", "invalid"),
        ({"every_s": -1}, "every_s", "range"),
        ({"every_s": 10**6}, "every_s", "range"),
        ({"seconds": float("nan")}, "seconds", "invalid"),
    ],
)
def test_what_does_not_go_together_is_refused(clip: dict[str, Any], field: str, code: ConfigCode) -> None:
    with refused(field, code):
        ClipSpec.model_validate(clip)


WHOLE = {"frames": 8, "spread": "video"}


def test_a_video_has_one_clip_that_covers_all_of_it() -> None:
    assert job(clip=WHOLE).sampling.clips_per_video == 1
    assert job(clip={"fps": 1, "max_frames": 8}, sampling={"seed": 3}).sampling.clips_per_video == 1
    assert job(clip=ClipSpec.model_validate(WHOLE)).sampling.clips_per_video == 1
    assert job(clip={"fps": 1}).sampling.clips_per_video == 3
    assert JobSpec.model_validate(job(clip=WHOLE).model_dump()) == job(clip=WHOLE)
    with refused("sampling.clips_per_video", "conflict"):
        job(clip=WHOLE, sampling={"clips_per_video": 3})


def test_classes_have_no_place_in_a_clip_that_covers_its_video() -> None:
    predictor = {"model": "file:///model"}
    with refused("sampling.every_s", "conflict"):
        job(clip=WHOLE, trainers={}, predictor=predictor, sampling={"every_s": 1.0})
    with refused("predictor.segments", "conflict"):
        job(clip=WHOLE, trainers={}, predictor=predictor | {"segments": True})


def test_records_have_no_time() -> None:
    with refused("clip", "conflict"):
        job(data={"records": "file:///r"}, clip={"fps": 4})
