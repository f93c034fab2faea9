"""Loaders of images that people use: torch's `DataLoader` over files, webdataset, LitData and MosaicML Streaming.

All shuffle, and give batches of uint8 images and labels. The last three are measured where they are installed
(`pip install webdataset litdata mosaicml-streaming`), and read the pixels as numbers, as records are read here; theirs
is the quickest layout that each has for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from benchmarks.image_sets import CROP, ImageSet, written_by
from benchmarks.records import Files
from essp.records.images import covering, decoded

_PEERS = {
    "webdataset": ("webdataset", "webdataset"),
    "litdata": ("litdata", "litdata"),
    "mosaic": ("streaming", "mosaicml-streaming"),
}
"""Name -> module and distribution."""
NAMES = tuple(_PEERS)
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


def installed() -> list[str]:
    """The peers that are installed here."""
    return [name for name, (module, _) in _PEERS.items() if find_spec(module) is not None]


@cache
def imported(name: str) -> Any:
    """The module of a peer."""
    import essp_engine.learning.torchvision_compat  # noqa: F401  MosaicML imports torchvision

    return import_module(_PEERS[name][0])


def version_of(name: str) -> str:
    """The version of an installed peer."""
    return version(_PEERS[name][1])


def peer_loader(name: str, images: ImageSet, batch_size: int, workers: int) -> Iterable[Any]:
    """One of `installed()` over 32x32 images."""
    module = imported(name)
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
