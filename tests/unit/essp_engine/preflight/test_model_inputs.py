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
from essp_engine.preflight.model_inputs import with_inputs_of_model
from tests.harness.model_manifest import manifest_at

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


def test_what_is_left_out_is_taken_from_the_model(model: str) -> None:
    found = with_inputs_of_model(job(model), STORES)
    assert found.clip == ClipSpec.model_validate(CLIP)
    assert {name: stream.model_dump() for name, stream in found.streams.items()} == {
        name: StreamSpec.model_validate(stream).model_dump() for name, stream in STREAMS.items()
    }
    assert with_inputs_of_model(found, STORES) == found


def test_what_equals_the_model_is_taken_as_it_stands(model: str) -> None:
    stored = {name: stream | {"codec": {"name": "zstd"}} for name, stream in STREAMS.items()}
    given = job(model, clip=CLIP | {"codec": {"name": "jpeg"}}, streams=stored)
    assert with_inputs_of_model(given, STORES) == given


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clip": {**CLIP, "frames": 11}}, r"^clip\.frames: 11, .* trained with 6"),
        ({"clip": {**CLIP, "stride": 1}}, r"^clip\.stride: 1, .* trained with 2"),
        ({"clip": {"frames": 6, "stride": 2}}, r"^clip\.resize\.height: 256, .* trained with 64"),
        ({"clip": {**CLIP, "resize": {"mode": "crop", "height": 64}}}, r"^clip\.resize\.mode: 'crop', .*'short_side'"),
        ({"streams": {"rgb": STREAMS["rgb"]}}, "^streams: the model needs flow; leave .* out"),
        ({"streams": {**STREAMS, "more": {"feature": "rgb"}}}, r"^streams\.more: the model has no such stream"),
        ({"streams": {**STREAMS, "unused": {"feature": "frame_diff"}}}, r"^streams\.unused: the model has no"),
        (
            {"streams": {**STREAMS, "flow": {"feature": "frame_diff"}}},
            r"^streams\.flow\.feature: 'frame_diff', .*'flow'",
        ),
        (
            {"streams": {**STREAMS, "flow": {"feature": "flow", "params": {"length": 5, "bound": 20.0}}}},
            r"^streams\.flow\.params\.bound: 20\.0, .* trained with 5\.0",
        ),
        (
            {"streams": {**STREAMS, "flow": {"feature": "flow", "params": {"length": 5}}}},
            r"^streams\.flow\.params\.bound: not given, .* trained with 5\.0",
        ),
    ],
)
def test_other_inputs_are_refused_by_field(model: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_inputs_of_model(job(model, **fields), STORES)


@pytest.mark.parametrize(
    ("changes", "weight", "said"),
    [
        ({}, "contrast", None),
        ({}, "actionness", r"^predictor\.highlight\.weight: actionness needs a model .* use contrast"),
        ({"background": "b"}, "actionness", None),
        ({"rule": None, "format": 2, "strategy": "attention", "state": {"file": "s", "sha256": ""}}, "contrast",
         r"^predictor\.highlight: the model was fused by attention, which itself weighs clips"),
    ],
)  # fmt: skip
def test_a_highlight_fits_the_model(model: str, changes: dict[str, Any], weight: str, said: str | None) -> None:
    _, trained = open_model(STORES, model)
    write_model(open_store(model), FusedModel.model_validate(trained.model_dump() | changes))
    asked = job(model, predictor={"model": model, "highlight": {"weight": weight}})
    if said is None:
        assert with_inputs_of_model(asked, STORES).predictor == asked.predictor
        return
    with pytest.raises(ConfigError, match=said):
        with_inputs_of_model(asked, STORES)


def test_a_background_is_one_of_several_classes(model: str) -> None:
    _, trained = open_model(STORES, model)
    document = trained.model_dump()
    del document["background"]  # as models were before there was one
    assert FusedModel.model_validate(document).background is None
    with pytest.raises(ValidationError, match="background: 'c' is not one of several classes"):
        FusedModel.model_validate(document | {"background": "c"})


def test_a_model_that_is_not_there_or_none_is_said_in_a_line(model: str) -> None:
    with pytest.raises(ConfigError, match=r"^predictor\.model: there is no model at file:///nowhere"):
        with_inputs_of_model(job("file:///nowhere"), STORES)
    for content in (b'{"format": 1, "members": 3}', b'{"format": 1\n'):
        open_store(model).put(layout.MODEL_MANIFEST, content)
        with pytest.raises(ConfigError, match=r"^predictor\.model: .*manifest.json is not a fused model") as caught:
            with_inputs_of_model(job(model), STORES)
        assert "\n" not in str(caught.value)
        assert "b'" not in str(caught.value)
        assert "pydantic" not in str(caught.value)


def test_a_training_job_is_left_as_it_is() -> None:
    spec = JobSpec.model_validate({"name": "train", "output": "file:///out", "trainers": {"rgb": {"stream": "rgb"}}})
    assert with_inputs_of_model(spec, STORES) is spec
