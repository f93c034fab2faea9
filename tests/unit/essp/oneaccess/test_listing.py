"""The paper's listing runs, and the names mean here what they mean there."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
import pytest
import torch

from essp import oneaccess
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.records.versions import DataSet

IMAGES = np.random.default_rng(1).integers(0, 256, (25, 3, 32, 32), np.uint8)
LABELS = [number % 10 for number in range(25)]
NAMES = b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"
LISTING = """
data_store = OneAccess.store.Cifar10(
    input_data_folder=".....",
    max_batches=1,
    batch_size=1,
    rel_sample_size=10,
    max_samples=1,
    transform=[])

# Setup up IR, metadata,
# and initial sample
data_store.initialize()
data_loader = OneAccess.load.DataLoader(
        data_store, epochs=1)

model = MachineLearningModel()
for i in range(data_loader.num_batches):
    batch = data_loader.get_next_batch()
    model.train(batch)
"""
"""Section 3.3 of the paper, with the line breaks that Python needs."""


class Model:
    """Keeps what it is trained on."""

    seen: Counter[bytes]

    def __call__(self) -> Self:
        self.seen = Counter()
        return self

    def train(self, batch: Any) -> None:
        images, labels = batch
        assert images.dtype == torch.uint8
        for image, label in zip(images, labels.tolist(), strict=True):
            self.seen[bytes([label]) + image.numpy().tobytes()] += 1


def files() -> dict[str, bytes]:
    """`cifar-10-batches-bin`, a little smaller."""
    rows = [bytes([label]) + image.tobytes() for label, image in zip(LABELS, IMAGES, strict=True)]
    return {
        "batches.meta.txt": NAMES,
        "data_batch_1.bin": b"".join(rows[:15]),
        "data_batch_2.bin": b"".join(rows[15:]),
        "test_batch.bin": rows[0],
        "readme.html": b"<html>",
    }


ALL = Counter(bytes([label]) + image.tobytes() for label, image in zip(LABELS, IMAGES, strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cifar").mkdir()
    for name, data in files().items():
        (tmp_path / "cifar" / name).write_bytes(data)
    return tmp_path / "cifar"


def test_the_listing_of_the_paper_runs(folder: Path) -> None:
    model = Model()
    exec(LISTING.replace(".....", str(folder)), {"OneAccess": oneaccess, "MachineLearningModel": model})
    assert model.seen == ALL


def test_batches_are_of_all_epochs_and_each_has_every_image_once(folder: Path) -> None:
    store = oneaccess.store.Cifar10(folder, batch_size=10, rel_sample_size=1, seed=3)
    store.initialize()
    loader = oneaccess.load.DataLoader(store, epochs=2)
    assert loader.num_batches == 6
    model = Model()()
    sizes = []
    for _ in range(loader.num_batches):
        batch = loader.get_next_batch()
        sizes.append(len(batch[1]))
        model.train(batch)
    assert sizes == [10, 10, 5] * 2
    assert model.seen == ALL + ALL
    with pytest.raises(StopIteration, match="all 6 batches were taken"):
        loader.get_next_batch()


def test_images_are_transformed_each_time_they_are_drawn(folder: Path) -> None:
    calls: list[torch.Size] = []

    def counted(image: torch.Tensor) -> torch.Tensor:
        calls.append(image.shape)
        return image

    store = oneaccess.store.Cifar10(
        folder, batch_size=25, transform=[counted, lambda image: image.float() / 255, lambda image: image[:, ::2]]
    )
    store.initialize()
    loader = oneaccess.load.DataLoader(store, epochs=2)
    for _ in range(2):
        images, _ = loader.get_next_batch()
        assert images.shape == (25, 3, 16, 32)
        assert images.dtype == torch.float32
        torch.testing.assert_close(
            images.sort(dim=0).values, torch.from_numpy(IMAGES[:, :, ::2] / 255).float().sort(dim=0).values
        )
    loader.close()
    assert calls == [torch.Size((3, 32, 32))] * 50


def test_with_replacement_samples_are_drawn_from_all_images(folder: Path) -> None:
    store = oneaccess.store.Cifar10(folder, batch_size=5, rel_sample_size=1, replacement=True)
    store.initialize()
    loader = oneaccess.load.DataLoader(store)
    model = Model()()
    for _ in range(loader.num_batches):
        model.train(loader.get_next_batch())
    assert model.seen.total() == 25
    assert set(model.seen) < set(ALL)


def test_the_representation_is_made_once_from_whatever_holds_cifar_10(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, data in files().items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    for label, category in enumerate(NAMES.split()):
        (tmp_path / "images" / category.decode()).mkdir(parents=True)
        for number in np.flatnonzero(np.array(LABELS) == label).tolist():
            pixels = IMAGES[number].transpose(1, 2, 0)[..., ::-1]
            cv2.imwrite(str(tmp_path / "images" / category.decode() / f"{number}.png"), pixels)
    for place in (folder, tmp_path / "cifar-10-binary.tar.gz", tmp_path, tmp_path / "images"):
        ir = tmp_path.parent / f"{tmp_path.name}-{place.name}"
        store = oneaccess.store.Cifar10(place, batch_size=25, ir_folder=ir)
        with pytest.raises(NotFound, match="holds no records"):
            oneaccess.load.DataLoader(store)
        for _ in range(2):
            store.initialize()
        assert DataSet(DirectoryStore.from_url(ir.as_uri())).versions() == [1]
        model = Model()()
        model.train(oneaccess.load.DataLoader(store).get_next_batch())
        assert model.seen == ALL


def test_two_processes_may_initialize_one_representation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one was done while this one read the images."""
    source = oneaccess.store.Cifar10._source

    def slow(store: oneaccess.store.Cifar10) -> Any:
        monkeypatch.setattr(oneaccess.store.Cifar10, "_source", source)
        oneaccess.store.Cifar10(folder).initialize()
        return source(store)

    monkeypatch.setattr(oneaccess.store.Cifar10, "_source", slow)
    store = oneaccess.store.Cifar10(folder, batch_size=25)
    store.initialize()
    model = Model()()
    model.train(oneaccess.load.DataLoader(store).get_next_batch())
    assert model.seen == ALL


