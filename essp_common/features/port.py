"""What a feature is: declared here, computed by the extractor service.

A feature is a class registered under the entry-point group `essp.extractors`, so another package can add
one. Declaring (`frames_needed`, `output`) is cheap and imports nothing heavy: the master sizes its credits by
it and a trainer its input layer. `setup` is where OpenCV and the like are imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

P = TypeVar("P", bound="FeatureParams")


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and type of an array. Video arrays are `(T, H, W, C)`."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the raw array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class FeatureParams(BaseModel):
    """The parameters of a feature: one field each, with its type, bounds and default, and a docstring below it.

    `essp_common.features.registry` checks a stream's `params` against it, and `essp extractor describe` lists it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def part(self, kind: type[P]) -> P:
        """The parameters of one of the models that this one inherits."""
        return kind.model_validate({name: getattr(self, name) for name in kind.model_fields})


class Extractor(Protocol):
    """Makes one feature of a clip. One instance serves one thread."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `essp extractor ls`."""
    Params: ClassVar[type[FeatureParams]]
    """What a stream may set in `params`."""

    def __init__(self, params: Any) -> None:
        """`params`: an instance of `Params`. Imports nothing heavy.

        Raises `ConfigError` for values that are allowed one by one and make no sense together.
        """

    def frames_needed(self) -> int:
        """The fewest frames a clip must have."""

    def output(self, clip: ArraySpec) -> ArraySpec:
        """What `extract` gives for such a clip."""

    def setup(self) -> None:
        """Import libraries and allocate; called once, in the process and thread that will extract."""

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[Any]:
        """The feature of `clip`, `(T, H, W, 3) uint8, RGB`. Does not write to `clip`."""


def describe(extractor: Extractor) -> dict[str, Any]:
    """An extractor's declaration as plain data: name, summary, parameters with defaults, frames needed."""
    return {
        "name": extractor.name,
        "summary": extractor.summary,
        "params": {name: None if f.is_required() else f.default for name, f in extractor.Params.model_fields.items()},
        "frames_needed": extractor.frames_needed(),
    }
