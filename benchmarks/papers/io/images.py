"""Images for the I/O experiments, made once and kept: as many and as large as those of the paper.

They are crops of a few large pictures with the spectrum of natural images, so that a file is about as large as one of
ImageNet and as slow to decode; no two are the same. Part p of `PARTS` is a folder `p`, for a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from benchmarks.image_sets import Images, photograph
from essp.bench.sources import Shape, Source, open_source
from essp_common.wiring import Stores

PARTS = 4
_PICTURES = 32
STORES = Stores(("file:///",))


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """A set of JPEG files."""

    name: str
    count: int
    height: int
    width: int
    quality: int

    def make(self, work: Path, quick: bool) -> Path:
        """The folder with the files, which are made if they are not there."""
        count = 64 * PARTS if quick else self.count
        folder = work / f"{self.name}-{count}"
        if (folder / "made").exists():
            return folder
        pictures = [_enlarged(photograph(number)) for number in range(_PICTURES)]
        for number in range(count):
            path = folder / str(number % PARTS) / f"{number:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(
                str(path), self._crop(pictures[number % _PICTURES], number), [cv2.IMWRITE_JPEG_QUALITY, self.quality]
            )
        (folder / "made").touch()
        return folder

    def _crop(self, picture: Images, number: int) -> Images:
        rng = np.random.default_rng((7, number))
        top = rng.integers(0, picture.shape[0] - self.height + 1)
        left = rng.integers(0, picture.shape[1] - self.width + 1)
        found = picture[top : top + self.height, left : left + self.width]
        return np.ascontiguousarray(found[:, ::-1] if rng.integers(2) else found)


IMAGENET = ImageFiles("imagenet", 16_384, 375, 500, 94)
"""Sizes as in the paper: a median of 113 KiB, there 112 KB."""
CALTECH = ImageFiles("caltech", 9_144, 200, 300, 62)
"""As many images as Caltech 101 has, with a median of about 12 KB."""


def source_of(folder: Path, side: int = 224) -> Source:
    """The images of a folder, as `essp bench` reads them."""
    return open_source(folder.absolute().as_uri(), STORES, Shape(side))


def median_bytes(folder: Path) -> float:
    """The median size of a file."""
    return float(np.median([path.stat().st_size for path in folder.rglob("*.jpg")]))


def _enlarged(picture: Images) -> Images:
    """Twice as many pixels each way, with new noise at the finest scale, as compressible as before."""
    height, width = picture.shape[:2]
    tiled = np.tile(picture, (2, 2, 1))
    tiled[:, width:] = tiled[:, width:][:, ::-1]
    tiled[height:] = tiled[height:][::-1]  # edges continue each other
    return tiled