def test_images_of_several_sizes_become_those_of_cifar_10(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for side in (24, 32, 50):
        cv2.imwrite(str(tmp_path / "images" / "cat" / f"{side}.png"), np.full((side, 40, 3), side, np.uint8))
    store = oneaccess.store.Cifar10(tmp_path / "images", batch_size=3)
    store.initialize()
    images, _ = oneaccess.load.DataLoader(store).get_next_batch()
    assert images.shape == (3, 3, 32, 32)
    assert sorted(images[:, 0, 0, 0].tolist()) == [24, 32, 50]


def test_images_of_coco_are_cropped_once_and_labelled_by_their_largest_object(tmp_path: Path) -> None:
    (tmp_path / "train2017").mkdir()
    for number, shade in ((1, 40), (2, 200)):
        cv2.imwrite(str(tmp_path / "train2017" / f"{number}.png"), np.full((250, 300, 3), shade, np.uint8))
    boxes = [(1, 7, [0, 0, 9, 9]), (1, 8, [0, 0, 90, 90]), (2, 7, [5, 5, 20, 20])]
    annotations = {
        "images": [{"id": number, "file_name": f"{number}.png"} for number in (1, 2)],
        "categories": [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}],
        "annotations": [
            {"id": number, "image_id": image, "category_id": category, "bbox": box}
            for number, (image, category, box) in enumerate(boxes)
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(annotations))
    store = oneaccess.store.CocoDetection(
        annFile=tmp_path / "instances.json", input_data_folder=tmp_path / "train2017", batch_size=2, rel_sample_size=1
    )
    store.initialize()
    images, labels = oneaccess.load.DataLoader(store).get_next_batch()
    assert images.shape == (2, 3, 224, 224)
    assert sorted(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True)) == [(40, 1), (200, 0)]


@pytest.mark.parametrize("name", ["max_batches", "batch_size", "rel_sample_size", "max_samples"])
def test_numbers_that_are_none_are_named(name: str, tmp_path: Path) -> None:
    for wrong in (0, -1, 1.5):
        arguments: dict[str, Any] = {name: wrong}
        with pytest.raises(ConfigError, match=name):
            oneaccess.store.Cifar10(tmp_path, **arguments)
