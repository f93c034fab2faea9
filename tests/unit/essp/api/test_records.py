"""`essp.Records`: each record once an epoch, in one order however it is read, and as large as it is asked for."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import essp
from essp.records.build import BuildOptions
from essp.records.build import build as build_records
from essp.records.pieces import growth
from essp.records.sources import open_source
from essp_common.errors import ConfigCode, ConfigError, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from tests.harness.loops import ask_in_a_worker_of_torch
from tests.harness.refused import refused
from tests.unit.essp.api.numbered_records import MEMORIES, RECORD_BYTES, RECORDS, SIDE, build, taken

ODD = (-1, 2**70, 2.5, True)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["raw", "mixed"])
def test_each_record_comes_once_an_epoch_in_an_order_of_the_seed(
    kind: str, memory: Any, request: pytest.FixtureRequest
) -> None:
    """However much memory there is."""
    path = request.getfixturevalue(kind)
    with essp.Records(path, batch_size=8, size=SIDE, memory=memory) as loader:
        epochs = [taken(loader) for _ in range(3)]
        assert len(loader) == 7
    assert all(sorted(epoch) == list(range(RECORDS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    with essp.Records(path, batch_size=11, size=SIDE) as loader:
        assert [taken(loader) for _ in range(3)] == epochs
    with essp.Records(path, batch_size=8, size=SIDE, sampling=essp.RecordSampling(seed=1)) as loader:
        assert taken(loader) != epochs[0]


def test_a_record_without_a_label_has_none_in_a_mix(tmp_path: Path, raw: Path) -> None:
    """It got the label of the last class."""
    images = [Record.of_image(np.full((SIDE, SIDE, 3), number, np.uint8), label) for number, label in ((1, -1), (0, 0))]
    with essp.Records(build(tmp_path / "some", images), batch_size=1) as some, essp.Records(raw) as all_:
        names = ["a", "b", None]  # of the labels 0, 1 and -1
        found = [
            (names[label], name)
            for batch in essp.Mix({some: 1, all_: 1}, batches=20)
            for label, name in zip(batch.labels.tolist(), batch.meta["class_name"], strict=True)
        ]
    assert all(label == name for label, name in found)
    assert {name for _, name in found} == {"a", "b", None}


def test_a_record_is_traced_to_its_file(tmp_path: Path) -> None:
    for number in range(6):
        place = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(place), np.full((8, 8, 3), 40 * number, np.uint8))
    images, made = f"file://{tmp_path}/images", DataSet(DirectoryStore(str(tmp_path / "made")))
    with open_source(images, Stores(["file:///"])) as source:
        build_records(source, made, BuildOptions("raw"))
    with essp.Records(tmp_path / "made", batch_size=4) as loader:
        for batch in loader:
            for record, frames in zip(batch.meta["record"], batch.frames, strict=True):
                shown = int(frames[0, 0, 0, 0]) // 40
                assert loader.file(record) == f"{'ab'[shown % 2]}/{shown}.png"
        for odd in (6, *ODD):
            with pytest.raises(ConfigError, match="record"):
                loader.file(odd)  # type: ignore[arg-type]


def test_records_stay_on_a_disk(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a data set that fits into no memory: each epoch after the first is read from the disk."""
    with essp.Records(raw, batch_size=8) as loader:
        epochs = [taken(loader) for _ in range(2)]
    ranks = [
        essp.Records(raw, batch_size=8, memory=1, disk="1MiB", disk_folder=tmp_path, rank=rank, world_size=2)
        for rank in range(2)
    ]
    first = [taken(loader) for loader in ranks]
    for name in ("get", "open"):
        monkeypatch.setattr(DirectoryStore, name, lambda *_: pytest.fail("the store was asked"))
    for epoch, shares in zip(epochs, (first, [taken(loader) for loader in ranks]), strict=True):
        assert [one for pair in zip(*shares, strict=True) for one in pair] == epoch
    for loader in ranks:
        loader.close()


def test_a_loop_sees_what_reading_costs_it(raw: Path) -> None:
    with essp.Records(raw, batch_size=8, memory=RECORD_BYTES * 16) as loader:
        for _ in range(2):
            taken(loader)
    reading = loader.reading
    assert reading["pieces"] >= 2 * RECORDS // 8
    assert reading["records"] >= 2 * RECORDS
    assert reading["store_bytes"] == reading["records"] * RECORD_BYTES
    assert min(reading[name] for name in ("read_s", "first_s", "stalled_s", "loop_s")) > 0
    assert reading["disk_bytes"] == 0


@given(loop_s=st.floats(0, 10), read_s=st.floats(0, 10), records=st.integers(1, 10**6))
def test_a_piece_grows_as_far_as_it_is_read_in_time_and_at_least_twofold(
    loop_s: float, read_s: float, records: int
) -> None:
    larger = growth(loop_s, read_s) * records
    assert 2 * records <= larger <= 16 * records
    assert larger == 2 * records or larger * read_s <= records * loop_s * (1 + 1e-9)


