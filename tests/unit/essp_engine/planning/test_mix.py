"""Plans that mix sources by share: `sampling.mix`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import MixSpec, SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan
from essp_engine.planning.pooled import Pooled
from tests.harness.plans import chi_square, row
from tests.harness.refused import refused

MIX = MixSpec(column="dataset", shares={"web": 1, "robots": 3})
CLASSES = {"robots": {"push": 9, "pull": 2}, "web": {"push": 5, "sing": 40, "dance": 1}}


def view(classes: dict[str, dict[str, int]] = CLASSES) -> CatalogView:
    """Videos of these sources: class -> how many."""
    rows = [
        replace(row(f"{source}/{name}/{n}"), class_name=name, extra=f'{{"dataset": "{source}"}}')
        for source, names in classes.items()
        for name, videos in names.items()
        for n in range(videos)
    ]
    return Catalog(rows).view("train")


def cells(plan: Plan, videos: CatalogView) -> Counter[str]:
    ids = (videos.rows.text("id", plan.clip(index).video) for index in range(len(plan)))
    return Counter(name.rpartition("/")[0] for name in ids)


def test_sources_are_drawn_by_share_and_their_classes_evenly() -> None:
    videos = view()
    plan = ClassBalanced(videos, ClipSpec(), 20_000, 7, TRAIN, 0, mix=MIX)
    found = cells(plan, videos)
    assert abs(sum(found[name] for name in found if name.startswith("robots")) - 15_000) < 4 * (20_000 * 3 / 16) ** 0.5
    for source, classes in CLASSES.items():
        names = [f"{source}/{name}" for name in classes]
        assert (
            chi_square(Counter({name: found[name] for name in names}), names, sum(found[name] for name in names)) < 13.8
        ), "p = 0.001 with 2 degrees"


@given(st.integers(0, 2**63 - 1), st.integers(0, 5), st.integers(1, 3))
def test_a_clip_is_the_same_alone_and_among_others(seed: int, epoch: int, attempt: int) -> None:
    videos = view()
    for clips_per_visit in (0, 4):

        def made(per_visit: int = clips_per_visit) -> Plan:
            if per_visit:
                return Pooled(videos, ClipSpec(), 60, seed, TRAIN, epoch, per_visit, 16, MIX)
            return ClassBalanced(videos, ClipSpec(), 60, seed, TRAIN, epoch, mix=MIX)

        alone = made()
        assert sorted(chain.from_iterable(made().units(0, 60))) == [alone.clip(index) for index in range(60)]
        first = alone.clip(7)
        try:
            other = alone.clip(7, attempt)
        except LookupError:
            continue
        (one, two), name = (videos.rows.text("id", clip.video) for clip in (first, other)), "/"
        assert (one.rpartition(name)[0], one != two) == (two.rpartition(name)[0], True)


def test_a_replacement_is_of_the_same_class_and_source() -> None:
    videos = view({"robots": {"push": 1}, "web": {"push": 50}})
    plan = ClassBalanced(videos, ClipSpec(), 20, 0, TRAIN, 0, mix=MIX)
    index = next(i for i in range(20) if videos.rows.text("id", plan.clip(i).video).startswith("robots"))
    with pytest.raises(LookupError, match="class 'push' of 'robots' has no other video"):
        plan.clip(index, 1)


def test_only_training_mixes() -> None:
    videos = view()
    mixed, plain = SamplingSpec(mix=MIX, clips_per_epoch=50), SamplingSpec(clips_per_epoch=50)
    clips = [
        [plan_of(videos, ClipSpec(), sampling, purpose, 0).clip(index) for index in range(50)]
        for purpose in (VALIDATION, TRAIN)
        for sampling in (mixed, plain)
    ]
    assert (clips[0] == clips[1], clips[2] == clips[3]) == (True, False)


@pytest.mark.parametrize(
    ("mix", "field", "code"),
    [
        ({"column": "dataset", "shares": {"web": 1, "films": 1}}, "sampling.mix.shares", "missing"),
        ({"column": "dataset", "shares": {"web": 1, "robots": 1, "films": 1}}, "sampling.mix.shares", "unknown"),
        ({"column": "set", "shares": {"web": 1, "robots": 1}}, "sampling.mix.column", "unknown"),
    ],
)
def test_a_mix_that_does_not_fit_the_videos_is_refused(mix: dict[str, object], field: str, code: str) -> None:
    with refused(field, code):
        ClassBalanced(view(), ClipSpec(), 10, 0, TRAIN, 0, mix=MixSpec.model_validate(mix))
