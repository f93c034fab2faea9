"""Jobs on records in one process: each image is trained once an epoch, whatever is damaged and whenever it stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import essp
from essp.api.loader import Loader
from essp.api.loader_arguments import Limits
from essp.cli.main import app
from essp.report.facts import read_run
from essp.report.samples import choose, read_samples
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.predictions import read_predictions
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.records.rows import open_data
from essp_engine.planning.phases import Phases
from tests.flow.test_journey import STORES, run_in_two
from tests.harness.embedded_jobs import run
from tests.harness.journeys import weights_of
from tests.harness.record_sets import CLASSES, make_records, png, raw, records_job

LABELS = [0, 1] * 10


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """Data sets to train and test on; a record of the first one, which is trained on, is damaged."""
    made = make_records(tmp_path / "train", LABELS, png)
    make_records(tmp_path / "test", [0, 1, 1], raw, named="test")
    data = {"records": (tmp_path / "train").as_uri(), "records_test": (tmp_path / "test").as_uri()}
    spec = records_job(tmp_path / "train", tmp_path / "none")
    catalog = open_data(spec, STORES)
    damaged = Phases(spec, catalog).view(0).rows.places[5]
    path = tmp_path / "train" / made.version()[1].files[0].key
    content = bytearray(path.read_bytes())
    content[int(catalog.rows.columns["record"]["offset"][damaged]) + 40] ^= 1  # type: ignore[index]
    path.write_bytes(content)
    return data


def test_a_job_on_records_that_was_stopped_ends_as_one_that_was_not(folders: dict[str, str], tmp_path: Path) -> None:
    """A damaged record is left out of each epoch, and every other one is trained on once."""
    whole, parted = (
        records_job(tmp_path / "train", tmp_path / name, {"name": name, "data": folders})
        for name in ("whole", "parted")
    )
    status = run(whole)
    assert status.state is JobState.COMPLETED, status.reason
    train, _, again, _, test = status.phases
    assert (train.clips, train.skipped, again.skipped, test.clips) == (16, 1, 1, 3)
    assert all(passed.done == {"trainer.net": passed.clips} for passed in status.phases)
    assert [(failure.kind, failure.count) for failure in status.failures] == [("damaged", 2)]
    assert run_in_two(parted).state is JobState.COMPLETED
    assert weights_of(STORES, parted.output) == weights_of(STORES, whole.output)
    audit = CliRunner().invoke(app, ["audit", str(tmp_path / "parted"), "--json"])
    assert audit.exit_code == 0, audit.output
    _, model = open_model(STORES, f"{whole.output}/model")
    assert model.test is not None
    assert model.test.videos == 3
    assert choose(found := read_run(STORES.under(whole.output), STORES))
    assert [sample.clip.shape for sample in read_samples(found, STORES, choose(found))] == [(1, 20, 20, 3)] * 2
    _predict(folders["records_test"], f"{whole.output}/model", tmp_path / "predicted")


def _predict(records: str, model: str, output: Path) -> None:
    """A prediction is of each record."""
    spec = JobSpec.model_validate(
        {"name": "p", "output": output.as_uri(), "data": {"records": records}, "predictor": {"model": model}}
    )
    assert run(spec).state is JobState.COMPLETED
    found, _ = read_predictions(STORES.under(spec.output), layout.PREDICTIONS)
    assert [(row.video_id, row.clips) for row in found] == [(f"train/{number:012}", 1) for number in range(3)]
    assert [row.name for row in found] == [f"test {number}" for number in range(3)]
    _predict_files(model, [row.scores for row in found], output)


def _predict_files(model: str, scores: list[tuple[float, ...]], folder: Path) -> None:
    """The same pictures in files get the same answers, and files that are no pictures are named."""
    for number, label in enumerate([0, 1, 1]):
        (folder / f"{number}.png").write_bytes(png(number, label).data)
    (folder / "empty.jpg").touch()
    (folder / "words.jpg").write_text("no picture")
    *answers, empty, words, absent = essp.predict([folder, folder / "none.png"], model)
    assert [answer.video for answer in answers] == [str(folder / f"{number}.png") for number in range(3)]
    assert [[answer.scores[name] for name in CLASSES] for answer in answers] == [pytest.approx(row) for row in scores]
    errors = [str(answer.error) for answer in (empty, words, absent)]
    assert errors[0] == "empty: the file is empty"
    assert errors[1].startswith("not an image of a known format (JPEG, PNG")
    assert errors[2].startswith("missing: ")


def test_a_damaged_record_is_replaced_by_one_of_its_class(folders: dict[str, str], tmp_path: Path) -> None:
    sampling = {"kind": "class_balanced", "seed": 1, "clips_per_epoch": 40}
    spec = records_job(tmp_path / "train", tmp_path / "out", {"data": folders, "sampling": sampling, "epochs": 1})
    status = run(spec)
    assert status.state is JobState.COMPLETED, status.reason
    assert status.counts.replaced > 0
    assert status.counts.skipped == 0
    letters = CliRunner().invoke(app, ["deadletter", "ls", "--from", str(tmp_path / "out"), "--json"])
    assert letters.exit_code == 0, letters.output
    [record] = {letter["seed"]["video"] for letter in json.loads(letters.stdout)}
    assert record.startswith("train/0")


def test_a_loop_of_ones_own_gets_each_record_once(folders: dict[str, str], tmp_path: Path) -> None:
    spec = records_job(tmp_path / "train", tmp_path / "out", {"data": folders})
    (tmp_path / "job.yaml").write_text(spec.model_dump_json(), encoding="utf-8")
    loader = Loader.of(tmp_path / "job.yaml", limits=Limits(epochs=1))
    seen = [
        (name, label)
        for batch in loader
        for name, label in zip(batch.meta["video"], batch.labels.tolist(), strict=True)
    ]
    loader.close()
    assert len(dict(seen)) == len(seen) == 15, "16 for training, and one of them is damaged"
    assert all(int(name.rpartition("/")[2]) % 2 == label for name, label in seen)
