"""What users have of a GPU: loaders that send batches there, jobs that train there, models that answer from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import essp
from essp.catalog.build import BuildOptions, build
from essp_common.job.spec import parse_spec
from tests.harness.command_line import essp as command
from tests.harness.embedded_jobs import run
from tests.harness.journeys import job_text, make_videos
from tests.harness.record_sets import make_records

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gpu")
    make_videos(root / "videos")
    path = root / "catalog.parquet"
    build((root / "videos").as_uri(), path.as_uri(), ("file:///",), BuildOptions("folders"))
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": essp.Clip(frames=4, size=40, pixels="yuv420")},
        {"feature": "flow", "params": {"length": 3}},
        {"clip": essp.Clip(frames=4, max_pixels=3000, multiple_of=14)},
        {"clip": essp.Clip(frames=4, max_pixels=3000, multiple_of=14, pixels="yuv420")},
    ],
    ids=["rgb", "yuv420", "flow", "sizes by video", "sizes by video, yuv420"],
)
def test_batches_are_those_of_a_cpu(catalog: Path, options: dict[str, Any]) -> None:
    taken = {}
    for device in ("cpu", "cuda"):
        given: dict[str, Any] = {
            "clip": essp.Clip(frames=4, size=40),
            "batch_size": 4,
            "limits": essp.Limits(decoders=1),
            "device": device,
        } | options
        with essp.Loader(catalog, **given) as loader:
            taken[device] = list(loader)
    assert len(taken["cpu"]) == len(taken["cuda"]) == 3
    for one, other in zip(taken["cpu"], taken["cuda"], strict=True):
        for ours, theirs in zip(one.frames, other.frames, strict=True):
            assert theirs.is_cuda
            assert torch.equal(theirs.cpu(), ours)
        assert torch.equal(other.labels, one.labels)


def test_records_are_those_of_a_cpu(tmp_path: Path) -> None:
    make_records(tmp_path / "records", [number % 2 for number in range(40)])
    taken = {}
    for device in ("cpu", "cuda"):
        with essp.Records(tmp_path / "records", batch_size=8, device=device) as records:
            taken[device] = list(records)
        with essp.Records(tmp_path / "records", batch_size=8, device=device).share(processes=1) as shared:
            taken[f"{device} shared"] = list(shared)
    for place, batches in taken.items():
        assert len(batches) == 5
        for one, other in zip(taken["cpu"], batches, strict=True):
            assert other.frames.is_cuda == place.startswith("cuda")
            assert torch.equal(other.frames.cpu(), one.frames)


def test_a_job_trains_is_fused_and_answers(catalog: Path, tmp_path: Path) -> None:
    """Both streams, in half precision; the model scores alike on a GPU and on a CPU, and wherever it was trained."""
    text = job_text("gpu", output=(tmp_path / "out").as_uri(), catalog=catalog.as_uri(), epochs=2, clips=48)
    text = text.replace("batch_size: 4", "batch_size: 8\n    device: cuda\n    amp: true\n    ema: 0.9")
    spec = parse_spec(text)
    assert {trainer.device for trainer in spec.trainers.values()} == {"cuda"}
    status = run(spec)
    assert status.state.value == "completed", status.reason
    on = {device: essp.load_model(tmp_path / "out", device=device) for device in ("cpu", "cuda")}
    row = next(row for row in essp.open_catalog(catalog).rows if row.split == "test")
    clip = essp.decode(row, 0, clip=on["cpu"].clip)
    for name, stream in on["cpu"].streams.items():
        other = on["cuda"].streams[name]
        assert next(other.module.parameters()).is_cuda
        frames = essp.compute_feature(clip, stream.feature, **stream.params)
        # Convolutions of a GPU round their factors to 11 bits (TF32); scores are shares of one.
        np.testing.assert_allclose(other.score(frames), stream.score(frames), atol=0.02)
    answers = essp.predict(Path(row.uri.removeprefix("file://")), tmp_path / "out")
    assert answers[0].class_name in on["cpu"].classes
    exported = command(
        "checkpoint", "export", str(tmp_path / "out"), "--out", str(tmp_path / "program"), "--format", "torch"
    )
    assert exported.exit_code == 0, exported.output


def test_the_doctor_names_it() -> None:
    done = command("doctor")
    assert torch.cuda.get_device_name(0) in done.output
