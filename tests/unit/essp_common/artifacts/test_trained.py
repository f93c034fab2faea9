"""Weights from another job: which are meant, and what is refused before a job begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.checkpoint import load_arrays
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.artifacts.trained import trained
from essp_common.errors import ConfigError
from essp_common.wiring import Stores
from tests.harness.finished_job import finished_job, weights_of

STORES = Stores(("file:///",))


def test_the_folder_of_a_trainer_gives_the_weights_that_it_ended_with(tmp_path: Path) -> None:
    job = finished_job(tmp_path)
    found = trained(STORES, f"{job.spec.output}/trainers/rgb")
    assert found is not None
    [(name, array)] = load_arrays(found.output, found.manifest, [MODEL_FILE])[MODEL_FILE].items()
    assert (array == weights_of("rgb")[name]).all()
    file = found.manifest.prefix + MODEL_FILE
    assert found.origin.uri == job.store.uri(file)
    assert found.origin.sha256 == found.manifest.files[0].sha256


@pytest.mark.parametrize("uri", ["file:///nowhere/trainers/rgb", "file:///w/resnet18.pt", "file:///trainers/rgb"])
def test_what_is_in_no_output_is_a_file(uri: str) -> None:
    assert trained(STORES, uri) is None


def test_another_name_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    job = finished_job(tmp_path)
    with pytest.raises(ConfigError, match=r"has no trainer 'rgbb'; it has: rgb, flow"):
        trained(STORES, f"{job.spec.output}/trainers/rgbb")


def test_a_training_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    job = finished_job(tmp_path)
    longer = job.spec.model_copy(update={"epochs": 3})  # the job has been given more
    job.store.put(layout.SPEC, longer.model_dump_json().encode())
    with pytest.raises(ConfigError, match="has not ended its 3 epochs"):
        trained(STORES, f"{job.spec.output}/trainers/rgb")
    for info in list(job.store.list(layout.TRAINERS)):
        job.store.delete(info.key)
    assert checkpoint.read_latest(job.store, "rgb") is None
    with pytest.raises(ConfigError, match="has not ended"):
        trained(STORES, f"{job.spec.output}/trainers/rgb")
