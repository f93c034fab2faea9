"""The recipes of `essp init` train: as they are written, but small, with a small network and without weights.

Those of the paper train on sets that lie as UCF-101 and FCVID do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from essp.catalog.build import BuildOptions, build
from essp.catalog.layout import Kind
from essp.cli.init import job_text
from essp.cli.recipes import Recipe
from essp.embedded.composition import Embedded
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import FusedModel, read_model
from essp_common.catalog.file import read_catalog
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.harness.embedded_jobs import finish

pytestmark = pytest.mark.lane("promises")

STORES = Stores(("file:///",))
SMALL: dict[str, Any] = {"model": "small", "weights": None, "batch_size": 8, "threads": 1}


SPLITS = {"trainlist01.txt": ("train", "validation"), "testlist01.txt": ("test",)}


def as_ucf101(videos: Path, root: Path) -> Path:
    """Class folders, in which a name says class, group and clip, and the lists of a division."""
    for name, splits in SPLITS.items():
        lines = []
        for number, video in enumerate(sorted(path for split in splits for path in (videos / split).rglob("*.*"))):
            label = video.parent.name
            place = f"{label}/v_{label}_g{number:02}_c01{video.suffix}"
            (root / label).mkdir(parents=True, exist_ok=True)
            (root / place.replace("_g", f"_g{len(splits)}")).hardlink_to(video)
            lines.append(place.replace("_g", f"_g{len(splits)}"))
        (root / name).write_text("\n".join(lines))
    return root


def as_fcvid(videos: Path, root: Path) -> Path:
    """Folders of splits, of groups, of categories."""
    for video in videos.rglob("*.*"):
        split, label = video.relative_to(videos).parts[:2]
        place = root / split / "motion" / label / video.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.hardlink_to(video)
    return root


def built(source: Kind, folder: Path) -> str:
    """The URI of a catalog of a folder."""
    uri = f"file://{folder}.parquet"
    build(f"file://{folder}", uri, ("file:///",), BuildOptions(source))
    return uri


def trained(uri: str, recipe: Recipe, output: Path) -> FusedModel:
    """Train the recipe of a catalog, but small."""
    document = yaml.safe_load(job_text(read_catalog(*STORES.resolve(uri)), uri, "job.yaml", "small", recipe))
    document |= {"epochs": 1, "output": f"file://{output}"}
    document["clip"]["resize"] |= {"height": 64, "width": 64}
    document["sampling"] |= {"clips_per_epoch": 16, "clips_per_video": 2}
    document["sampling"] |= {} if recipe == "paper" else {"window": 32}
    for trainer in document["trainers"].values():
        trainer |= SMALL | ({} if recipe == "many" else {"micro_batch": 2})
        trainer["augment"] = trainer["augment"] | {"crop": 56}
    with Embedded(JobSpec.model_validate(document), Settings()) as job:
        finish(job)
    assert job.status().state == JobState.COMPLETED, job.status().reason
    return read_model(STORES.under(f"file://{output}"), layout.MODEL_MANIFEST)


def test_the_recipe_for_many_trains_both_streams(catalog: Path, tmp_path: Path) -> None:
    model = trained(f"file://{catalog}", "many", tmp_path / "out")
    assert {member.model.channels for member in model.members} == {3, 10}
    assert model.test is not None
    assert model.test.videos == 4


def test_the_recipe_of_the_paper_trains_on_what_lies_as_ucf101_does(videos: Path, tmp_path: Path) -> None:
    uri = built("ucf101", as_ucf101(videos, tmp_path / "ucf"))
    model = trained(uri, "paper", tmp_path / "out")
    assert {member.model.channels for member in model.members} == {3, 20}
    assert model.test is not None
    assert model.test.videos == 4


def test_the_recipe_of_the_paper_for_fcvid_learns_labels(videos: Path, tmp_path: Path) -> None:
    uri = built("two-level", as_fcvid(videos, tmp_path / "fcvid"))
    model = trained(uri, "paper-fcvid", tmp_path / "out")
    assert {member.model.channels for member in model.members} == {3}
    assert model.independent
    assert model.test is not None
    assert "mAP" in model.test.fused
