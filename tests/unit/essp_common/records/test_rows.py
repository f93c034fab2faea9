"""Records as the rows of a catalog: what jobs plan with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from essp_common.errors import NotFound
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.records.chunk import Record
from essp_common.records.rows import RecordUris, open_data, record_at
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from essp_engine.planning.phases import Phases
from tests.harness.record_sets import make_records, png, raw, records_job
from tests.harness.refused import refused

STORES = Stores(("file:///",))
LABELS = [0, 1] * 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "train"


def test_each_record_is_a_video_of_one_frame(folder: Path, tmp_path: Path) -> None:
    made = make_records(folder, LABELS, file_bytes=8000)
    make_records(tmp_path / "test", [1, 0, 1])
    data = {"records": folder.as_uri(), "records_test": (tmp_path / "test").as_uri()}
    catalog = open_data(records_job(folder, tmp_path / "out", {"data": data}), STORES)
    assert catalog.classes == ("dark", "light")
    assert catalog.splits == ("test", "train")
    row = catalog.view("train").rows[3]
    assert (row.id, row.class_name, row.split, row.error) == ("train/000000000003", "light", "train", None)
    assert (row.width, row.height, row.frame_count, row.last_frame) == (28, 24, 1, 0)
    _, version = made.version()
    assert [file.first_key for file in version.files[:2]] == [0, 3]
    uris = catalog.rows.columns["uri"]
    assert isinstance(uris, RecordUris)
    assert row.uri == f"{made.where}/{version.files[1].key}#3"
    assert uris.lengths.tolist() == [len(found.uri) for found in catalog.rows]
    assert [found.uri for found in catalog.rows] == uris.arrow().to_pylist()
    assert [found.class_name for found in catalog.view("test").rows] == ["light", "dark", "light"]


def test_records_that_were_deleted_are_not_there_and_versions_stay(folder: Path, tmp_path: Path) -> None:
    made = make_records(folder, LABELS, png)
    made.delete([range(2, 5)])
    newest = open_data(records_job(folder, tmp_path), STORES)
    assert len(newest.rows) == 17
    assert newest.rows[2].id == "train/000000000005"
    data = {"records": folder.as_uri(), "versions": {"train": 1}}
    assert len(open_data(records_job(folder, tmp_path, {"data": data}), STORES).rows) == 20


def test_what_is_trained_on_has_a_label(folder: Path, tmp_path: Path) -> None:
    make_records(folder, [0, -1, 1, 0, 1, 1])
    catalog = open_data(records_job(folder, tmp_path), STORES)
    assert catalog.classes == ("dark", "light")
    assert [row.id for row in catalog.rows if row.error] == ["train/000000000001"]
    loops = {"trainers": {}, "consumers": {"loop": {"stream": "rgb"}}}
    assert open_data(records_job(folder, tmp_path, loops), STORES).classes == ("", "dark", "light")


def test_validation_is_carved_record_by_record(folder: Path, tmp_path: Path) -> None:
    """All of them lie in one file, and that does not keep them together."""
    make_records(folder, LABELS)
    spec = records_job(folder, tmp_path)
    phases = Phases(spec, open_data(spec, STORES))
    train, validation = (view for _, view in phases.views)
    assert len(train) + len(validation) == 20
    assert np.bincount(validation.class_id).tolist() == [2, 2]


def test_an_epoch_has_each_record_once_and_units_are_of_one_file(folder: Path, tmp_path: Path) -> None:
    make_records(folder, LABELS, file_bytes=8000)
    spec = records_job(folder, tmp_path, {"sampling": {"window": 8}})
    phases = Phases(spec, open_data(spec, STORES))
    plan, view = phases.plan(0), phases.view(0)
    files = view.file
    assert files is not None
    units = plan.units(0, len(plan))
    assert len(units) < len(plan)
    assert all(len({int(files[clip.video]) for clip in unit}) == 1 for unit in units)
    assert sorted(clip.video for unit in units for clip in unit) == list(range(len(view)))
    assert [clip.video for unit in units for clip in unit] != list(range(len(view)))


def test_what_is_not_there_is_said_by_its_field(folder: Path, tmp_path: Path) -> None:
    with refused("data.records", "not_found"):
        open_data(records_job(folder, tmp_path), STORES)
    made = make_records(folder, LABELS, file_bytes=8000)
    data = {"records": folder.as_uri(), "versions": {"train": 7}}
    with refused("data.records", "not_found"):
        open_data(records_job(folder, tmp_path, {"data": data}), STORES)
    data = {"records": folder.as_uri(), "records_test": (tmp_path / "none").as_uri()}
    with refused("data.records_test", "not_found"):
        open_data(records_job(folder, tmp_path, {"data": data}), STORES)
    _table_damaged(made, folder)
    with refused("data.records", "unreadable"):
        open_data(records_job(folder, tmp_path), STORES)


def _table_damaged(made: DataSet, folder: Path) -> None:
    path = folder / made.version()[1].files[0].key
    path.write_bytes(path.read_bytes()[:20] + b"?" + path.read_bytes()[21:])


def test_a_job_of_records_has_clips_of_one_frame(folder: Path, tmp_path: Path) -> None:
    make_records(folder, LABELS, raw)
    spec = records_job(folder, tmp_path, {"sampling": {}})
    assert (spec.clip.frames, spec.sampling.clips_per_video) == (1, 1)
    assert (spec.sampling.kind, spec.sampling.clips_per_visit) == ("exhaustive", 1)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert records_job(folder, tmp_path, {"sampling": {"kind": "class_balanced"}}).sampling.clips_per_visit == 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clip": {"frames": 3}}, r"clip\.frames: a record is one frame, and this is 3"),
        ({"sampling": {"kind": "pooled"}}, r"sampling\.kind: pooled takes several clips of each video"),
        ({"sampling": {"clips_per_video": 3}}, r"sampling\.clips_per_video: a record has one clip, not 3"),
        ({"data": {"records": "file:///r", "catalog": "file:///c"}}, "give one of `catalog`"),
        ({"data": {"records": "file:///r", "train": "mine"}}, "train: names a split of a catalog"),
        ({"data": {"records_test": "file:///r"}}, "records_test: belongs to `records`"),
        ({"data": {"records": "file:///r", "versions": {"test": 1}}}, r"versions\.test: there is no records_test"),
        (
            {"trainers": {}, "predictor": {"model": "file:///m", "segments": True}},
            r"predictor\.segments: a record is one frame",
        ),
    ],
)
def test_what_records_cannot_have_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=said):
        records_job(tmp_path, tmp_path, change)


@pytest.mark.parametrize("make", [raw, png])
def test_a_record_is_found_by_its_uri(folder: Path, tmp_path: Path, make: Callable[[int, int], Record]) -> None:
    make_records(folder, LABELS, make, file_bytes=8000)
    row = open_data(records_job(folder, tmp_path), STORES).rows[7]
    data, shape = record_at(row.uri, STORES)
    assert data == make(7, 1).data
    assert shape == ((24, 28, 3) if make is raw else None)
    with pytest.raises(NotFound, match="has no record 99"):
        record_at(row.uri.replace("#7", "#99"), STORES)


def test_the_example_is_a_job_of_records() -> None:
    spec = parse_spec((Path(__file__).parents[4] / "docs" / "examples" / "images.yaml").read_text())
    assert (spec.data.records, spec.clip.frames, spec.sampling.kind) == ("data/train", 1, "exhaustive")