def test_ranks_have_as_many_records_each(raw: Path) -> None:
    shares = [taken(essp.Records(raw, rank=rank, world_size=3)) for rank in range(3)]
    assert [len(share) for share in shares] == [RECORDS // 3] * 3
    assert len({*shares[0], *shares[1], *shares[2]}) == RECORDS // 3 * 3


def test_with_replacement_samples_are_drawn_anew(raw: Path) -> None:
    with essp.Records(raw, sampling=essp.RecordSampling(replacement=True, sample_size=10)) as loader:
        drawn = taken(loader)
    assert len(drawn) == RECORDS
    assert len(set(drawn)) < RECORDS
    assert all(len(set(drawn[i : i + 10])) == 10 for i in range(0, RECORDS, 10))
    with essp.Records(raw, sampling=essp.RecordSampling(replacement=True)) as loader:
        assert sorted(taken(loader)) == list(range(RECORDS)), "a sample of all"


def test_the_last_batch_may_be_left_out(raw: Path) -> None:
    with essp.Records(raw, batch_size=8, drop_last=True) as loader:
        assert [len(batch) for batch in loader] == [8] * 6
        assert len(loader) == 6
        assert loader.epoch == 1


def test_a_folder_of_the_home_folder_is_there(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with essp.Records(raw, memory=1, disk="1MiB", disk_folder="~/kept") as loader:
        taken(loader)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.processes
def test_a_data_loader_of_torch_takes_it(raw: Path) -> None:
    with essp.Records(raw, batch_size=8) as loader:
        assert len(taken(iter(DataLoader(loader, batch_size=None)))) == RECORDS
        again = pickle.loads(pickle.dumps(loader.map(len)))  # noqa: S301  our own
        assert sum(again) == RECORDS
        again.close()
        assert copy.deepcopy(loader).state_dict() == loader.state_dict()
        with pytest.raises(ConfigError, match="num_workers=0"):
            ask_in_a_worker_of_torch(loader)


@pytest.mark.parametrize(
    ("options", "field", "code"),
    [
        ({"batch_size": -1}, "batch_size", "range"),
        ({"batch_size": 2**70}, "batch_size", "range"),
        ({"batch_size": 2.5}, "batch_size", "type"),
        ({"batch_size": 60, "drop_last": True}, "drop_last", "conflict"),
        ({"size": 0}, "size", "range"),
        ({"size": (4, 0)}, "size", "range"),
        ({"size": (4, 4, 3)}, "size", "type"),
        ({"memory": "much"}, "memory", "type"),
        ({"disk": "much"}, "disk", "type"),
        ({"disk": 0}, "disk", "range"),
        ({"disk_folder": "/tmp"}, "disk_folder", "conflict"),
        ({"rank": 1, "world_size": 51}, "world_size", "range"),
        ({"device": "moon"}, "device", "unknown"),
    ],
)
def test_wrong_arguments_are_named(raw: Path, options: dict[str, Any], field: str, code: ConfigCode) -> None:
    with refused(field, code):
        essp.Records(raw, **options)


def test_a_folder_that_cannot_keep_records_is_named(raw: Path) -> None:
    with pytest.raises(ConfigError, match="/proc/here: records cannot be kept there"):
        essp.Records(raw, disk="1MiB", disk_folder="/proc/here")


@pytest.mark.parametrize(
    ("options", "field", "code"),
    [
        ({"seed": True}, "sampling.seed", "type"),
        ({"seed": -1}, "sampling.seed", "range"),
        ({"replacement": True, "sample_size": 0}, "sampling.sample_size", "range"),
        ({"replacement": True, "sample_size": 2.5}, "sampling.sample_size", "type"),
        ({"sample_size": 5}, "sampling.sample_size", "conflict"),
    ],
)
def test_a_sampling_that_cannot_be_is_refused_where_it_is_made(
    options: dict[str, Any], field: str, code: ConfigCode
) -> None:
    with refused(field, code):
        essp.RecordSampling(**options)


def test_several_sizes_need_one_to_scale_to(mixed: Path, tmp_path: Path) -> None:
    with refused("size", "missing"):
        essp.Records(mixed)
    with pytest.raises(NotFound, match="holds no records; make them with `essp records build`"):
        essp.Records(tmp_path)


def test_pictures_are_scaled_until_they_cover(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    done, data = cv2.imencode(".png", wide)
    assert done
    path = build(tmp_path, [Record(data.tobytes(), 0)])
    with essp.Records(path, size=(20, 20)) as loader:
        [batch] = loader
    assert batch.frames.shape == (1, 1, 20, 20, 3)
    assert batch.frames[0, 0, :, 2:-2].min() > 180, "the centre is what stays"
