"""The recipes of `essp init` train: as they are written, but small, with a small network and without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from essp.cli.init import job_text
from essp.cli.recipes import Recipe
from essp.embedded.composition import Embedded
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import read_model
from essp_common.catalog.file import read_catalog
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.harness.embedded_jobs import finish

pytestmark = pytest.mark.lane("promises")

STORES = Stores(("file:///",))
SMALL: dict[str, Any] = {"model": "small", "weights": None, "batch_size": 8, "threads": 1}


@pytest.mark.parametrize("recipe", ["many", "paper"])
def test_a_recipe_trains_both_streams_and_fuses_them(catalog: Path, tmp_path: Path, recipe: Recipe) -> None:
    uri = f"file://{catalog}"
    document = yaml.safe_load(job_text(read_catalog(*STORES.resolve(uri)), uri, "job.yaml", "small", recipe))
    document |= {"epochs": 1, "output": f"file://{tmp_path}/out"}
    document["clip"]["resize"] |= {"height": 64, "width": 64}
    document["sampling"] |= {"clips_per_epoch": 16, "clips_per_video": 2}
    document["sampling"] |= {"window": 32} if recipe == "many" else {}
    for trainer in document["trainers"].values():
        trainer |= SMALL | ({"micro_batch": 2} if recipe == "paper" else {})
        trainer["augment"] = trainer["augment"] | {"crop": 56}
    with Embedded(JobSpec.model_validate(document), Settings()) as job:
        finish(job)
    assert job.status().state == JobState.COMPLETED, job.status().reason
    model = read_model(STORES.under(f"file://{tmp_path}/out"), layout.MODEL_MANIFEST)
    assert {member.model.channels for member in model.members} == {3, 10 if recipe == "many" else 20}
    assert model.test is not None
    assert model.test.videos == 4
