"""A job that extracts: which fields it may have, and which belong to a network, a model or a feature alone."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.job.spec import JobSpec, stored_spec
from tests.harness.refused import refused

NETWORK = {"network": "resnet18", "weights": "file:///w.safetensors"}


def job(extract: dict[str, Any], **fields: Any) -> JobSpec:
    document = {"name": "x", "output": "file:///out", "data": {"catalog": "file:///c.parquet"}, "extract": extract}
    return JobSpec.model_validate({**document, **fields})


@pytest.mark.parametrize(
    "extract",
    [
        {},
        {"reduce": "none", "format": "npy"},
        {**NETWORK, "crop": 112, "evaluation_crops": 3, "pool": "mean", "dtype": "float16"},
        {"network": "timm:vit_small_patch16_224", "weights": "s3://bucket/vit.safetensors"},
        {"network": "efficientnet_lite0", "weights": "package:efficientnet_lite0"},
        {"model": "s3://bucket/run/model", "pool": "max"},
    ],
)
def test_a_job_stays_the_same_when_it_is_stored(extract: dict[str, Any]) -> None:
    spec = job(extract, sampling={"every_frames": 16})
    assert stored_spec(spec.model_dump_json(), "job") == spec
    assert spec.predicts
    assert spec.readers() == {"predictor.rgb": "rgb"}


@pytest.mark.parametrize(
    ("extract", "field", "code"),
    [
        ({**NETWORK, "model": "file:///m"}, "model", "conflict"),
        ({"network": "resnet18"}, "weights", "missing"),
        ({"network": "resnet18", "weights": "imagenet"}, "weights", "not_found"),
        ({"network": "resnet18", "weights": "package:efficientnet_lite0"}, "weights", "conflict"),
        ({"network": "resnet18", "weights": "package:other"}, "weights", "unknown"),
        ({"weights": "file:///w.safetensors"}, "weights", "conflict"),
        ({"crop": 112}, "crop", "conflict"),
        ({"model": "file:///m", "crop": 112}, "crop", "conflict"),
        ({"model": "file:///m", "evaluation_crops": 10}, "evaluation_crops", "conflict"),
        ({"evaluation_scale": 1.0}, "evaluation_scale", "conflict"),
        ({**NETWORK, "reduce": "none"}, "reduce", "conflict"),
        ({"model": "file:///m", "reduce": "none"}, "reduce", "conflict"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(extract: dict[str, Any], field: str, code: str) -> None:
    with refused(f"extract.{field}", code):
        job(extract)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("network", "not a name", "invalid"),
        ("weights", "s3://b/../w", "invalid"),
        ("crop", 0, "range"),
        ("crop", "large", "type"),
        ("evaluation_scale", 1.5, "range"),
        ("evaluation_crops", 2, "unknown"),
        ("reduce", "sum", "unknown"),
        ("pool", "sum", "unknown"),
        ("dtype", "float64", "unknown"),
        ("format", "csv", "unknown"),
        ("colour", 1, "unknown"),
    ],
)
def test_wrong_values_are_refused(field: str, value: Any, code: str) -> None:
    with refused(f"extract.{field}", code):
        job({field: value} if field in ("reduce", "pool", "dtype", "format", "colour") else {**NETWORK, field: value})


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"predictor": {"model": "file:///m"}}, "", "conflict"),
        ({"trainers": {"rgb": {"stream": "rgb"}}}, "", "conflict"),
        ({"consumers": {"mine": {"stream": "rgb"}}}, "", "conflict"),
        ({"data": {"catalog": "file:///c.parquet", "targets": "labels"}}, "data.targets", "conflict"),
        ({"sampling": {"every_s": 1, "every_frames": 16}}, "sampling.every_frames", "conflict"),
        ({"sampling": {"every_frames": 0}}, "sampling.every_frames", "range"),
        ({"sampling": {"background": "none"}}, "sampling.background", "conflict"),
        (
            {"clip": {"frames": 8, "spread": "video"}, "sampling": {"every_frames": 8}},
            "sampling.every_frames",
            "conflict",
        ),
        ({"data": {"records": "file:///r"}, "sampling": {"every_frames": 8}}, "sampling.every_frames", "conflict"),
    ],
)
def test_what_does_not_fit_the_rest_of_the_job_is_refused(fields: dict[str, Any], field: str, code: str) -> None:
    with refused(field, code):
        job({}, **fields)


def test_a_distance_in_frames_is_not_for_jobs_that_train() -> None:
    document = {"name": "x", "output": "file:///out", "trainers": {"rgb": {"stream": "rgb"}}}
    with refused("sampling.every_frames", "conflict"):
        JobSpec.model_validate({**document, "sampling": {"every_frames": 16}})
