"""The location of the data: `store.Cifar10` and `store.CocoDetection`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from essp.api.arguments import whole_number
from essp.api.loader_arguments import RecordSampling
from essp.api.records import Records
from essp.records.build import BuildOptions, build
from essp.records.sources import SourceOptions, open_source
from essp.uris import as_uri
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

_ARCHIVE = "cifar-10-binary.tar.gz"


class Store(ABC):
    """Images of one size, and how to sample them."""

    side: ClassVar[int]
    """Height and width of the images."""

    def __init__(
        self,
        input_data_folder: str | Path,
        max_batches: int = 1,
        batch_size: int = 1,
        rel_sample_size: int = 1000,
        max_samples: int = 1,
        transform: Sequence[Callable[[Tensor], Tensor]] = (),
        *,
        replacement: bool = False,
        seed: int = 0,
        ir_folder: str | Path | None = None,
    ) -> None:
        """Set up the store. Nothing is read before `initialize`.

        input_data_folder: path or URI of the images.
        max_batches: number of batches in a queue. It is checked but has no effect, because there is no queue here: a
            batch is cut out of memory on request.
        batch_size: images per batch.
        rel_sample_size: size of a sample, in batches. At least two samples are in memory: the one in use, and
            `max_samples` ahead of it. If all images fit into these, they are read once.
        max_samples: number of samples to read ahead.
        transform: called in order for each image, `(3, side, side)` uint8, RGB, each time that it is drawn; in threads.
        replacement: draw each sample from all images, instead of using each image once per epoch.
        seed: the same seed gives the same batches.
        ir_folder: location of the intermediate representation (default: `input_data_folder` with `.records`
            appended). An existing one is used as it is.

        Raises `ConfigError`, which names the argument.
        """
        whole_number("max_batches", max_batches, 1)
        self._batch_size = whole_number("batch_size", batch_size, 1)
        self._sample_size = self._batch_size * whole_number("rel_sample_size", rel_sample_size, 1)
        self._samples = 1 + whole_number("max_samples", max_samples, 1)
        self.transforms = tuple(transform)
        self._replacement = replacement
        self._seed = whole_number("seed", seed, 0)
        self._input = as_uri(str(input_data_folder))
        self._ir = as_uri(str(ir_folder)) if ir_folder is not None else f"{self._input.rstrip('/')}.records"
        settings = Settings()
        self._stores = Stores(settings.stores, settings.store_patience_s)

    def initialize(self) -> None:
        """Write the intermediate representation unless it exists: the pixel values of the images, in files of 256 MiB.

        The first sample is read when the first batch is requested. It is only one batch long, so this is fast.
        """
        data_set = DataSet(self._stores.under(self._ir))
        if data_set.versions():
            return
        uri, options, size = self._source()
        with open_source(uri, self._stores, options) as source:
            try:
                build(source, data_set, BuildOptions("raw", size))
            except (Conflict, ConfigError):
                if not data_set.versions():  # otherwise another process has just written it
                    raise

    def records(self) -> Records:
        """The loader from which `load.DataLoader` takes batches. Raises `NotFound` before `initialize`."""
        reader = RecordReader(DataSet(self._stores.under(self._ir)))
        image_bytes = int(reader.table["length"].max(initial=1))
        return Records(
            self._ir,
            batch_size=self._batch_size,
            sampling=RecordSampling(self._seed, self._replacement, self._sample_size if self._replacement else None),
            size=self.side if reader.shape is None else None,
            transform=self._transformed if self.transforms else None,
            memory=self._samples * self._sample_size * image_bytes,
        )

    @abstractmethod
    def _source(self) -> tuple[str, SourceOptions, tuple[int, int] | None]:
        """The URI of the images, what is taken of them, and the size to which they are scaled when they are written."""

    def _transformed(self, frames: NDArray[Any], _: np.random.Generator) -> NDArray[Any]:
        image = torch.from_numpy(frames[0].transpose(2, 0, 1).copy())
        for transform in self.transforms:
            image = transform(image)
        made: NDArray[Any] = image.numpy()
        return made


class Cifar10(Store):
    """The training images of CIFAR-10.

    `input_data_folder`: `cifar-10-batches-bin`, `cifar-10-binary.tar.gz`, a folder that contains one of these, or a
    folder with a folder of images for each class. Images of different sizes are scaled until they cover 32 x 32 pixels,
    and cropped at their centres.
    """

    side = 32

    def _source(self) -> tuple[str, SourceOptions, tuple[int, int] | None]:
        try:
            self._stores.under(self._input).head(_ARCHIVE)
        except NotFound:
            return self._input, SourceOptions(), None
        return f"{self._input.rstrip('/')}/{_ARCHIVE}", SourceOptions(), None


class CocoDetection(Store):
    """The images of MS-COCO that have objects, each with the category of its largest one.

    They are scaled until they cover 224 x 224 pixels and cropped at their centres, once, in `initialize`.
    """

    side = 224

    def __init__(self, annFile: str | Path, input_data_folder: str | Path, **arguments: Any) -> None:  # noqa: N803
        """`annFile`: the annotations, such as `instances_train2017.json`. `input_data_folder`: folder or archive of
        their images. The other arguments are those of `Store`."""
        self._annotations = as_uri(str(annFile))
        super().__init__(input_data_folder, **arguments)

    def _source(self) -> tuple[str, SourceOptions, tuple[int, int] | None]:
        return self._annotations, SourceOptions(images=self._input, whole=True), (self.side, self.side)
