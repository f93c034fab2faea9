"""A predict job has the inputs of its model, or is refused in words that name the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import FusedModel, open_model, write_model
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores, open_store
from essp_engine.preflight.model_inputs import model_of, with_inputs
from tests.harness.model_manifest import manifest_at
from tests.harness.refused import Refusal, refusals

STORES = Stores(("file:///",))
CLIP = {"frames": 6, "stride": 2, "resize": {"mode": "short_side", "height": 64}}
STREAMS: dict[str, dict[str, Any]] = {
    "rgb": {"feature": "rgb", "params": {"frames": 2}},
    "flow": {"feature": "flow", "params": {"length": 5, "bound": 5.0}},
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model of two streams that decide, and one whose weight is zero."""
    streams = {name: StreamSpec.model_validate(stream) for name, stream in STREAMS.items()}
    streams["unused"] = StreamSpec(feature="frame_diff")
    weights = {"rgb": 0.5, "flow": 0.5, "unused": 0.0}
    return manifest_at(f"file://{tmp_path}/trained", ClipSpec.model_validate(CLIP), streams, weights)


def job(model: str, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "ask", "output": "file:///out", "predictor": {"model": model}} | fields)


def with_inputs_of_model(spec: JobSpec) -> JobSpec:
    return with_inputs(spec, model_of(spec, STORES))


def refusals_of(spec: JobSpec) -> list[Refusal]:
    with pytest.raises(ConfigError) as error:
        with_inputs_of_model(spec)
    return refusals(error.value)


def test_what_is_left_out_is_taken_from_the_model(model: str) -> None:
    found = with_inputs_of_model(job(model))
    assert found.clip == ClipSpec.model_validate(CLIP)
    assert {name: stream.model_dump() for name, stream in found.streams.items()} == {
        name: StreamSpec.model_validate(stream).model_dump() for name, stream in STREAMS.items()
    }
    assert with_inputs_of_model(found) == found


def test_what_equals_the_model_is_taken_as_it_stands(model: str) -> None:
    stored = {name: stream | {"codec": {"name": "zstd"}} for name, stream in STREAMS.items()}
    given = job(model, clip=CLIP | {"codec": {"name": "jpeg"}}, streams=stored)
    assert with_inputs_of_model(given) == given


@pytest.mark.parametrize(
    ("fields", "differing"),
    [
        ({"clip": {**CLIP, "frames": 11}}, ["clip.frames"]),
        ({"clip": {**CLIP, "frames": 11, "stride": 1}}, ["clip.frames", "clip.stride"]),
        ({"clip": {"frames": 6, "stride": 2}}, ["clip.resize.height", "clip.resize.mode"]),
        ({"clip": {**CLIP, "resize": {"mode": "crop", "height": 64}}}, ["clip.resize.mode"]),
        (
            {"streams": {**STREAMS, "flow": {"feature": "frame_diff", "params": STREAMS["flow"]["params"]}}},
            ["streams.flow.feature"],
        ),
        (
            {"streams": {**STREAMS, "flow": {"feature": "flow", "params": {"length": 5, "bound": 20.0}}}},
            ["streams.flow.params.bound"],
        ),
        (
            {"streams": {**STREAMS, "flow": {"feature": "flow", "params": {"length": 5}}}},
            ["streams.flow.params.bound"],
        ),
    ],
)
def test_all_inputs_that_differ_are_refused(model: str, fields: dict[str, Any], differing: list[str]) -> None:
    assert refusals_of(job(model, **fields)) == [(field, "conflict") for field in differing]


@pytest.mark.parametrize(
    ("streams", "refusal"),
    [
        ({"rgb": STREAMS["rgb"]}, ("streams", "missing")),
        ({**STREAMS, "more": {"feature": "rgb"}}, ("streams.more", "unknown")),
        ({**STREAMS, "unused": {"feature": "frame_diff"}}, ("streams.unused", "unknown")),
    ],
)
def test_a_job_has_the_streams_of_its_model_and_no_others(
    model: str, streams: dict[str, Any], refusal: Refusal
) -> None:
    assert refusals_of(job(model, streams=streams)) == [refusal]


def test_a_record_is_no_clip_of_several_frames(model: str) -> None:
    assert refusals_of(job(model, data={"records": "file:///records"})) == [("predictor.model", "conflict")]


@pytest.mark.parametrize(
    ("changes", "weight", "field"),
    [
        ({}, "contrast", None),
        ({}, "actionness", "predictor.highlight.weight"),
        ({"background": "b"}, "actionness", None),
        ({"rule": None, "format": 2, "strategy": "attention", "state": {"file": "s", "sha256": ""}}, "contrast",
         "predictor.highlight"),
    ],
)  # fmt: skip
def test_a_highlight_fits_the_model(model: str, changes: dict[str, Any], weight: str, field: str | None) -> None:
    _, trained = open_model(STORES, model)
    write_model(open_store(model), FusedModel.model_validate(trained.model_dump() | changes))
    asked = job(model, predictor={"model": model, "highlight": {"weight": weight}})
    if field is None:
        assert with_inputs_of_model(asked).predictor == asked.predictor
    else:
        assert refusals_of(asked) == [(field, "conflict")]


def test_a_background_is_one_of_several_classes(model: str) -> None:
    _, trained = open_model(STORES, model)
    document = trained.model_dump()
    del document["background"]  # as models were before there was one
    assert FusedModel.model_validate(document).background is None
    with pytest.raises(ValidationError, match="background: 'c' is not one of several classes"):
        FusedModel.model_validate(document | {"background": "c"})


def test_a_model_that_is_not_there_or_none_is_said_in_a_line(model: str) -> None:
    assert refusals_of(job("file:///nowhere")) == [("predictor.model", "not_found")]
    for content in (b'{"format": 1, "members": 3}', b'{"format": 1\n'):
        open_store(model).put(layout.MODEL_MANIFEST, content)
        with pytest.raises(ConfigError) as caught:
            with_inputs_of_model(job(model))
        assert refusals(caught.value) == [("predictor.model", "unreadable")]
        assert "\n" not in str(caught.value)
        assert "b'" not in str(caught.value)
        assert "pydantic" not in str(caught.value)


def test_a_training_job_is_left_as_it_is() -> None:
    spec = JobSpec.model_validate({"name": "train", "output": "file:///out", "trainers": {"rgb": {"stream": "rgb"}}})
    assert with_inputs_of_model(spec) is spec
