"""The experiments of the OneAccess paper run, and all loaders in them show the same images."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import essp
from benchmarks.figures import Scale
from benchmarks.image_epochs import records_coco
from benchmarks.image_peers import Photos, torch_loader
from benchmarks.image_sets import CROP, ImageSet, photograph
from benchmarks.papers.oneaccess import epochs
from benchmarks.papers.oneaccess.limited import _place
from benchmarks.papers.oneaccess.pictures import variants
from benchmarks.papers.study import Options
from benchmarks.records import Files
from essp.records.images import covering, decoded, jpeg

COUNT = 16


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return ImageSet(tmp_path_factory.mktemp("images"), COUNT)


def shown(loader: essp.Records) -> list[bytes]:
    with loader:
        return sorted(image.numpy().tobytes() for batch in loader for image in batch.frames[:, 0])


def test_small_images_are_the_same_in_every_layout(images: ImageSet) -> None:
    pixels = sorted(image.tobytes() for image in np.load(images.pixels))
    assert shown(essp.Records(images.records)) == pixels
    loader = torch_loader(Files(images.files, ".npy"), 4, 0)
    assert sorted(image.numpy().tobytes() for batch, _ in loader for image in batch) == pixels
    assert len(Files(images.files, ".jpg")) == COUNT


def test_photographs_are_the_same_from_records_and_from_files(images: ImageSet) -> None:
    wanted = sorted(
        image.numpy().tobytes() for batch, _ in torch_loader(Photos(images.photos, COUNT), 4, 0) for image in batch
    )
    assert shown(essp.Records(images.photo_records("raw"))) == wanted
    assert shown(essp.Records(images.photo_records("jpeg"), size=CROP)) == wanted


def test_a_made_up_photograph_is_about_as_large_as_one_of_imagenet() -> None:
    assert 80_000 < len(jpeg(photograph(0), 92)) < 140_000


def test_images_of_a_folder_are_taken_evenly(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(8):
        cv2.imwrite(str(tmp_path / "images" / "a" / f"{number}.png"), np.full((40, 50, 3), 30 * number, np.uint8))
    found = np.load(ImageSet(tmp_path / "set", 4, str(tmp_path / "images")).pixels)
    assert found[:, 0, 0, 0].tolist() == [0, 60, 120, 180]
    assert found.shape == (4, 32, 32, 3)
    photo = next(iter(ImageSet(tmp_path / "set", 4, str(tmp_path / "images")).photos.glob("*.jpg")))
    assert covering(decoded(photo.read_bytes()), 8, 8).shape == (8, 8, 3)


@pytest.mark.processes
def test_the_figure_of_coco_is_measured(tmp_path: Path) -> None:
    [coco, files] = records_coco(Scale(tmp_path, rounds=1, quick=True))
    assert coco.aim is not None
    assert (coco.name, coco.aim.least) == ("records_coco", 3.6)
    assert coco.value > 0
    assert "share_of_cpu_time_that_is_decoding" in files.detail


def test_labels_are_those_of_the_folders(tmp_path: Path) -> None:
    for number, name in enumerate(("dog", "cat")):
        (tmp_path / "images" / "train" / name).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "images" / "train" / name / "0.png"), np.full((32, 32, 3), number, np.uint8))
    images = ImageSet(tmp_path / "set", 2, str(tmp_path / "images"), "train")
    assert dict(zip(images.labels.tolist(), np.load(images.pixels)[:, 0, 0, 0].tolist(), strict=True)) == {0: 1, 1: 0}
    with essp.Records(images.records) as loader:
        assert [int(batch.labels[i]) + int(batch.frames[i].max()) for batch in loader for i in range(2)] == [1, 1]


def test_photographs_that_are_made_of_one_are_all_different() -> None:
    made = list(variants(photograph(0), 0, 12))
    assert {max(image.shape) for image in made} == {500}
    assert min(min(image.shape[:2]) for image in made) >= CROP
    assert len({image.tobytes() for image in made}) == 12


def test_a_memory_group_is_made_below_ones_own_or_beside_it() -> None:
    first = _place("5:devices:/\n4:memory:/a/b\n0::/\n")
    assert first == (Path("/sys/fs/cgroup/memory/a/b"), "memory.limit_in_bytes", "memory.max_usage_in_bytes")
    second = _place("0::/user.slice/app.slice/shell.scope\n")
    assert second == (Path("/sys/fs/cgroup/user.slice/app.slice"), "memory.max", "memory.peak")


def test_a_figure_has_the_slowest_batches_of_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 batches: three points, and the longest wait is in the second."""
    waits = [1.0] * 150
    waits[70] = 30.0
    monkeypatch.setattr(epochs, "batch_ms", lambda make: waits)
    monkeypatch.setattr(epochs, "small_loops", lambda *arguments: {"records": None})
    found = epochs.each_batch(Options(tmp_path, images=tmp_path), "records")
    assert (found["every"], found["batches"]) == (50, 150)
    assert (found["slowest_ms"], found["medians_ms"]) == ([1.0, 30.0, 1.0], [1.0, 1.0, 1.0])


def test_a_table_compares_each_loader_with_the_records_of_its_own_step() -> None:
    values = {
        "torch.4.0": {"epochs": {"records": took(1.0), ".jpg files, 1 worker": took(30.0)}},
        "litdata.4.0": {"epochs": {"records": took(2.0), "litdata, 0 workers": took(10.0)}, "version": "7"},
        "records": {"every": 50, "batches": 1, "slowest_ms": [1.0]},
    }
    rows = epochs._rows(values, "4")
    assert {name: ratio for name, (_, _, ratio) in rows.items()} == {
        "records": "1",
        ".jpg files, 1 worker": "30",
        "litdata, 0 workers": "5",
    }
    table = epochs._cifar_table(values)
    assert "litdata 7" in table
    assert "Not measured yet: webdataset, mosaic, tensorflow." in table


def took(seconds: float) -> dict[str, float]:
    return {"s": seconds, "cpu_s": seconds}
