"""What is legal, but hardly meant, is said in a sentence; what is sound is left alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import preflight
from tests.harness.fleet import make_job

STORES = Stores(("file:///",))


def told(tmp_path: Path, trainer: dict[str, Any] | None = None, **more: Any) -> tuple[str, ...]:
    trainers = {"rgb": {"stream": "rgb", "batch_size": 2, "augment": {"crop": 16}} | (trainer or {})}
    return preflight(make_job(tmp_path, **{"streams": {"rgb": {}}, "trainers": trainers} | more), STORES).warnings


def test_of_a_sound_job_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path) == ()


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"amp": True, "device": "cpu"}, "trainers.rgb.amp has no effect on a CPU"),
        ({"freeze_epochs": 1}, "trainers.rgb.freeze_epochs freezes random weights"),
        ({"probe": {}}, "trainers.rgb.probe freezes random weights"),
        ({"optimizer": {"kind": "adamw"}}, "trainers.rgb.optimizer.lr 0.01 is high for AdamW"),
        ({"optimizer": {"steps": [1, 30]}}, "trainers.rgb.optimizer.steps 30 is never reached: the job has 2 epochs"),
        (
            {"optimizer": {"schedule": "cosine", "steps": [1]}},
            "trainers.rgb.optimizer.steps has no effect",
        ),
        (
            {"optimizer": {"unit": "updates", "steps": [9, 10]}},
            "trainers.rgb.optimizer.steps 10 is never reached: the job has 10 updates",
        ),
        ({"optimizer": {"warmup": 2}}, "trainers.rgb.optimizer.warmup takes all of the 2 epochs"),
        ({"optimizer": {"gamma": 0.5}}, "trainers.rgb.optimizer.gamma has no effect without optimizer.steps"),
        (
            {"batch_size": 1, "partial_bn": True, "augment": {"crop": 16, "cutmix": 1}},
            "trainers.rgb.augment.cutmix has no effect: a batch of one clip",
        ),
    ],
)
def test_what_has_no_effect_is_named_by_its_field(tmp_path: Path, trainer: dict[str, Any], said: str) -> None:
    [warning] = told(tmp_path, trainer)
    assert warning.startswith(said)


def test_a_probe_of_one_clip_at_a_time_is_sound(tmp_path: Path) -> None:
    """Its normalisations divide by the statistics that they have."""
    [warning] = told(tmp_path, {"batch_size": 1, "probe": {}})
    assert "random weights" in warning


def test_one_class_is_nothing_to_learn(tmp_path: Path) -> None:
    store, key = STORES.resolve(make_job(tmp_path).data.catalog)
    rows = tuple(row for row in read_catalog(store, key).rows if row.class_name == "c0")
    write_catalog(store, "one.parquet", Catalog(rows))
    [warning] = told(tmp_path, data={"catalog": store.uri("one.parquet")})
    assert warning == "every training video is of one class, c0: every answer is right, so nothing is learned"


def test_one_video_of_a_class_is_little_to_learn_from_and_enough_to_validate_by(tmp_path: Path) -> None:
    store, key = STORES.resolve(make_job(tmp_path).data.catalog)
    rows = read_catalog(store, key).rows
    two = [[row for row in rows if (row.split, row.class_name) == ("train", name)][:2] for name in ("c0", "c1")]
    write_catalog(store, "few.parquet", Catalog(tuple(chain(*two))))  # one of each is set aside
    data = {"catalog": store.uri("few.parquet")}
    assert any("a single training video of" in warning for warning in told(tmp_path, data=data))
    loop = make_job(tmp_path, streams={"rgb": {}}, trainers={}, consumers={"mine": {"stream": "rgb", "batch_size": 2}})
    for split, said in (("train", True), ("validation", False)):
        job = loop.model_copy(update={"data": loop.data.model_copy(update={**data, "consumed": split})})
        assert any("a single" in warning for warning in preflight(job, STORES).warnings) == said


def test_splits_and_streams_that_nobody_uses(tmp_path: Path) -> None:
    catalog = make_job(tmp_path).data.catalog
    assert told(tmp_path, data={"catalog": catalog, "test": None}) == ()
    [warning] = told(tmp_path, data={"catalog": catalog, "validation": None})
    assert warning.startswith("data.validation is null: 15 % of the training videos are set aside")
    [warning] = told(tmp_path, streams={"rgb": {}, "diff": {"feature": "frame_diff", "params": {"length": 2}}})
    assert warning == "no trainer reads streams.diff, so it is not computed"


def test_a_window_that_lets_clips_of_a_visit_into_one_batch(tmp_path: Path) -> None:
    sampling = {"kind": "pooled", "clips_per_visit": 4, "window": 16, "clips_per_epoch": 16}
    assert told(tmp_path, sampling=sampling) == ()
    [warning] = told(tmp_path, {"batch_size": 8}, sampling=sampling)
    assert warning.startswith("trainers.rgb.batch_size = 8: batches may hold several clips of one video, which are 2")
    assert warning.endswith("raise sampling.window to 128")


def test_visits_that_are_much_shorter_than_a_group_of_pictures(tmp_path: Path) -> None:
    """Which has 30 frames."""
    sampling = {"kind": "exhaustive", "clips_per_visit": 2, "window": 8}
    [warning] = told(tmp_path, sampling=sampling)
    assert warning.startswith(
        "sampling.clips_per_visit = 2: 30 clips start in a group of pictures, so each is decoded 15"
    )
    assert "raise it towards 30" in warning
    assert told(tmp_path, sampling=sampling | {"step": 5}) == ()


def test_visits_that_end_within_a_group_of_pictures(tmp_path: Path) -> None:
    """With a keyframe in each 30 frames, and clips at every fifth."""

    def said(visit: int, step: int = 5, **more: Any) -> list[str]:
        sampling = {"kind": "exhaustive", "clips_per_visit": visit, "window": 2 * visit, "step": step}
        found = told(tmp_path, sampling=sampling, **more)
        return [warning for warning in found if warning.startswith("sampling.clips_per_visit")]

    [warning] = said(8)
    assert warning.startswith(
        "sampling.clips_per_visit = 8: 6 clips start in a group of pictures; with 6, visits begin"
    )
    assert not [visit for visit in (4, 6, 12) if said(visit)]
    assert not said(8, step=7), "no clip starts with the second group"
    store, key = STORES.resolve(make_job(tmp_path).data.catalog)
    rows = tuple(replace(row, first_frame=3) for row in read_catalog(store, key).rows)
    write_catalog(store, "segments.parquet", Catalog(rows))
    data = {"catalog": store.uri("segments.parquet")}
    assert not said(8, data=data), "segments that begin within a group of pictures"
