"""What a feature is: declared here, computed by the extractor service.

A feature is a class registered under the entry-point group `essp.extractors`, so another package can add
one. Declaring (`frames_needed`, `output`) is cheap and imports nothing heavy: the master sizes its credits by
it and a trainer its input layer. `setup` is where OpenCV and the like are imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and type of an array. Video arrays are `(T, H, W, C)`."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the raw array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Extractor(Protocol):
    """Makes one feature of a clip. One instance serves one thread; it is built with the stream's parameters.

    `__init__(**params)` raises `ConfigError` for parameters that make no sense, and imports nothing heavy.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `essp extractor ls`."""

    def frames_needed(self) -> int:
        """The fewest frames a clip must have."""

    def output(self, clip: ArraySpec) -> ArraySpec:
        """What `extract` gives for such a clip."""

    def setup(self) -> None:
        """Import libraries and allocate; called once, in the process and thread that will extract."""

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[Any]:
        """The feature of `clip`, `(T, H, W, 3) uint8, RGB`. Does not write to `clip`."""


def describe(extractor: Extractor) -> dict[str, Any]:
    """An extractor's declaration as plain data: name, summary, parameters (from its constructor), frames needed."""
    import inspect

    parameters = inspect.signature(type(extractor).__init__).parameters
    return {
        "name": extractor.name,
        "summary": extractor.summary,
        "params": {n: p.default for n, p in parameters.items() if n not in ("self", "args", "kwargs")},
        "frames_needed": extractor.frames_needed(),
    }
