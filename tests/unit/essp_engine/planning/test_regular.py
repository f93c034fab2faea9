"""Clips at a fixed distance: the first where the video begins, the last where one still fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import PREDICT
from essp_engine.planning import even
from essp_engine.planning.even import Regular
from essp_engine.planning.phases import Phases
from essp_engine.planning.plan import plan_of
from tests.harness.plans import row, view_of
from tests.harness.refused import refused


@given(
    videos=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 30)), min_size=1, max_size=6),
    frames=st.integers(1, 40),
    apart=st.integers(1, 60),
)
def test_every_place_that_fits_is_taken_once(videos: list[tuple[int, int]], frames: int, apart: int) -> None:
    rows = [row(f"a/{i:04}", length, first) for i, (length, first) in enumerate(videos)]
    plan = Regular(Catalog(rows).view(None), ClipSpec(frames=frames), every_frames=apart)
    expected = [
        (number, first + start)
        for number, (length, first) in enumerate(videos)
        for start in range(0, max(1, length - frames + 1), apart)
    ]
    assert [(clip.video, clip.first_frame) for index in range(len(plan)) for clip in [plan.clip(index)]] == expected
    found = [clip for unit in plan.units(0, len(plan)) for clip in unit]
    assert [(clip.video, clip.first_frame) for clip in found] == expected


def test_seconds_are_counted_at_the_rate_of_each_video() -> None:
    rows = [replace(row("a/1", 100), fps=25.0), replace(row("a/2", 100), fps=30000 / 1001), row("a/3", 30)]
    plan = Regular(Catalog(rows).view(None), ClipSpec(frames=1), every_s=1.0)
    starts: dict[int, list[int]] = {}
    for index in range(len(plan)):
        starts.setdefault(plan.clip(index).video, []).append(plan.clip(index).first_frame)
    assert starts == {0: [0, 25, 50, 75], 1: [0, 29, 59, 89], 2: [0, 25]}  # the last one has no rate: 25 is assumed


def test_a_job_that_extracts_takes_seconds_exactly_and_a_prediction_evenly() -> None:
    view = view_of({"a": [100]})
    sampling = SamplingSpec(every_s=1.0)
    exact = plan_of(view, ClipSpec(frames=1), sampling, PREDICT, 0, exact=True)
    evenly = plan_of(view, ClipSpec(frames=1), sampling, PREDICT, 0)
    assert exact.clip(0).first_frame == 0
    assert evenly.clip(0).first_frame > 0
    document = {"name": "x", "output": "file:///o", "clip": {"frames": 1}, "sampling": {"every_s": 1.0}, "extract": {}}
    phases = Phases(JobSpec.model_validate(document), Catalog([row("a/1", 100)]))
    assert [phases.plan(0).clip(index).first_frame for index in range(phases.plans[0].clips)] == [0, 25, 50, 75]


def test_more_clips_than_a_job_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of({"a": [100, 100]})
    assert len(Regular(view, ClipSpec(frames=1), every_frames=1)) == 200
    monkeypatch.setattr(even, "MOST_CLIPS", 199)
    with refused("sampling.every_frames", "range"):
        Regular(view, ClipSpec(frames=1), every_frames=1)
