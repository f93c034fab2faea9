"""The phases of jobs whose clips go to loops of the user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from essp_common.catalog.catalog import Catalog
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import TEST, TRAIN, VALIDATION
from essp_engine.planning.phases import Phases
from tests.harness.plans import row
from tests.harness.refused import refused


def catalog(*splits: str) -> Catalog:
    """Eight videos of two classes in each split."""
    return Catalog(tuple(replace(row(f"c{n % 2}/{s}{n}"), split=s) for s in splits for n in range(8)))


def phases(found: Catalog, data: dict[str, Any], **sampling: Any) -> Phases:
    document = {"name": "loop", "output": "file:///out", "consumers": {"mine": {"stream": "rgb"}}, "epochs": 3}
    return Phases(JobSpec.model_validate(document | {"data": data, "sampling": sampling}), found)


def test_a_split_comes_epoch_after_epoch() -> None:
    found = phases(catalog("train", "validation"), {})
    assert found.order == ((TRAIN, 0), (TRAIN, 1), (TRAIN, 2))
    assert [plan.clips for plan in found.plans] == [8, 8, 8]
    assert found.plan(0).clip(0) != found.plan(1).clip(0)


def test_evaluation_has_each_video_in_each_epoch() -> None:
    for split, purpose in (("validation", VALIDATION), ("test", TEST)):
        found = phases(catalog("train", "validation", "test"), {"consumed": split}, clips_per_video=2)
        assert found.order == ((purpose, 0), (purpose, 1), (purpose, 2))
        assert [plan.clips for plan in found.plans] == [16, 16, 16]
        assert [found.plan(0).clip(i) for i in range(16)] == [found.plan(2).clip(i) for i in range(16)]


def test_what_is_set_aside_for_validation_is_not_trained_on() -> None:
    whole = catalog("train")
    drawn = {name: set(phases(whole, {"consumed": name}).view(0).rows) for name in ("train", "validation")}
    assert drawn["train"] | drawn["validation"] == set(whole.rows)
    assert not drawn["train"] & drawn["validation"]
    assert drawn["validation"]
    assert set(phases(whole, {"validation": "train"}).view(0).rows) == set(whole.rows)
    assert set(phases(whole, {"validation": None}).view(0).rows) == drawn["train"]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_that_a_loop_takes_needs_no_other(split: str) -> None:
    """A catalog for testing alone has nothing to set aside from."""
    names = (split, "validation") if split == "train" else (split,)
    found = phases(catalog(*names), {"consumed": split}, clips_per_video=2)
    assert {row.split for row in found.view(0).rows} == {split}


def test_a_split_that_is_not_there_is_named() -> None:
    with refused("data.consumed", "unknown"):
        phases(catalog("train"), {"consumed": "test"})
    with refused("data.train", "unknown"):
        phases(catalog("train"), {"train": "trian"})


def test_the_digest_tells_plans_apart_and_not_ranks() -> None:
    found = catalog("train", "validation")
    digests = [phases(found, {}, rank=rank, ranks=ranks).digest for rank, ranks in ((0, 1), (0, 2), (1, 2))]
    assert len(set(digests)) == 1
    assert phases(found, {}, seed=1).digest != digests[0]


ROWS = tuple(row(f"c{n % 2}/{n:04}") for n in range(1000))
"""Many, so that not every clip goes into the digest."""


@pytest.mark.parametrize(
    "change", [{"etag": "f"}, {"size_bytes": 2}, {"frame_count": 99}, {"last_frame": 98}, {"id": "c1/0077b"}]
)
def test_a_prediction_is_another_where_a_video_was_replaced(change: dict[str, Any]) -> None:
    mended = (*ROWS[:77], replace(ROWS[77], **change), *ROWS[78:])
    spec = JobSpec.model_validate({"name": "p", "output": "file:///out", "predictor": {"model": "file:///m"}})
    before, again, after = (Phases(spec, Catalog(rows)).digest for rows in (ROWS, ROWS, mended))
    assert before == again
    assert before != after


def test_a_training_is_the_same_where_a_video_was_mended() -> None:
    mended = [replace(found, etag="f", size_bytes=2) for found in ROWS]
    assert (
        phases(Catalog(mended), {"validation": "train"}).digest == phases(Catalog(ROWS), {"validation": "train"}).digest
    )
