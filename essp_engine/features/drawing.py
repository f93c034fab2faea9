"""Draws features: frames as pictures, motion on the colour wheel, other numbers as heat maps and bars.

    colours                     red, green and blue of one frame each
    signed, motion              the direction is the hue (right red, down yellow-green, left cyan, up violet), the speed
                                is the saturation, so no motion is white
    signed, differences         differences of red, green and blue around grey, if the channels come in threes
    other signed values         a heat map of each channel: red above zero, blue below, white at zero
    descriptors                 a heat map with a row for each descriptor and a column for each of its numbers; bars for
                                a single descriptor

The declared layout of a feature says what its values are, not its name. The wheel is the usual HSV wheel for flow
(Baker et al., "A Database and Evaluation Methodology for Optical Flow", IJCV 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_engine.encoders.rows import descriptors_of
from essp_engine.features.quantization import ZERO

Picture = NDArray[np.uint8]
"""(H, W, 3) uint8, RGB."""

_SLOWEST_FULL = 1.0  # in steps of the code; keeps noise in a still picture from becoming colour
_FULL_PERCENT = 99
"""Percentile of the magnitudes that is drawn at full colour; larger ones are clipped, so that an outlier does not make
everything else pale."""
_BOUND = 127
"""Steps of the code up to the bound."""
_BAR_HEIGHT = 65
_SMALL = 64
"""A heat map of descriptors with smaller sides in pixels is enlarged."""
_MOST_ROWS = 256
"""Maximum rows of a heat map of descriptors; of more, evenly spaced ones are shown."""
_WHEEL = "right red, down yellow-green, left cyan, up violet"
_ABOVE, _BELOW = np.array([178, 24, 43], np.float32), np.array([33, 102, 172], np.float32)
"""The ends of ColorBrewer's RdBu, which colour-blind people can distinguish."""


class Drawing(NamedTuple):
    """A feature as pictures."""

    pictures: list[Picture]
    """In the order of its frames and channels."""
    caption: str
    """The meaning of colours; empty for ordinary frames."""
    scale: str = ""
    """The value of full colour; empty if there is no scale."""

    @property
    def words(self) -> str:
        """How to read the pictures."""
        return f"{self.caption}, {self.scale}" if self.scale else self.caption


def drawing(array: NDArray[Any], layout: FeatureLayout, fullest: float | None = None) -> Drawing:
    """All pictures of a feature: `(T, H, W, C)`, or any shape `(..., C)` for descriptors.

    `fullest`: the speed or magnitude of full colour, in the units of the feature (default: see `fullest_of`). Raises
    `ConfigError` for what cannot be drawn.
    """
    if layout.values == "descriptor":
        return _of_descriptors(array, layout, fullest)
    if array.ndim != 4 or not array.size:
        raise ConfigError(f"a feature of the shape {array.shape} cannot be drawn as pictures", code="unsupported")
    channels = array.shape[3]
    if layout.values == "colours":
        return Drawing(_in_threes(array if array.dtype == np.uint8 else _around_grey(array)), "")
    if layout.mirrored == "horizontal_motion":
        if channels % 2:
            raise ConfigError(
                f"motion in {channels} channels cannot be drawn: dx and dy take turns in an even number",
                code="unsupported",
            )
        fullest = fullest or fullest_of(array, layout)
        drawn = [flow_picture(field, fullest) for frame in array for field in _groups(frame, 2)]
        scale = f"full at {fullest / _BOUND:.2g} of the bound" if array.dtype == np.uint8 else _full(fullest)
        return Drawing(drawn, f"hue: direction ({_WHEEL}); saturation: speed", scale)
    if layout.mirrored == "plain" and channels % 3 == 0:
        return Drawing(_in_threes(_around_grey(array)), "differences of red, green and blue; grey: none")
    fullest = fullest or fullest_of(array, layout)
    values = _signed(array)
    maps = [_heat(channel[..., 0], fullest) for frame in values for channel in _groups(frame, 1)]
    return Drawing(maps, f"a heat map of each channel: {_key(values)}", _full(fullest))


def flow_picture(codes: NDArray[Any], fullest: float) -> Picture:
    """Draw displacements `(H, W, 2)` (dx right, dy down), uint8 codes or floats, on the colour wheel."""
    motion = np.nan_to_num(_signed(codes), posinf=0, neginf=0)
    saturation = np.minimum(np.hypot(motion[..., 0], motion[..., 1]) / fullest, 1)
    hue = np.arctan2(motion[..., 1], motion[..., 0]) * (3 / np.pi)  # sixths of a turn
    # Red, green and blue of HSV at full value are the same ramp at three offsets of the hue.
    ramps = [np.clip(np.minimum(sixth, 4 - sixth), 0, 1) for sixth in ((n + hue) % 6 for n in (5, 3, 1))]
    coloured = 1 - saturation[..., None] * np.stack(ramps, axis=-1)
    picture: Picture = np.rint(coloured * 255).astype(np.uint8)
    return picture


