"""Features known only by declaration, because their code is in an extractor's image and not in this process.

The master needs the shape and the type of a feature's output to reserve memory for it, and a trainer needs to know how
to interpret the values. The registration of an extractor declares both, the shape in terms of the clip's `(T, H, W,
3)`:

    output: {shape: [1, H, W, "2*T-2"], dtype: uint8}
    layout: {values: signed, mirrored: horizontal_motion}

A dimension is a number, or one of `T`, `H` and `W`, with an optional factor before it and an optional divisor and
addend after it: `T`, `T-1`, `2*T`, `2*T-2`, `H/16`, `W/16+1`. Divisions round up, so that the reserved memory is never
too small.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_engine.features.port import ArraySpec

_TERM = re.compile(r"(?:(\d{1,4})\*)?([THW])(?:/([1-9]\d{0,3}))?([+-]\d{1,6})?")

_MOST = 2**31 - 1


def _checked(dimension: int | str) -> int | str:
    if isinstance(dimension, str) and _TERM.fullmatch(dimension.replace(" ", "")) is None:
        raise ValueError(f"{dimension!r} is not a dimension; write a number, or for example T, T-1, 2*T, H/16")
    if isinstance(dimension, int) and not 1 <= dimension <= _MOST:
        raise ValueError(f"a dimension is between 1 and {_MOST}")
    return dimension


Dimension = Annotated[int | str, AfterValidator(_checked)]


class DeclaredOutput(BaseModel):
    """Shape and type of a feature's output."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    shape: tuple[Dimension, ...] = Field(min_length=1, max_length=6)
    """Dimensions, in terms of the clip's `T` frames of `H` x `W` pixels; streams for networks are `(T, H, W, C)`."""
    dtype: Literal["uint8", "uint16", "int16", "float16", "float32"] = "uint8"

    def of(self, clip: ArraySpec) -> ArraySpec:
        """Shape and type of the output for `clip`. Raises `ConfigError` if a dimension is smaller than 1."""
        sizes = dict(zip("THW", clip.shape, strict=False))
        return ArraySpec(tuple(_size(dimension, sizes) for dimension in self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class DeclaredFeature:
    """The declaration of a feature."""

    name: str
    frames_needed: int
    """The smallest number of frames that a clip must have."""
    output: DeclaredOutput
    layout: FeatureLayout


def _size(dimension: int | str, sizes: dict[str, int]) -> int:
    if isinstance(dimension, int):
        return dimension
    match = _TERM.fullmatch(dimension.replace(" ", ""))
    if match is None:
        raise ConfigError(f"{dimension!r} is not a dimension")
    factor, letter, divisor, addend = match.groups()
    size = -(-sizes[letter] * int(factor or 1) // int(divisor or 1)) + int(addend or 0)
    if size < 1:
        raise ConfigError(
            f"dimension {dimension!r} is {size} with {letter} = {sizes[letter]}; it must be 1 or more", code="range"
        )
    return size
