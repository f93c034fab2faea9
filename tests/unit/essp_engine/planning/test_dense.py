"""Clips every so many seconds: as many as the length of a video takes, evenly, however long it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import PREDICT
from essp_engine.planning import even
from essp_engine.planning.even import Dense, Uniform
from essp_engine.planning.plan import plan_of
from tests.harness.plans import row, view_of
from tests.harness.refused import Refusal, refused


@given(
    videos=st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.0, 7.5, 25.0, 59.94])), min_size=1, max_size=6),
    frames=st.integers(1, 20),
    every_s=st.floats(0.01, 5),
    locality=st.sampled_from([0, 16]),
)
def test_no_clip_begins_later_than_it_may(
    videos: list[tuple[int, float]], frames: int, every_s: float, locality: int
) -> None:
    rows = [replace(row(f"a/{i:02}", length), fps=fps) for i, (length, fps) in enumerate(videos)]
    plan = Dense(Catalog(rows).view(None), ClipSpec(frames=frames), every_s, locality)
    clips = [plan.clip(index) for index in range(len(plan))]
    assert sorted(chain.from_iterable(plan.units(0, len(plan)))) == clips, "one by one, or many at once"
    assert [clip.index for clip in clips] == list(range(len(plan)))
    assert [clip.video for clip in clips] == sorted(clip.video for clip in clips), "video by video"
    for number, (length, fps) in enumerate(videos):
        begins = [clip.first_frame for clip in clips if clip.video == number]
        places = max(1, length - frames + 1)
        reached = 1 + every_s * (fps or 25.0)
        assert begins[0] <= reached / 2
        assert places - begins[-1] <= reached
        assert all(0 <= a <= b < places and b - a <= reached for a, b in pairwise(begins))
        fewest = places / (every_s * (fps or 25.0))
        assert len(begins) <= fewest + 1, "and no more of them than that takes"


def test_videos_of_one_length_have_the_clips_of_a_uniform_plan() -> None:
    view = view_of({"a": [110, 110]})
    few = Dense(view, ClipSpec(frames=11), every_s=1.0)  # 100 places at 25 frames a second
    same = Uniform(view, ClipSpec(frames=11), 4)
    assert [few.clip(i) for i in range(len(few))] == [same.clip(i) for i in range(len(same))]


def test_an_hour_has_as_many_clips_as_it_takes() -> None:
    view = Catalog([replace(row("a/hour", 3600 * 25), fps=25.0), replace(row("a/short", 30), fps=25.0)]).view(None)
    plan = plan_of(view, ClipSpec(frames=16), SamplingSpec(every_s=0.25), PREDICT, 0)
    assert len(plan) == 14_398 + 3  # 89,985 places, 6.25 frames apart
    assert plan.clip(len(plan) - 1).video == 1
    assert [[clip.index for clip in unit] for unit in plan.units(14_396, 14_400)] == [
        [14_396, 14_397],
        [14_398, 14_399],
    ]


def test_more_clips_than_a_job_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "MOST_CLIPS", 40)
    view = Catalog([replace(row("a/hour", 3600), fps=25.0)]).view(None)
    with refused("sampling.every_s", "range"):
        Dense(view, ClipSpec(frames=16), 0.5)


@pytest.mark.parametrize(
    ("sampling", "rest", "said"),
    [
        ({"every_s": 1}, {"trainers": {"rgb": {"stream": "rgb"}}}, ("sampling.every_s", "conflict")),
        ({"background": "none"}, {"predictor": {"model": "file:///m"}}, ("sampling.background", "conflict")),
    ],
)
def test_fields_without_a_use_are_refused(sampling: dict[str, object], rest: dict[str, object], said: Refusal) -> None:
    with refused(*said):
        JobSpec.model_validate({"name": "j", "output": "file:///o", "sampling": sampling, **rest})
