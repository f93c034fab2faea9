"""`essp init`: the job file it writes can be run as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.cli.init import job_text, main
from essp.cli.job_file import load_job
from essp_common.catalog.table import Catalog, VideoRow, write_catalog
from essp_common.errors import ConfigError
from essp_common.job.spec import parse_spec
from essp_common.objects.directory import DirectoryStore

ROWS = tuple(
    VideoRow(f"{split}/{n}.mp4", f"file:///v/{split}/{n}.mp4", label, split, 1, "e", width=320, height=240)
    for split in ("train", "test")
    for n, label in enumerate(("left", "right"))
)


def test_results_lie_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = parse_spec(job_text(Catalog(ROWS), "file:///data/My Set.parquet", "job.yaml", "small"))
    assert (spec.name, spec.output) == ("my-set", f"file://{tmp_path}/runs/my-set")
    assert set(spec.trainers) == {"rgb", "flow"}
    assert (spec.clip.resize.height, spec.trainers["rgb"].augment.crop) == (128, 112)


def test_results_of_a_catalog_in_an_object_store_lie_beside_it() -> None:
    spec = parse_spec(job_text(Catalog(ROWS), "s3://bucket/sets/ucf.parquet", "job.yaml", "resnet18"))
    assert (spec.data.catalog, spec.output) == ("s3://bucket/sets/ucf.parquet", "s3://bucket/sets/runs/ucf")
    assert {trainer.model for trainer in spec.trainers.values()} == {"resnet18"}


def test_a_model_whose_weights_come_in_a_package_starts_from_them() -> None:
    spec = parse_spec(job_text(Catalog(ROWS), "set.parquet", "job.yaml", "efficientnet_lite0"))
    assert {t.weights for t in spec.trainers.values()} == {"package:efficientnet_lite0"}
    assert "weights:" not in job_text(Catalog(ROWS), "set.parquet", "job.yaml", "resnet18")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(ROWS))
    with pytest.raises(ConfigError, match=r"nowhere/job\.yaml cannot be written"):
        main(str(tmp_path / "set.parquet"), tmp_path / "nowhere" / "job.yaml")


def test_a_file_that_is_not_text_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"PAR1\xbc\xff")
    with pytest.raises(ConfigError, match="not a text file"):
        load_job(tmp_path / "job.yaml")