def fullest_of(array: NDArray[Any], layout: FeatureLayout) -> float:
    """The 99th percentile of the speeds of motion, or of the magnitudes of other numbers; above 0."""
    if layout.values == "descriptor":
        array = descriptors_of(array, layout.facts).astype(np.float32)
    values = _signed(array)
    if layout.values == "signed" and layout.mirrored == "horizontal_motion":
        across, down = values[..., 0::2], values[..., 1::2]
        values = np.hypot(across[..., : down.shape[-1]], down)
    sizes = np.abs(values[np.isfinite(values)])
    found = float(np.percentile(sizes, _FULL_PERCENT)) if sizes.size else 0.0
    if array.dtype == np.uint8:
        return max(found, _SLOWEST_FULL)
    return found or float(sizes.max(initial=0)) or 1.0


def grid(rows: Sequence[Sequence[Picture]], gap: int = 2) -> Picture:
    """Arrange pictures of one size in rows and columns, with white gaps between them."""
    height, width = rows[0][0].shape[:2]
    columns = max(len(row) for row in rows)
    shape = (len(rows) * (height + gap) - gap, columns * (width + gap) - gap, 3)
    sheet = np.full(shape, 255, np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            top, left = y * (height + gap), x * (width + gap)
            sheet[top : top + height, left : left + width] = picture
    return sheet


def _of_descriptors(array: NDArray[Any], layout: FeatureLayout, fullest: float | None) -> Drawing:
    rows = descriptors_of(array, layout.facts)
    if not rows.size:
        raise ConfigError("the feature has no descriptor here: there is nothing to be drawn", code="unsupported")
    count, width = rows.shape
    values = rows.astype(np.float32)
    fullest = fullest or fullest_of(array, layout)
    if count == 1:
        caption = f"bars of the {width} numbers of a descriptor: {_key(values)}"
        return Drawing([_enlarged(_bars(values[0], fullest))], caption, _full(fullest))
    shown = values if count <= _MOST_ROWS else values[np.linspace(0, count - 1, _MOST_ROWS).round().astype(np.intp)]
    those = f"{count} descriptors" if len(shown) == count else f"{len(shown)} of {count} descriptors"
    caption = f"{those}, a row each; its {width} numbers, a column each: {_key(values)}"
    return Drawing([_enlarged(_heat(shown, fullest))], caption, _full(fullest))


def _key(values: NDArray[np.float32]) -> str:
    return "red above zero, blue below" if (values < 0).any() else "red above zero"


def _full(fullest: float) -> str:
    return f"full at {fullest:.3g}"


def _heat(values: NDArray[np.float32], fullest: float) -> Picture:
    """`(H, W)` -> one pixel each; NaN is grey."""
    share = np.clip(values / fullest, -1, 1)[..., None]
    ends = np.where(share > 0, _ABOVE, _BELOW)
    coloured = np.where(np.isnan(share), np.float32(ZERO), 255 + np.abs(share) * (ends - 255))
    picture: Picture = np.rint(coloured).astype(np.uint8)
    return picture


def _bars(values: NDArray[np.float32], fullest: float) -> Picture:
    """`(C,)` -> one column each, starting in the middle, or at the bottom if no number is negative."""
    zero = _BAR_HEIGHT // 2 if (values < 0).any() else 0
    tops = np.rint(np.clip(np.nan_to_num(values) / fullest, -1, 1) * (_BAR_HEIGHT - zero - 1))
    height = _BAR_HEIGHT - 1 - zero - np.arange(_BAR_HEIGHT, dtype=np.float32)[:, None]  # height of each row above zero
    inside = (height <= np.maximum(tops, 0)) & (height >= np.minimum(tops, 0))
    return _heat(np.where(inside & (tops != 0), np.sign(tops) * np.float32(fullest), np.float32(0)), fullest)


def _enlarged(picture: Picture) -> Picture:
    """The picture, enlarged by repeating its pixels if it is small."""
    down, across = (max(1, _SMALL // side) for side in picture.shape[:2])
    return picture.repeat(down, axis=0).repeat(across, axis=1)


def _in_threes(pictures: NDArray[np.uint8]) -> list[Picture]:
    """Groups of three channels as colours; other numbers of channels as one grey picture each."""
    width = 3 if pictures.shape[3] % 3 == 0 else 1
    return [np.repeat(group, 3 // width, axis=2) for frame in pictures for group in _groups(frame, width)]


def _groups(frame: NDArray[Any], width: int) -> list[NDArray[Any]]:
    return [frame[..., start : start + width] for start in range(0, frame.shape[2], width)]


def _signed(array: NDArray[Any]) -> NDArray[np.float32]:
    """The values as numbers: codes relative to zero, others unchanged."""
    values = array.astype(np.float32)
    return values - ZERO if array.dtype == np.uint8 else values


def _around_grey(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The values as uint8. Other types are scaled, with zero in the middle."""
    if array.dtype == np.uint8:
        return array
    values = np.nan_to_num(array.astype(np.float32), posinf=0, neginf=0)
    largest = float(np.abs(values).max(initial=0)) or 1.0
    scaled: NDArray[np.uint8] = np.rint(values / largest * 127 + ZERO).astype(np.uint8)
    return scaled
