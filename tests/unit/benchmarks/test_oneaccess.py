"""The experiments of the OneAccess paper run, and all loaders in them show the same images."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

import essp
from benchmarks.figures import Scale
from benchmarks.image_peers import Photos, torch_loader
from benchmarks.image_sets import CROP, ImageSet, photograph
from benchmarks.oneaccess import main, records_coco
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


def test_a_run_leaves_a_table_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(images="", within="", photos="", only=["samples"], count=COUNT, rounds=1, folder=tmp_path, results=tmp_path)
    assert "sample 32x32        10 " in capsys.readouterr().out
    found = json.loads((tmp_path / "oneaccess.json").read_text())
    assert [one["size"] for one in found["samples"]] == [1, 10, 1]
    assert (tmp_path / "oneaccess.png").stat().st_size > 1000
