"""The interface of a feature. The extractor service computes it.

A feature is a class registered under the entry-point group `essp.extractors`, so another package can add one. Its
declaration (`layout`, `frames_needed`, `output`) is cheap and imports no large library: the master computes credits
from it, and a trainer its input layer. `setup` imports libraries such as OpenCV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from essp_common.job.feature_layout import FeatureLayout

P = TypeVar("P", bound="FeatureParams")
Needs = Literal["colours", "luma", "motion"]
"""What a feature is computed from: colours, only grey levels, or the motion vectors of the codec. A class may declare
it in `needs`; without it, it gets colours, and is refused if clips have none (`clip.pixels: gray`)."""


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
    """The parameters of a feature: one field each, with type, bounds, default and docstring.

    `essp_engine.features.registry` checks a stream's `params` against the fields, and `essp extractor describe` lists
    them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def part(self, kind: type[P]) -> P:
        """The parameters that belong to one of the models from which this one inherits."""
        return kind.model_validate({name: getattr(self, name) for name in kind.model_fields})


class Extractor(Protocol):
    """Computes one feature of a clip. One instance serves one thread."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `essp extractor ls`."""
    layout: ClassVar[FeatureLayout]
    """How to interpret the values, and whether they may be mirrored. A class without it declares `FeatureLayout()`."""
    Params: ClassVar[type[FeatureParams]]
    """The parameters that a stream may set in `params`."""

    def __init__(self, params: Any) -> None:
        """`params`: an instance of `Params`. Imports no large library.

        Raises `ConfigError` if individually valid values contradict each other.
        """

    def frames_needed(self) -> int:
        """The smallest number of frames that a clip must have."""

    def output(self, clip: ArraySpec) -> ArraySpec:
        """Shape and type of the result of `extract` for such a clip."""

    def setup(self) -> None:
        """Import libraries and allocate memory. Called once, in the process and thread that calls `extract`."""

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[Any]:
        """The feature of `clip`, `(T, H, W, 3) uint8, RGB`. Does not modify `clip`."""


@runtime_checkable
class TrackingExtractor(Extractor, Protocol):
    """An extractor whose feature holds tracks of points; `essp extractor preview` draws them on the frames."""

    def paths(self, feature: NDArray[np.float32]) -> Sequence[NDArray[np.float32]]:
        """The points of each track of a result: x and y in px, `(n, 2)`."""


@runtime_checkable
class SignedExtractor(Extractor, Protocol):
    """An extractor whose feature is coded as in `essp_engine.features.quantization`."""

    signed_codes: ClassVar[bool]
