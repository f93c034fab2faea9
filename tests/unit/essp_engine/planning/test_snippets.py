"""Clips in snippets: one in each equal part of a video, in every plan; random plans draw each for itself."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.pb.v1.messages_pb2 import TEST, TRAIN, Purpose
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.decode_cost import decode_cost
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import PlannedClip, even_snippets, places_in_part
from essp_engine.planning.work_units import units_of
from tests.harness.plans import chi_square, row, view_of
from tests.harness.refused import refused

KINDS: dict[str, dict[str, Any]] = {
    "class_balanced": {},
    "local": {"locality": 32},
    "pooled": {"kind": "pooled", "clips_per_visit": 4, "window": 32},
    "exhaustive": {"kind": "exhaustive", "step": 3, "clips_per_visit": 4, "window": 32},
    "uniform": {"kind": "uniform"},
}


def begins(clip: PlannedClip) -> list[int]:
    return [clip.first_frame, *clip.later]


@given(
    kind=st.sampled_from(sorted(KINDS)),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    snippets=st.integers(2, 5),
    frames=st.integers(1, 4),
    stride=st.integers(1, 3),
    purpose=st.sampled_from([TRAIN, TEST]),
    seed=st.integers(0, 2**31),
)
def test_each_snippet_lies_in_its_part_of_the_video(
    kind: str, lengths: list[int], snippets: int, frames: int, stride: int, purpose: Purpose, seed: int
) -> None:
    """The parts follow the paper's code: of S places where a snippet can start, part k begins at the k S / K-th."""
    view = view_of({"a": lengths, "b": [40]})
    clip = ClipSpec(frames=frames * snippets, snippets=snippets, stride=stride)
    sampling = SamplingSpec.model_validate({"clips_per_epoch": 40, "seed": seed, **KINDS[kind]})
    plan = plan_of(view, clip, sampling, purpose, 0)
    alone = [plan.clip(index) for index in range(len(plan))]
    issued = chain.from_iterable(plan.units(0, len(plan)))
    assert sorted(issued) == alone, "one by one, or many at once"
    for planned in alone:
        length = view.rows[planned.video].frame_count
        places = max(1, length - ((frames - 1) * stride + 1) + 1)
        width = max(1, places // snippets)
        assert planned.frame_count == frames * snippets
        assert len(begins(planned)) == snippets
        for number, begin in enumerate(begins(planned)):
            assert 0 <= begin - number * places // snippets < width
            assert begin < length


def test_snippets_are_drawn_evenly_and_independently() -> None:
    view = view_of({"a": [32]})
    plan = ClassBalanced(view, ClipSpec(frames=6, snippets=3), 20_000, seed=1, purpose=TRAIN, epoch=0)
    clips = [plan.clip(index) for index in range(len(plan))]
    # 31 places, so three parts of 10; chi-square with 999 degrees of freedom stays below 1143.9 (p = 0.001).
    found = Counter((a, b - 10, c - 20) for a, b, c in map(begins, clips))
    cells = [(a, b, c) for a in range(10) for b in range(10) for c in range(10)]
    assert chi_square(found, cells, len(plan)) < 1143.9


def test_a_replacement_has_snippets_of_its_own_video() -> None:
    view = view_of({"a": [20, 200]})
    plan = ClassBalanced(view, ClipSpec(frames=3, snippets=3), 50, seed=3, purpose=TRAIN, epoch=0)
    for index in range(len(plan)):
        for clip in (plan.clip(index), plan.clip(index, attempt=1)):
            assert begins(clip)[2] >= 2 * view.rows[clip.video].frame_count // 3


def test_without_snippets_nothing_is_drawn_anew() -> None:
    view = view_of({"a": [50, 60], "b": [70]})
    one = ClassBalanced(view, ClipSpec(frames=6), 100, 5, TRAIN, 0)
    three = ClassBalanced(view, ClipSpec(frames=6, snippets=3), 100, 5, TRAIN, 0)
    assert [(c.class_id, c.video) for c in map(one.clip, range(100))] == [
        (c.class_id, c.video) for c in map(three.clip, range(100))
    ]
    assert not any(one.clip(index).later for index in range(100))


def test_frames_are_divided_evenly_or_refused() -> None:
    assert ClipSpec(frames=33, snippets=3, stride=2).span == 21
    with refused("frames", "conflict"):
        ClipSpec(frames=10, snippets=3)


def test_the_snippets_of_a_given_start_lie_evenly() -> None:
    video, clip = row("a/0", 100, first=10), ClipSpec(frames=3, snippets=3)
    assert even_snippets(video, clip, 17) == [17 + 33, 17 + 66]
    assert even_snippets(video, ClipSpec(frames=3), 107) == []
    with pytest.raises(ConfigError, match="start=33: of 3 snippets of a/0, the first begins at frames 0 to 32"):
        even_snippets(video, clip, 10 + 33)


def test_what_a_plan_decodes_is_counted_by_snippet() -> None:
    """Without keyframes each clip is decoded from the start of its file to the end of its last snippet."""
    view = view_of({"a": [90]})
    plan = ClassBalanced(view, ClipSpec(frames=6, snippets=3), 20, 0, TRAIN, 0, locality=10)
    last = [plan.clip(index).later[-1] + 2 for index in range(20)]
    cost = decode_cost(plan, view, 10, 32)
    assert (cost.clips, cost.passes) == (20, 2)
    assert (cost.frames_alone, cost.frames) == (sum(last), max(last[:10]) + max(last[10:]))
    assert len(list(units_of([plan.clip(index) for index in range(10)], 4, together=True))) == 3


@given(
    kind=st.sampled_from(sorted(KINDS)),
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=4),
    part=st.tuples(st.integers(0, 7), st.integers(1, 8)).filter(lambda part: part[0] < part[1]),
    snippets=st.integers(1, 3),
    frames=st.integers(1, 4),
    purpose=st.sampled_from([TRAIN, TEST]),
)
def test_clips_are_from_their_part_of_the_video(
    kind: str, lengths: list[int], part: tuple[int, int], snippets: int, frames: int, purpose: Purpose
) -> None:
    view = view_of({"a": lengths})
    clip = ClipSpec(frames=frames * snippets, snippets=snippets, part=(part[0] / 8, part[1] / 8))
    sampling = SamplingSpec.model_validate({"clips_per_epoch": 40, **KINDS[kind]})
    plan = plan_of(view, clip, sampling, purpose, 0)
    for index in range(len(plan)):
        planned = plan.clip(index)
        length = view.rows[planned.video].frame_count
        low, high = length * part[0] // 8, -(-length * part[1] // 8)
        for begin in begins(planned):
            if high - low >= frames:
                assert low <= begin <= high - frames
            else:
                assert 0 <= begin <= max(0, length - frames)
                assert abs((begin + frames / 2) - (low + high) / 2) <= 1 or begin in (0, max(0, length - frames))


def test_the_whole_video_is_the_part_of_all() -> None:
    view, whole = view_of({"a": [50, 7], "b": [70]}), ClipSpec(frames=6)
    offsets, places = places_in_part(view.length.astype(np.int64), whole)
    assert offsets.tolist() == [0, 0, 0]
    assert places.tolist() == view.starts(whole.span).tolist()
    with refused("part", "range"):
        ClipSpec(part=(0.5, 0.5))
