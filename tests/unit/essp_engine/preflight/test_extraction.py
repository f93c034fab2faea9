"""A job that extracts is refused, in words that name the field, if its network cannot read its streams."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from essp_common.artifacts.extraction import Extraction
from essp_common.catalog.catalog import Catalog
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.preflight.checks import check
from essp_engine.preflight.model_inputs import model_of, with_inputs
from essp_engine.preflight.resolve import resolve_on
from essp_engine.preflight.weights import scored_with
from tests.harness.catalog_rows import row
from tests.harness.model_manifest import manifest_at
from tests.harness.refused import refusals, refused

CATALOG = Catalog([row("a/1.mp4"), row("a/2.mp4")])
STORES = Stores(("file:///",))
SMALL = {"network": "small", "weights": "file:///w.safetensors", "crop": 32}
TRACKS = {"streams": {"t": {"feature": "trajectories"}}, "clip": {"frames": 16}}


def job(extract: dict[str, Any], **fields: Any) -> JobSpec:
    document: dict[str, Any] = {
        "name": "x",
        "output": "file:///out",
        "data": {"catalog": "file:///c.parquet"},
        "clip": {"frames": 4, "resize": {"height": 48, "width": 64}},
        "sampling": {"every_frames": 4},
        "extract": extract,
    }
    return JobSpec.model_validate({**document, **fields})


def checked(spec: JobSpec) -> None:
    check(resolve_on(CATALOG, with_inputs(spec, None)))


@pytest.mark.parametrize(
    "spec",
    [
        job(SMALL),
        job({**SMALL, "evaluation_crops": 10}),
        job({"network": "r3d_18", "weights": "file:///w", "crop": 32}),
        job({}, streams={"rgb": {}, "f": {"feature": "flow", "params": {"length": 2}}}),
        job({}, **TRACKS),
        job({"reduce": "none"}),
    ],
)
def test_what_fits_passes(spec: JobSpec) -> None:
    checked(spec)


@pytest.mark.parametrize(
    ("spec", "field", "code"),
    [
        (job({**SMALL, "network": "smal"}), "extract.network", "unknown"),
        (job({**SMALL, "network": "vlad"}), "extract.network", "conflict"),
        (job(SMALL, **TRACKS), "extract.network", "conflict"),
        (job({**SMALL, "network": "mvit_v2_s"}), "clip.frames", "range"),
        (
            job({**SMALL, "network": "r3d_18"}, streams={"f": {"feature": "flow", "params": {"length": 2}}}),
            "extract.network",
            "conflict",
        ),
        (job({**SMALL, "crop": 49}), "extract.crop", "range"),
        (job({**SMALL, "network": "vgg19", "crop": 31}), "extract.crop", "range"),
        (job({"reduce": "none"}, **TRACKS), "extract.reduce", "conflict"),
        (
            job({"reduce": "none"}, clip={"frames": 64, "resize": {"height": 512, "width": 512}}),
            "extract.reduce",
            "range",
        ),
        (job({}, limits={"budget": 1000}), "limits.budget", "range"),
    ],
)
def test_what_does_not_fit_is_refused(spec: JobSpec, field: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(spec)
    assert (field, code) in refusals(caught.value)


def test_weights_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with refused("extract.weights", "not_found"):
        scored_with(job({**SMALL, "weights": f"file://{tmp_path}/none.safetensors"}), STORES, None)
    (tmp_path / "w.safetensors").write_bytes(b"")
    assert scored_with(job({**SMALL, "weights": f"file://{tmp_path}/w.safetensors"}), STORES, None) is not None


def test_weights_that_a_trainer_made_are_those_of_the_network() -> None:
    spec = job(SMALL)
    assert spec.extract is not None
    for trained, wrong in (("small", False), ("", False), ("resnet18", True)):
        found = resolve_on(CATALOG, spec, scorer=Extraction(extract=spec.extract, weights="0", trained=trained))
        with refused("extract.weights", "conflict") if wrong else nullcontext():
            check(found)


def test_clips_and_streams_are_those_of_the_model(tmp_path: Path) -> None:
    clip = ClipSpec.model_validate({"frames": 6, "stride": 2})
    streams = {"rgb": StreamSpec(params={"frames": 2}), "unused": StreamSpec(feature="frame_diff")}
    uri = manifest_at(f"file://{tmp_path}/trained", clip, streams, {"rgb": 1.0, "unused": 0.0})
    asked = JobSpec.model_validate({"name": "x", "output": "file:///out", "extract": {"model": uri}})
    found = with_inputs(asked, model_of(asked, STORES))
    assert (found.clip, found.streams) == (clip, {"rgb": streams["rgb"]})
    given = asked.model_copy(update={"clip": ClipSpec(frames=3)})
    given.model_fields_set.add("clip")
    with pytest.raises(ConfigError) as caught:
        with_inputs(given, model_of(given, STORES))
    assert {field for field, _ in refusals(caught.value)} == {"clip.frames", "clip.stride"}
    missing = asked.model_copy(
        update={"extract": asked.extract and asked.extract.model_copy(update={"model": "file:///no"})}
    )
    with refused("extract.model", "not_found"):
        model_of(missing, STORES)
