"""The images of the OneAccess paper's experiments: all of CIFAR-10, and 20,000 distinct photographs.

Made once, into `--work`, and kept. The photographs stand for MS-COCO: each is a crop of one of `--photos`, at random
sometimes mirrored, with some noise, about as large as those of ImageNet, so that no file and no decoded image comes
twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.image_sets import CROP, ImageSet
from benchmarks.papers.study import Options
from essp.records.build import BuildOptions, Built, Encode, build
from essp.records.images import decoded, jpeg
from essp.records.sources import SourceOptions, open_source
from essp.uris import as_uri
from essp_common.objects.directory import DirectoryStore
from essp_common.records.versions import DataSet
from essp_common.runtime.cores import cpu_count
from essp_common.wiring import Stores

SMALL, LARGE, QUICK = 50_000, 20_000, 256
TRAIN, TEST = "train", "test"
_LONGER_SIDE = 500
_LEAST_CROP = 0.8
_NOISE = 3.0
"""Standard deviation, in steps of a pixel's value."""
_QUALITY = 97


def cifar(options: Options) -> ImageSet:
    """The training images of CIFAR-10, in the layouts that loaders want."""
    count = QUICK if options.quick else SMALL
    return ImageSet(options.work / f"cifar_{count}", count, str(options.images), TRAIN)


def large(options: Options) -> Path:
    """A folder with the photographs."""
    assert options.photos is not None
    count = QUICK if options.quick else LARGE
    folder = options.work / f"photos_{count}"
    return varied(options.photos, folder, count)


def varied(source: Path, folder: Path, count: int) -> Path:
    """A folder of `count` distinct JPEG files, made from those in `source` if they are not there yet."""
    images = folder / "images"
    if (folder / "made").exists():
        return images
    shutil.rmtree(images, ignore_errors=True)  # of a run that was killed
    images.mkdir(parents=True)
    originals = sorted(path for path in source.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        list(pool.map(partial(_vary, images, len(originals), count), range(len(originals)), originals))
    (folder / "made").touch()
    return images


def _vary(folder: Path, originals: int, count: int, first: int, original: Path) -> None:
    """Write photographs number `first`, `first + originals` and so on, all of one original."""
    image = decoded(original.read_bytes())
    for number, made in enumerate(variants(image, first, len(range(first, count, originals)))):
        (folder / f"{first + number * originals:06}.jpg").write_bytes(jpeg(made, _QUALITY))


def variants(image: NDArray[np.uint8], seed: int, count: int) -> Iterator[NDArray[np.uint8]]:
    """`(H, W, 3)` uint8: crops of an image, their longer side 500, with noise."""
    rng = np.random.default_rng(seed)
    noise = (_NOISE * rng.standard_normal((2 * _LONGER_SIDE, 2 * _LONGER_SIDE, 3), np.float32)).astype(np.int16)
    height, width = image.shape[:2]
    for _ in range(count):
        side = rng.uniform(_LEAST_CROP, 1)
        high, wide = int(side * height), int(side * width)
        top, left = rng.integers(0, height - high + 1), rng.integers(0, width - wide + 1)
        scale = _LONGER_SIDE / max(high, wide)
        shape = max(CROP, round(scale * wide)), max(CROP, round(scale * high))
        made = cv2.resize(image[top : top + high, left : left + wide], shape, interpolation=cv2.INTER_AREA)
        made = made[:, ::-1] if rng.integers(2) else made
        down, across = rng.integers(0, _LONGER_SIDE, 2)
        noisy = made + noise[down : down + made.shape[0], across : across + made.shape[1]]
        yield np.clip(noisy, 0, 255).astype(np.uint8)


def large_records(options: Options, encode: Encode) -> Path:
    """Records of the photographs: `raw`, pixels of 224x224, or `keep`, the files."""
    images = large(options)
    folder = images.with_name(f"records_{encode}")
    if not (folder / "versions").exists():
        built(images, folder, BuildOptions(encode, (CROP, CROP) if encode == "raw" else None))
    return folder


def built(source: Path, out: Path, how: BuildOptions, within: str = "") -> Built:
    """Records of images, as `essp records build` makes them."""
    with open_source(as_uri(str(source)), Stores(("file:///",)), SourceOptions(within)) as found:
        return build(found, DataSet(DirectoryStore.from_url(out.absolute().as_uri())), how)
