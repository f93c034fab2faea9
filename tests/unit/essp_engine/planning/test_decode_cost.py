"""What a plan saves: the frames that the reader would decode, counted from keyframes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Seed, Seek
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.decode_cost import DecodeCost, decode_cost
from essp_engine.planning.plan import seek_to
from essp_engine.planning.pooled import Pooled
from essp_engine.planning.work_units import units_of
from essp_engine.seeding.seeds import clip_seed
from essp_engine.video.reader import _runs
from tests.harness.plans import view_of

CLIP = ClipSpec(frames=4, stride=2)


def with_keyframes(every: int, videos: int = 40, frames: int = 200) -> CatalogView:
    places = tuple(range(0, frames, every))
    rows = [
        replace(row, seekable=True, frame_count=frames, keyframe_pts=places, keyframe_frame=places,
                keyframe_offset=(-1,) * len(places))
        for row in view_of({"a": [frames] * videos}).rows
    ]  # fmt: skip
    return Catalog(tuple(rows)).view(None)


@given(st.integers(1, 250), st.integers(1, 40), st.integers(0, 9))
def test_it_counts_what_the_reader_decodes(every: int, most: int, seed: int) -> None:
    """By the forward runs that the reader makes of the same work units."""
    view = with_keyframes(every)
    plan = Pooled(view, CLIP, 96, seed, TRAIN, 0, 4, 32)
    passes = frames = alone = 0
    for unit in plan.units(0, 96):
        for part in units_of(unit, most, together=True):
            seeds = []
            for clip in part:
                made, seek = Seed(first_frame=clip.first_frame, frame_count=4, stride=2, last_frame=199), Seek()
                if seek_to(view.rows[clip.video], clip.first_frame, seek):
                    made.seek.CopyFrom(seek)
                seeds.append(made)
            passes += 1
            frames += sum(_decoded(run) for run in _runs(seeds))
            alone += sum(_decoded(run) for made in seeds for run in _runs([made]))
    assert decode_cost(plan, view, 32, most) == DecodeCost(96, passes, alone, frames)


@settings(max_examples=10)
@given(
    st.integers(1, 250),
    st.integers(1, 40),
    st.sampled_from([{"fps": 30}, {"fps": 4}, {"every_s": 1}, {"spread": "video"}, {"snippets": 2, "seconds": 1}]),
)
def test_it_counts_what_is_decoded_of_frames_chosen_by_time(every: int, most: int, how: dict[str, Any]) -> None:
    """Also where the reader skips groups of pictures within a clip."""
    rows = [replace(row, fps=30.0) for row in with_keyframes(every, videos=3).rows]
    view, clip = Catalog(tuple(rows)).view(None), ClipSpec.model_validate({"frames": 4, **how})
    plan = Pooled(view, clip, 32, 1, TRAIN, 0, 4, 32)
    frames = alone = 0
    for unit in plan.units(0, 32):
        for part in units_of(unit, most, together=True):
            seeds = [clip_seed(rows[each.video], clip, each.first_frame, each.later) for each in part]
            frames += sum(_decoded(run) for run in _runs(seeds))
            alone += sum(_decoded(run) for made in seeds for run in _runs([made]))
    cost = decode_cost(plan, view, 32, most)
    assert (cost.frames_alone, cost.frames) == (alone, frames)


def _decoded(run: object) -> int:
    seek, wants = run.seek, run.wants  # type: ignore[attr-defined]
    return int(wants[-1].frame - (seek.frame_index if seek is not None else 0) + 1)


@pytest.mark.parametrize(("every", "least", "most"), [(1, 1.0, 1.2), (200, 4.0, 8.0)])
def test_visits_save_where_keyframes_are_far_apart(every: int, least: float, most: float) -> None:
    """Eight clips of a visit pass the same frames; where every frame is a keyframe, hardly any is passed twice."""
    view = with_keyframes(every, videos=2000)
    cost = decode_cost(Pooled(view, CLIP, 4096, 0, TRAIN, 0, 8, 512), view, 512, 32)
    assert least <= cost.times_less <= most
    assert 7.0 < cost.clips_per_pass <= 8.4
    single = decode_cost(ClassBalanced(view, CLIP, 4096, 0, TRAIN, 0), view, 0, 32)
    assert single.times_less < 1.01
    assert single.clips_per_pass < 1.01


def test_a_file_without_keyframes_is_read_from_its_start() -> None:
    view = view_of({"a": [100]})
    plan = Pooled(view, ClipSpec(frames=1), 8, 0, TRAIN, 0, 8, 8)
    starts = [plan.clip(index).first_frame for index in range(8)]
    cost = decode_cost(plan, view, 8, 32)
    assert (cost.frames_alone, cost.frames) == (sum(start + 1 for start in starts), max(starts) + 1)
