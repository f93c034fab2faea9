"""The vectors of clips: the same as the network and the feature give by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import essp
from essp_common.artifacts.extraction import extraction_of
from essp_common.artifacts.fused_model import open_model
from essp_common.errors import ConfigError, NotFound
from essp_common.job.feature_layout import COLOURS, DESCRIPTOR, MOTION, FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.intake.wanted import Decoded
from essp_engine.learning.augment import Evaluated, evaluation_view
from essp_engine.learning.inputs import IMAGENET
from essp_engine.learning.networks import Small
from essp_predictor.tasks import task_of
from essp_predictor.vectors import feature_vector
from tests.harness.predictor_bench import CROP, SCALE, described, frames_of, model_at
from tests.harness.rounding import TOLERANCE

STORES = Stores(("file:///",))
CPU = torch.device("cpu")
CLIPS = [frames_of("rgb", index) for index in range(3)]


def job(extract: dict[str, Any], **fields: Any) -> JobSpec:
    document = {"name": "x", "output": "file:///out", "data": {"catalog": "file:///c.parquet"}, "extract": extract}
    return JobSpec.model_validate({**document, **fields})


def vectors(spec: JobSpec, layout: FeatureLayout = COLOURS) -> dict[str, np.ndarray[Any, Any]]:
    task = task_of(spec, dict.fromkeys(spec.streams, layout.model_dump_json()), STORES, CPU, ())
    [stream] = spec.streams
    scorer = task.scorer(stream)
    batches = []
    for clips in (CLIPS[:2], CLIPS[2:]):
        scores = scorer.score([scorer.views(Decoded(clip, None)) for clip in clips])
        found = dict(scorer.features(len(clips)))
        assert {name: rows.shape for name, rows in scores.items()} == dict.fromkeys(found, (len(clips), 1))
        batches.append(found)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.fixture
def network() -> Small:
    torch.manual_seed(3)
    return Small().eval()


@pytest.fixture
def weights(tmp_path: Path, network: Small) -> str:
    safetensors.torch.save_file(network.state_dict(), tmp_path / "w.safetensors")
    return f"file://{tmp_path}/w.safetensors"


@pytest.mark.parametrize("views", [1, 3])
def test_an_embedding_is_the_input_of_the_last_layer_over_frames_and_views(
    network: Small, weights: str, views: int
) -> None:
    spec = job({"network": "small", "weights": weights, "crop": CROP, "evaluation_crops": views})
    [found] = vectors(spec).values()
    assert found.dtype == np.float32
    for clip, vector in zip(CLIPS, found, strict=True):
        seen = torch.from_numpy(evaluation_view(clip, Evaluated(CROP, SCALE, views), COLOURS)).float()
        normal = (seen - torch.tensor(IMAGENET.mean)) / torch.tensor(IMAGENET.std)
        with torch.inference_mode():
            own = torch.nn.Sequential(*list(network)[:-1])(normal.permute(0, 3, 1, 2)).mean(dim=0)
        np.testing.assert_allclose(vector, own.numpy(), atol=TOLERANCE)


def test_numbers_are_stored_in_the_type_that_the_job_names(weights: str) -> None:
    asked = {"network": "small", "weights": weights, "crop": CROP}
    [half] = vectors(job({**asked, "dtype": "float16"})).values()
    [single] = vectors(job(asked)).values()
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, single.astype(np.float16))


def test_each_network_of_a_fused_model_is_a_source(tmp_path: Path) -> None:
    uri = model_at(tmp_path)
    spec = job({"model": uri}, streams={"rgb": {"feature": "rgb", "params": {"frames": 2}}})
    found = vectors(spec)
    assert {name: rows.shape for name, rows in found.items()} == {"rgb": (3, 128)}
    own = essp.load_model(tmp_path).streams["rgb"]
    assert described("rgb").crop == own.crop
    np.testing.assert_allclose(found["rgb"][0], own.embed(CLIPS[0]).astype(np.float32), atol=2e-3)


def test_without_a_network_a_vector_is_the_feature() -> None:
    [mean] = vectors(job({})).values()
    [whole] = vectors(job({"reduce": "none"})).values()
    np.testing.assert_allclose(mean, [clip.reshape(-1, 3).mean(axis=0) for clip in CLIPS], rtol=1e-6)
    np.testing.assert_array_equal(whole, [clip.reshape(-1) for clip in CLIPS])


def test_motion_is_in_shares_of_its_bound_and_descriptors_leave_out_where_they_are() -> None:
    codes = np.full((1, 2, 2, 2), 128, np.uint8)
    codes[..., 0] = 255
    assert feature_vector(codes, MOTION, mean=True).tolist() == [1.0, 0.0]
    rows = np.array([[1, 2, 0.5, 0.25], [3, 4, 1.5, 0.75], [0, 0, 0, 0]], np.float32).reshape(1, 3, 1, 4)
    placed = DESCRIPTOR.model_copy(update={"facts": 2})
    assert feature_vector(rows, placed, mean=True).tolist() == [1.0, 0.5]
    assert feature_vector(rows * 0, placed, mean=True).tolist() == [0.0, 0.0], "no track at all"


def test_weights_of_another_network_are_refused(weights: str) -> None:
    spec = job({"network": "mobilenet_v3_small", "weights": weights, "crop": 32})
    with pytest.raises(ConfigError) as caught:
        vectors(spec)
    assert caught.value.field == "extract.network"


def test_what_is_saved_belongs_to_these_weights_and_this_type(weights: str, tmp_path: Path, network: Small) -> None:
    asked = {"network": "small", "weights": weights}

    def known(extract: dict[str, Any]) -> object:
        spec = job(extract)
        model = open_model(STORES, spec.fused_model[1])[1] if spec.fused_model else None
        assert spec.extract is not None
        return extraction_of(spec.extract, STORES, model).digested()

    before = known(asked)
    assert known({**asked, "pool": "mean", "format": "npy"}) == before, "only what is written differs"
    assert known({**asked, "dtype": "float16"}) != before
    assert known({**asked, "crop": 112}) != before
    first = network[0]
    assert isinstance(first, torch.nn.Conv2d)
    first.weight.data += 1
    safetensors.torch.save_file({**network.state_dict(), "x": torch.zeros(3)}, tmp_path / "w.safetensors")
    assert known(asked) != before
    (tmp_path / "w.safetensors").unlink()
    with pytest.raises(NotFound):
        known(asked)
