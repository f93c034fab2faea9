"""Frames that keep the colour space of their video until a picture is needed: YUV 4:2:0, or luma alone.

A decoder gives luma for each pixel and two chroma values for each square of 2 x 2. That is half the bytes of RGB, and a
third of the cost to scale. So a job may keep such frames (`clip.pixels`) up to the device that trains on them, where a
single function converts them to RGB. In memory,

    rgb     (T, H, W, 3) uint8      red, green, blue
    yuv420  (T, 3H/2, W) uint8      H rows of luma, then the two chroma planes of H/2 x W/2, one after the other (I420)
    gray    (T, H, W, 1) uint8      luma

The values of the last two have the meaning declared by their video: its matrix (`MATRICES`) and its range. They are
accompanied by a `Colour`, which is in the header of a cache value.

**The conversion** is defined in integers, so that every device gives the same picture. In units of 1/32 level,

    luma    L = 32 Y                            for the full range
            L = 37 Y + floor(Y / 4) - 594       for the limited range, 16 to 235: 32 * 255 / 219 (Y - 16)
    chroma  C = floor((a (U - 128) + b (V - 128) + 1024) / 2048), a and b per channel: 65536 times the matrix
    level   clip(floor((L + C + 16) / 32), 0, 255)

The chroma of a square applies to its four pixels. The result differs by at most 0.59 levels from the real-valued
conversion: 0.5 by rounding, 0.07 by L, 0.02 by C. All sums fit into 16 bits, in which processors calculate twice as
fast as in 32. `essp_engine.learning.colour` is the same for torch; tests compare the two for all values, and with
libswscale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MATRICES = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "fcc": (0.30, 0.11),
    "smpte240m": (0.212, 0.087),
}
"""Name -> weights of red and blue in luma (ITU-T H.273, table 4)."""
COLOURS = tuple((matrix, full) for matrix in MATRICES for full in (False, True))

Pictures = NDArray[np.uint8]
"""`(T, H, W, 3)` RGB, or `(T, H, W, 1)` grey levels; uint8, full range."""

_SHIFT = 5
_FRACTION = 16
"""Fractional bits of the matrix."""
_CHROMA_SHIFT = _FRACTION - _SHIFT
_TWICE = np.uint32(0x10001)
"""Multiplying a 16-bit number by this copies it into both halves."""


@dataclass(frozen=True, slots=True)
class Colour:
    """The colour space of a video's frames."""

    matrix: str = "bt601"
    full: bool = False
    """The full range, 0 to 255, instead of 16 to 235 for luma and 16 to 240 for chroma."""


class Coefficients(NamedTuple):
    """The integer coefficients of the conversion."""

    luma: int
    quarter: bool
    """Whether a quarter of luma is added."""
    offset: int
    """Added to each level, in 1/32: the black point, and half a level for rounding."""
    chroma: tuple[tuple[int, int], ...]
    """For red, green and blue: the factors of U and V, in 1/65536."""


@cache
def coefficients(colour: Colour) -> Coefficients:
    """The coefficients of the conversion. Raises `KeyError` for an unknown matrix."""
    red, blue = MATRICES[colour.matrix]
    green = 1 - red - blue
    chroma = 1.0 if colour.full else 255 / 224
    real = (
        (0.0, 2 * (1 - red)),
        (-2 * (1 - blue) * blue / green, -2 * (1 - red) * red / green),
        (2 * (1 - blue), 0.0),
    )
    whole = tuple((round(a * chroma * 2**_FRACTION), round(b * chroma * 2**_FRACTION)) for a, b in real)
    half = 1 << (_SHIFT - 1)
    return Coefficients(32, False, half, whole) if colour.full else Coefficients(37, True, half - 594, whole)


def height_of(planes: tuple[int, ...]) -> int:
    """Height of the pictures in an array of YUV 4:2:0 of this shape, `(T, 3H/2, W)`."""
    return planes[1] * 2 // 3


def pictures(frames: NDArray[Any], colour: Colour | None) -> NDArray[Any]:
    """Frames as stored in the cache -> RGB or grey levels, uint8; frames without `colour` are returned unchanged."""
    if colour is None:
        return frames
    return grey(frames, colour)[..., np.newaxis] if frames.ndim == 4 else _rgb(frames, colour)


def grey(frames: NDArray[np.uint8], colour: Colour) -> NDArray[np.uint8]:
    """Grey levels of frames of YUV 4:2:0 or of luma, `(T, H, W) uint8`, full range.

    They equal the levels of a grey picture's RGB; for the full range they are luma itself, as a view.
    """
    luma = frames[..., 0] if frames.ndim == 4 else frames[:, : height_of(frames.shape)]
    if colour.full:
        return luma
    numbers = coefficients(colour)
    made = np.empty(luma.shape, np.uint8)
    for plane, levels in zip(luma, made, strict=True):  # plane by plane, while each is in the processor's cache
        levels[...] = _levels(_light(plane, numbers), np.int16(numbers.offset))
    return made


def _rgb(frames: NDArray[np.uint8], colour: Colour) -> Pictures:
    count, _, width = frames.shape
    height = height_of(frames.shape)
    numbers = coefficients(colour)
    made = np.empty((count, height, width, 3), np.uint8)
    for frame, picture in zip(np.ascontiguousarray(frames), made, strict=True):
        _convert(frame.reshape(-1), picture.reshape(height // 2, 2, width, 3), numbers)
    return made


def _convert(planes: NDArray[np.uint8], picture: Pictures, numbers: Coefficients) -> None:
    """Fill `picture`, `(H/2, 2, W, 3)`, from the bytes of a frame."""
    rows, _, width, _ = picture.shape
    pixels = 2 * rows * width
    light = _light(planes[:pixels].reshape(rows, 2, width), numbers)
    u, v = planes[pixels:].reshape(2, rows, width // 2).astype(np.int32) - 128
    for channel, (by_u, by_v) in enumerate(numbers.chroma):
        term = by_u * u + by_v * v
        term += 1 << (_CHROMA_SHIFT - 1)
        term >>= _CHROMA_SHIFT
        term += numbers.offset
        both = (term.astype(np.uint16) * _TWICE).view(np.int16)  # for two neighbouring pixels at once
        picture[..., channel] = _levels(light, both[:, np.newaxis])


def _light(luma: NDArray[np.uint8], numbers: Coefficients) -> NDArray[np.int16]:
    light = luma.astype(np.int16)
    if not numbers.quarter:
        light *= numbers.luma
        return light
    quarter = light >> 2
    light *= numbers.luma
    light += quarter
    return light


def _levels(light: NDArray[np.int16], added: NDArray[np.int16] | np.int16) -> NDArray[np.int16]:
    level: NDArray[np.int16] = light + added
    level >>= _SHIFT
    return np.clip(level, 0, 255, out=level)
