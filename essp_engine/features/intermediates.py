"""Shares intermediate results (grey frames, flow fields) between the features of one clip.

A worker creates one `Intermediates` per clip and passes it to each `SharingExtractor` of that clip. The first request
for a key computes the value, and later requests return the same object. Extractors of other packages can use it, too.
One instance belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from essp_engine.features.port import Extractor
from essp_engine.video.colour import Colour, grey, height_of, pictures

T = TypeVar("T")


class Intermediates:
    """A clip and the values computed from it so far."""

    def __init__(
        self, clip: NDArray[np.uint8], colour: Colour | None = None, motion: NDArray[np.int16] | None = None
    ) -> None:
        """`clip`: `(T, H, W, 3) uint8, RGB`; with `colour`, YUV 4:2:0 or luma (`essp_engine/video/colour.py`).
        `motion`: of each frame (`essp_engine/video/motion.py`), if the job asks for it.

        Do not modify them afterwards.
        """
        self._stored = clip
        self._colour = colour
        self._motion = motion
        self._made: dict[Hashable, object] = {}

    @property
    def frames(self) -> int:
        """The number of frames of the clip."""
        return len(self._stored)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of its frames in pixels."""
        shape = self._stored.shape
        return (shape[1] if len(shape) == 4 else height_of(shape)), shape[2]

    @property
    def clip(self) -> NDArray[np.uint8]:
        """The clip as `(T, H, W, 3) uint8, RGB`, converted on first access. Do not modify it."""
        if self._colour is None:
            return self._stored
        return self.get("rgb", self._as_rgb)

    @property
    def luma(self) -> NDArray[np.uint8] | None:
        """Grey levels, `(T, H, W) uint8`, of a clip stored with luma; None for RGB. Do not modify them."""
        colour = self._colour
        return None if colour is None else self.get("luma", lambda: grey(self._stored, colour))

    @property
    def motion(self) -> NDArray[np.int16] | None:
        """The codec's motion since the frame before, `(T, rows, columns, 2)`, in 1/16 pixels; None if it was not
        read. Do not modify it."""
        return self._motion

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, computed by `make()` on the first request. Do not modify it.

        The key must identify the value and everything that it depends on, except for the clip.
        """
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])

    def _as_rgb(self) -> NDArray[np.uint8]:
        made = pictures(self._stored, self._colour)
        return made if made.shape[3] == 3 else np.repeat(made, 3, axis=3)


@runtime_checkable
class SharingExtractor(Extractor, Protocol):
    """An extractor that can share intermediate results with others.

    If it uses `shared.luma` instead of `shared.clip`, and declares `needs = "luma"`, it avoids the conversion to RGB.
    """

    def extract_from(self, shared: Intermediates) -> NDArray[Any]:
        """The same result as `extract(shared.clip)`."""


def extract_with(extractor: Extractor, shared: Intermediates) -> NDArray[Any]:
    """The feature of `shared.clip`. Uses `shared` if the extractor can."""
    return extractor.extract_from(shared) if isinstance(extractor, SharingExtractor) else extractor.extract(shared.clip)
