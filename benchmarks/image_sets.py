"""Sets of images, laid out as each loader wants them: files, records, and the formats of the peers that are installed.

They are made once and kept. Small ones are 32x32 as CIFAR-10 has them; photographs have 375x500 pixels and the spectrum
of natural images, so that a JPEG file of one is about as large, and as slow to decode, as one of ImageNet. Or they come
from a folder or archive of images (`essp records build` takes the same).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from essp.records.images import covering, decoded, jpeg
from essp.records.sources import SourceOptions, open_source
from essp.uris import as_uri
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Encoding, Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from essp_common.wiring import Stores

Images = NDArray[np.uint8]
CLASSES = tuple("abcdefghij")
SMALL, CROP = 32, 224
_PHOTO = (375, 500)
_QUALITY = 92


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A folder in which layouts of the same images are made when they are asked for."""

    folder: Path
    count: int
    source: str = ""
    """A folder or archive of images; empty: they are made up."""
    within: str = ""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Indices of their classes, in the order of `pixels`."""
        return np.asarray(np.load(self.pixels.with_name("labels.npy")))

    @property
    def pixels(self) -> Path:
        """One .npy file with all of them, 32x32."""
        path = self._new("pixels.npy")
        if not path.exists():
            labels, images = zip(*((label, _small(image)) for label, image in self._images(SMALL)), strict=True)
            np.save(path.with_name("labels.npy"), np.array(labels, np.int64))
            np.save(path, np.stack(images))
        return path

    @property
    def files(self) -> Path:
        """A .npy and a .jpg file an image, 32x32."""
        path = self._new("files")
        if not (path / "made").exists():
            path.mkdir(exist_ok=True)
            for number, image in enumerate(np.load(self.pixels)):
                np.save(path / f"{number:06}.npy", image)
                (path / f"{number:06}.jpg").write_bytes(jpeg(image, 95))
            (path / "made").touch()
        return path

    @property
    def records(self) -> Path:
        """Records of 32x32 pixels."""
        path = self._new("records")
        if not (path / "versions").exists():
            pairs = zip(np.load(self.pixels), self.labels.tolist(), strict=True)
            write(path, (Record.of_image(image, label) for image, label in pairs))
        return path

    @property
    def photos(self) -> Path:
        """JPEG files of photographs, as many as there are, at most 200."""
        path = self._new("photos")
        if not (path / "made").exists():
            path.mkdir(exist_ok=True)
            for number, (_, image) in enumerate(islice(self._images(0), 200)):
                (path / f"{number:06}.jpg").write_bytes(jpeg(image, _QUALITY))
            (path / "made").touch()
        return path

    def photo_records(self, encode: str) -> Path:
        """The photographs again and again, `count` records: `raw`, scaled and cut to 224x224, or `jpeg`, the files."""
        path = self._new(f"photos_{encode}")
        if not (path / "versions").exists():
            data = [file.read_bytes() for file in sorted(self.photos.glob("*.jpg"))]
            if encode == "raw":
                made = [Record.of_image(np.ascontiguousarray(covering(decoded(one), CROP, CROP)), 0) for one in data]
            else:
                made = [Record(one, 0, Encoding.ENCODED) for one in data]
            write(path, (made[i % len(made)] for i in range(self.count)))
        return path

    def _new(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def _images(self, side: int) -> Iterator[tuple[int, Images]]:
        """`count` of them, with the numbers of their classes; `side` 0: photographs."""
        if not self.source:
            for number in range(self.count):
                yield number % len(CLASSES), _small_made_up(number) if side else photograph(number)
            return
        with open_source(as_uri(self.source), Stores(("file:///",)), SourceOptions(self.within)) as source:
            numbers = {name: number for number, name in enumerate(source.labels)}
            step = max(1, len(source.items) // self.count)
            for item in source.items[: step * self.count : step]:
                data = item.read()
                if isinstance(data, bytes):
                    image = decoded(data)
                else:
                    image = np.frombuffer(data.data, np.uint8).reshape(data.height, data.width, data.channels)
                yield numbers.get(item.label, 0), image


def write(path: Path, records: Iterator[Record]) -> None:
    """A data set of them."""
    with Writer(DataSet(DirectoryStore.from_url(path.absolute().as_uri())), CLASSES) as writer:
        for record in records:
            writer.add(record)


def photograph(number: int) -> Images:
    """`(375, 500, 3)`: noise in octaves, each half as strong as the coarser one, as in natural images."""
    rng = np.random.default_rng(number)
    height, width = _PHOTO
    total = np.zeros((height, width, 3), np.float32)
    strength, cell = 64.0, 128
    while cell:
        shape = (height // cell + 2, width // cell + 2, 3)
        noise = rng.standard_normal(shape).astype(np.float32)
        total += strength * cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
        strength, cell = strength / 1.3, cell // 2
    return np.asarray(np.clip(total + 128, 0, 255), np.uint8)


def _small_made_up(number: int) -> Images:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (SMALL // 8, SMALL // 8, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (SMALL, SMALL)), np.uint8)


def _small(image: Images) -> Images:
    return np.ascontiguousarray(covering(image, SMALL, SMALL))


class Item:
    """What LitData writes of an image; made in its own processes."""

    def __init__(self, pixels: Path) -> None:
        self._pixels = pixels

    def __call__(self, number: int) -> dict[str, Any]:
        """The image of this number."""
        image = np.load(self._pixels, mmap_mode="r")[number]
        return {"image": np.array(image), "label": number % len(CLASSES)}


def written_by(name: str, images: ImageSet) -> Path:
    """The images in the format of a peer: `webdataset`, `litdata` or `mosaic`.

    Written in a process of its own: LitData changes how processes are started from then on.
    """
    path = images.folder / name
    done = images.folder / f"{name}.made"
    if not done.exists():
        writer = get_context("spawn").Process(target=_write, args=(name, images.pixels, path))
        writer.start()
        writer.join()
        if writer.exitcode:
            raise RuntimeError(f"{name} could not write its files; its error stands above")
        done.touch()
    return path


def _write(name: str, pixels: Path, path: Path) -> None:
    import essp_engine.learning.torchvision_compat  # noqa: F401  MosaicML imports torchvision

    module: Any = import_module({"mosaic": "streaming"}.get(name, name))
    item, numbers = Item(pixels), range(len(np.load(pixels, mmap_mode="r")))
    if name == "webdataset":
        with module.TarWriter(str(path)) as writer:
            for number in numbers:
                made = item(number)
                writer.write({"__key__": f"{number:06}", "npy": made["image"], "cls": made["label"]})
    elif name == "mosaic":
        columns = {"image": f"ndarray:uint8:{SMALL},{SMALL},3", "label": "int"}
        with module.MDSWriter(out=str(path), columns=columns) as writer:
            for number in numbers:
                writer.write(item(number))
    else:
        module.optimize(fn=item, inputs=list(numbers), output_dir=str(path), chunk_bytes="64MB", num_workers=1)
