"""The shares of ranks: together the plan, clip by clip, and whole visits of a pooled one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.even import Uniform
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan
from essp_engine.planning.pooled import Pooled
from essp_engine.planning.share import Share
from tests.harness.plans import view_of

CLIP = ClipSpec(frames=4)
VIEW = view_of({"a": [30] * 5, "b": [40, 50], "c": [3]})
MANY = view_of({f"c{n}": [400] * 200 for n in range(5)})

plans = st.sampled_from(
    [
        lambda size: ClassBalanced(VIEW, CLIP, size, 7, TRAIN, 0),
        lambda size: ClassBalanced(VIEW, CLIP, size, 7, TRAIN, 0, locality=8),
        lambda size: Pooled(VIEW, CLIP, size, 7, TRAIN, 0, 3, 12),
    ]
)


@given(plans, st.integers(1, 60), st.integers(1, 5))
def test_shares_are_the_plan_dealt_out(make: Callable[[int], Plan], size: int, ranks: int) -> None:
    plan = make(size + ranks)
    shares = [Share(plan, rank, ranks, equal=False) for rank in range(ranks)]
    assert sum(map(len, shares)) == len(plan)
    for index in range(len(plan)):
        own = shares[index % ranks].clip(index // ranks)
        assert own == plan.clip(index)._replace(index=index // ranks)


@given(plans, st.integers(1, 60), st.integers(1, 5))
def test_equal_shares_leave_out_less_than_one_clip_a_rank(make: Callable[[int], Plan], size: int, ranks: int) -> None:
    plan = make(size + ranks)
    sizes = {len(Share(plan, rank, ranks, equal=True)) for rank in range(ranks)}
    assert sizes == {len(plan) // ranks}


@given(plans, st.integers(1, 60), st.integers(1, 5), st.data())
def test_units_hold_each_clip_of_the_share_once(
    make: Callable[[int], Plan], size: int, ranks: int, data: st.DataObject
) -> None:
    plan = make(size + ranks)
    share = Share(plan, data.draw(st.integers(0, ranks - 1)), ranks, equal=True)
    start = data.draw(st.integers(0, len(share)))
    stop = data.draw(st.integers(start, len(share)))
    units = share.units(start, stop)
    assert all(len({clip.video for clip in unit}) == 1 for unit in units)
    assert sorted(clip for unit in units for clip in unit) == [share.clip(index) for index in range(start, stop)]


@given(st.sampled_from([2, 4, 8]), st.integers(2, 8), st.integers(0, 2**63 - 1))
def test_2_4_or_8_ranks_have_whole_visits(ranks: int, per_visit: int, seed: int) -> None:
    """Each rank has as many clips of a video as its visits of it give."""
    visits = 32
    plan = Pooled(MANY, CLIP, visits * per_visit, seed, TRAIN, 0, per_visit, visits * per_visit)
    for rank in range(ranks):
        share = Share(plan, rank, ranks, equal=True)
        counts = Counter(share.clip(index).video for index in range(len(share)))
        assert all(count % per_visit == 0 for count in counts.values())


def test_what_is_outside_is_refused() -> None:
    share = Share(ClassBalanced(VIEW, CLIP, 7, 0, TRAIN, 0), 2, 3, equal=False)
    assert len(share) == 2
    with pytest.raises(IndexError, match=r"0\.\.1, not 2"):
        share.clip(2)
    with pytest.raises(IndexError):
        share.clip(-1)
    assert share.units(2, 2) == []


def test_more_ranks_than_clips_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 clips are too few for 3 ranks"):
        Share(ClassBalanced(VIEW, CLIP, 2, 0, TRAIN, 0), 0, 3, equal=True)


def test_a_job_of_one_rank_has_its_share() -> None:
    """Of training all ranks have as many clips; of an evaluation no clip is left out."""
    sampling = SamplingSpec(clips_per_epoch=8, clips_per_video=1, ranks=3, rank=1)
    trained = plan_of(VIEW, CLIP, sampling, TRAIN, 4)
    whole = ClassBalanced(VIEW, CLIP, 8, 0, TRAIN, 4)
    assert [trained.clip(index) for index in range(len(trained))] == [
        whole.clip(index)._replace(index=index // 3) for index in (1, 4)
    ]
    evaluated = plan_of(VIEW, CLIP, sampling, VALIDATION, 0)
    assert [evaluated.clip(index).video for index in range(len(evaluated))] == [1, 4, 7]
    assert len(Uniform(VIEW, CLIP, 1)) == 8
