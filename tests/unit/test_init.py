"""`essp init`: the job file it writes can be run as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.catalog.table import Catalog, VideoRow
from essp_common.spec import parse_spec
from services.cli.init import job_text

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
