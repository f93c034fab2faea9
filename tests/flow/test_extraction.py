"""From videos to vectors: the job and `essp extract` on real files, against a plain loop over the same frames."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

import essp
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts import layout
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from essp_engine.learning.networks import Small
from tests.harness.embedded_jobs import complete
from tests.harness.embeddings import CROP, SIDE, embeddings
from tests.harness.rounding import TOLERANCE
from tests.harness.waiting import until

FRAMES = 4
MakeSpec = Callable[..., JobSpec]


@pytest.fixture(scope="module")
def network() -> Small:
    torch.manual_seed(1)
    return Small().eval()


@pytest.fixture(scope="module")
def weights(network: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    return path


def spec_of(root: Path, catalog: Path, extract: dict[str, Any], **fields: Any) -> JobSpec:
    document = {
        "name": "x",
        "output": f"file://{root}",
        "data": {"catalog": f"file://{catalog}"},
        "clip": {"frames": FRAMES, "resize": {"mode": "exact", "height": SIDE, "width": SIDE}},
        "sampling": {"every_frames": FRAMES},
        "extract": extract,
    }
    return JobSpec.model_validate({**document, **fields})


def of_network(weights: Path) -> dict[str, Any]:
    return {"network": "small", "weights": f"file://{weights}", "crop": CROP, "evaluation_scale": CROP / SIDE}


def plain_loop(catalog: Path, network: Small) -> dict[str, NDArray[np.float32]]:
    """The embeddings of all videos."""
    return {row.id: embeddings(row, network, FRAMES) for row in essp.open_catalog(catalog).rows}


def test_embeddings_are_those_of_a_plain_loop(catalog: Path, network: Small, weights: Path, tmp_path: Path) -> None:
    with Embedded(spec_of(tmp_path / "out", catalog, of_network(weights)), Settings()) as job:
        status = complete(job)
    assert (status.kind, status.result and status.result.metrics) == ("extract", {"videos": 20.0, "failed": 0.0})
    expected = plain_loop(catalog, network)
    found = essp.load_features(tmp_path / "out")
    assert list(found) == list(expected)
    for video, vectors in expected.items():
        np.testing.assert_allclose(found[video], vectors, atol=100 * TOLERANCE)
    assert found.first_frame.tolist() == [FRAMES * clip for clip in found.clip.tolist()]
    np.testing.assert_allclose(found.end_s - found.start_s, FRAMES / 25, atol=1e-9)
    leftovers = {path.name for path in (tmp_path / "out" / layout.PARTS.rstrip("/")).rglob("*") if path.is_file()}
    assert not leftovers, "the job is complete: parts are of no more use"


def test_the_same_vectors_are_written_as_files_of_numpy(catalog: Path, weights: Path, tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        catalog,
        {**of_network(weights), "format": "npy"},
        streams={"rgb": {}, "flow": {"feature": "frame_diff", "params": {"length": 3}}},
    )
    with Embedded(spec, Settings()) as job:
        complete(job)
    rows = pq.read_table(tmp_path / "features" / "rgb-videos.parquet").to_pylist()
    for source in ("rgb", "flow"):
        arrays = [np.load(tmp_path / "features" / source / row["file"]) for row in rows]
        assert [array.shape for array in arrays] == [(row["vectors"], 128) for row in rows]
        assert all(np.isfinite(array).all() for array in arrays)


def test_a_job_that_was_interrupted_writes_the_same_bytes(
    catalog: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("essp_predictor.stream._SAVE_S", 0.0)
    extract = of_network(weights)
    outputs = [tmp_path / "undisturbed", tmp_path / "interrupted"]
    with Embedded(spec_of(outputs[0], catalog, extract), Settings()) as job:
        complete(job)
    with Embedded(spec_of(outputs[1], catalog, extract), Settings()) as job:
        until(lambda: any(path.name == "done.json" for path in outputs[1].rglob("*")))
    assert not (outputs[1] / "features" / "manifest.json").exists()
    with Embedded(spec_of(outputs[1], catalog, extract), Settings()) as job:
        complete(job)
    first, second = (
        {path.relative_to(output): path.read_bytes() for path in (output / "features" / "rgb").rglob("*.*")}
        for output in outputs
    )
    assert first == second


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["extract", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_a_folder_is_extracted_without_a_job_file_and_damage_does_not_stop_it(
    videos: Path, weights: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "videos", tmp_path / "out"
    shutil.copytree(videos / "test", folder)
    names = sorted(path for path in folder.rglob("*") if path.is_file())
    names[0].write_bytes(names[0].read_bytes()[:500])
    asked = (folder, "--network", "small", "--weights", weights, "--crop", CROP, "--every", "4f", "--out", out)
    code, told, _ = invoke(*asked, "--dry-run", "--json")
    assert code == 0
    planned = json.loads(told)
    assert (planned["videos"], planned["unusable"]) == (len(names) - 1, 1)
    assert not (out / "features").exists()

    code, told, said = invoke(*asked)
    assert code == 0, said
    bad = str(names[0].relative_to(folder))
    assert bad in said
    found = essp.load_features(out)
    assert set(found.failed) == {bad}
    assert len(found) == planned["sources"]["rgb"]["rows"]
    assert found.vectors.shape[1] == planned["sources"]["rgb"]["numbers"]

    before = {path: path.stat().st_mtime_ns for path in (out / "features").rglob("*")}
    code, told, _ = invoke(*asked, "--json")
    assert code == 0
    result = json.loads(told.splitlines()[-1])
    assert result["sources"]["rgb"]["errors"].keys() == {bad}
    assert {path: path.stat().st_mtime_ns for path in (out / "features").rglob("*")} == before, "nothing was left to do"

    catalog = (out / "catalog.parquet").read_bytes()
    for dry in ((), ("--dry-run",)):  # other videos
        done = CliRunner().invoke(app, ["extract", *map(str, (videos / "train", *asked[1:], *dry))])
        assert "--out" in str(done.exception)
    assert (out / "catalog.parquet").read_bytes() == catalog


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--network", "smal"), "--network"),
        (("--every", "fast"), "--every"),
        (("--every", "1s", "--clips", "3"), "--clips"),
        (("--network", "small", "--weights", "/nowhere.pth"), "--weights"),
        (("--network", "small"), "--weights"),  # it has no published ones
        (("--feature", "colour"), "--feature"),
        (("--model", "/nowhere"), "--model"),
        (("--reduce", "none", "--size", "1024", "--frames", "8"), "--reduce"),
        (("--model", "/nowhere", "--size", "64"), "--size"),
    ],
)
def test_what_cannot_be_is_refused_by_its_option(
    catalog: Path, tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    done = CliRunner().invoke(app, ["extract", str(catalog), "--out", str(tmp_path / "out"), *arguments])
    assert done.exit_code != 0
    assert word in str(done.exception)
