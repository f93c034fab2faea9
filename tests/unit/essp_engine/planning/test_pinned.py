"""Splits, plans and digests of one catalog, as they have been from the beginning.

Whoever changes one of these numbers changes the result of every job that was run before, and no trainer could resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from essp_common.catalog.splits import carve, splits_of
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import PlannedClip
from tests.harness.pinned import CATALOG, POOLED, digest, job

SAMPLINGS: dict[str, dict[str, Any]] = {
    "class_balanced": {"kind": "class_balanced"},
    "locality": {"kind": "class_balanced", "locality": 48},
    "pooled": POOLED,
    "one clip a visit": {"kind": "pooled", "clips_per_visit": 1, "window": 64},
    "exhaustive": {"kind": "exhaustive", "clips_per_visit": 4, "window": 64, "step": 7},
    "uniform": {"kind": "uniform", "clips_per_video": 3},
}
PLANS = {
    "class_balanced": "9c3006d1a5ffc21d",
    "locality": "a3484db63cd0a74e",
    "pooled": "88bd6f13e70f294a",
    "one clip a visit": "b8ef5a15803a97e5",
    "exhaustive": "454746ad821980e1",
    "uniform": "47492c4d4bb97b79",
}
DIGESTS = {
    "class_balanced": 2785990427,
    "locality": 2785990427,
    "pooled": 1794617428,
    "one clip a visit": 2785990427,
    "exhaustive": 1345405274,
    "uniform": 3518157428,
}
CARVED = {0.1: "0b07022bc2104164", 0.4: "b784def96dac9211"}
VIEWS = "dbcfbb7fb6b68503"


def clips(phases: Phases) -> Iterator[object]:
    """Every clip of every phase, alone and as issued, and some replacements."""
    for number in range(len(phases.order)):
        plan, view = phases.plan(number), phases.view(number)
        alone = [plan.clip(index) for index in range(len(plan))]
        yield [(*_plain(clip), view.rows[clip.video].id) for clip in alone]
        yield [[_plain(clip) for clip in unit] for unit in plan.units(5, len(plan))]
        for index in range(0, len(plan), 17):
            for attempt in (1, 3):
                try:
                    yield _plain(plan.clip(index, attempt))
                except LookupError as error:
                    yield str(error)


def _plain(clip: PlannedClip) -> tuple[int, ...]:
    *plain, later, _ = clip
    return tuple(int(value) for value in (*plain, *later))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_plans_are_what_they_were(name: str) -> None:
    assert digest(clips(Phases(job(SAMPLINGS[name]), CATALOG))) == PLANS[name]


def test_digests_of_plans_are_what_they_were() -> None:
    found = {name: Phases(job(sampling), CATALOG).digest for name, sampling in SAMPLINGS.items()}
    assert found == DIGESTS


@pytest.mark.parametrize("fraction", CARVED)
def test_the_same_videos_are_set_aside(fraction: float) -> None:
    assert digest(sorted(carve(CATALOG.view("train").rows, fraction))) == CARVED[fraction]


def test_views_are_what_they_were() -> None:
    splits = splits_of(CATALOG, job({}).data)
    assert splits.carved
    assert splits.test is not None
    parts: list[object] = []
    for view in (splits.train, splits.validation, splits.test, CATALOG.view(None)):
        parts += [view.classes, [row.id for row in view.rows], view.class_id.tolist()]
        parts += [[videos.tolist() for videos in view.by_class], view.first_frame.tolist(), view.length.tolist()]
    assert digest(parts) == VIEWS
