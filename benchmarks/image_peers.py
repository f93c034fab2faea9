"""Loaders of images that people use: torch's `DataLoader` over files, webdataset, LitData and MosaicML Streaming.

All shuffle, and give batches of uint8 images and labels. The last three are measured where they are installed
(`pip install webdataset litdata mosaicml-streaming`), and read the pixels as numbers, as records are read here; theirs
is the quickest layout that each has for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from benchmarks.image_sets import CROP, ImageSet, written_by
from benchmarks.records import Files
from essp.records.images import covering, decoded

_MODULES = {"webdataset": "webdataset", "litdata": "litdata", "mosaic": "streaming"}
_SHUFFLED = 1000
"""webdataset: images that are mixed at a time."""


class Photos(Files):
    """Photographs again and again, decoded, scaled and cut to 224x224."""

    def __init__(self, folder: Path, count: int, side: int = CROP) -> None:
        super().__init__(folder, ".jpg")
        self._count = count
        self._side = side

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        image = decoded(self._paths[index % len(self._paths)].read_bytes())
        return np.ascontiguousarray(covering(image, self._side, self._side)), 0


def torch_loader(data_set: Dataset[Any], batch_size: int, workers: int) -> Iterable[Any]:
    """As its documentation has it."""
    return DataLoader(data_set, batch_size, shuffle=True, num_workers=workers)


@cache
def installed() -> dict[str, Any]:
    """The peers that can be imported here."""
    import essp_engine.learning.torchvision_compat  # noqa: F401  MosaicML imports torchvision

    found = {}
    for name, module in _MODULES.items():
        try:
            found[name] = import_module(module)
        except (ImportError, OSError, RuntimeError):
            continue
    return found


def missing() -> list[str]:
    """Sentences about those that cannot."""
    return [f"{name} is not installed here and was not measured" for name in _MODULES if name not in installed()]


def peer_loader(name: str, images: ImageSet, batch_size: int, workers: int) -> Iterable[Any]:
    """One of `installed()` over 32x32 images."""
    module = installed()[name]
    path = str(written_by(name, images))
    if name == "webdataset":
        shards = module.WebDataset(path, shardshuffle=False, nodesplitter=None).shuffle(_SHUFFLED)
        batches = shards.decode().to_tuple("npy", "cls").batched(batch_size)
        return module.WebLoader(batches, batch_size=None, num_workers=min(workers, 1))  # type: ignore[no-any-return]
    if name == "litdata":
        return module.StreamingDataLoader(  # type: ignore[no-any-return]
            module.StreamingDataset(path, shuffle=True), batch_size=batch_size, num_workers=workers
        )
    data_set = module.StreamingDataset(local=path, shuffle=True, batch_size=batch_size)
    return DataLoader(data_set, batch_size, num_workers=workers)
