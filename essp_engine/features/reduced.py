"""A feature of fewer or smaller frames than its clip has: two parameters of every computed feature.

The streams of a job share each decoded clip, and see it in their own geometry: `every` takes every n-th frame of it,
`short_side` makes frames smaller first. So a network of clips may see frames of 256 px over a whole long clip, while
flow, whose cost and bytes grow with the area, is computed from smaller ones.

`rgb` has neither: its trainers read the clip itself, take evenly spaced frames of it (`params.frames`), and resize
their crops (`augment.crop`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import ArraySpec, Extractor, FeatureParams, SignedExtractor
from essp_engine.features.sampling import centred_steps

Frames = NDArray[np.uint8]


class ReducedParams(FeatureParams):
    """Parameters that every computed feature has in addition to its own."""

    every: int = Field(1, ge=1, le=64)
    """The feature is computed from every n-th frame of the clip (or of a snippet of it), centred on its middle."""
    short_side: int | None = Field(None, ge=16, le=4320)
    """Frames are first scaled down to this many pixels on the short side (null: unchanged). Smaller frames are not
    scaled."""

    def frames_needed(self, own: int) -> int:
        """Frames that a clip needs for a feature that needs `own` of the reduced frames."""
        return (own - 1) * self.every + 1

    def of(self, clip: ArraySpec) -> ArraySpec:
        """The reduced clip that the feature sees of a clip `(T, H, W, C)`."""
        frames, height, width, *rest = clip.shape
        shown = centred_steps(frames, self.every)
        return ArraySpec((len(shown), *self.size(height, width), *rest), clip.dtype)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the reduced frames in pixels."""
        short = min(height, width)
        if self.short_side is None or short <= self.short_side:
            return height, width
        return round(height * self.short_side / short), round(width * self.short_side / short)


def divided(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of this module, and the feature's own."""
    own = {name: value for name, value in params.items() if name not in ReducedParams.model_fields}
    return {name: value for name, value in params.items() if name not in own}, own


class Reduced:
    """Another extractor on fewer or smaller frames. Implements `SharingExtractor`."""

    def __init__(self, extractor: Extractor, params: ReducedParams) -> None:
        self._extractor = extractor
        self._params = params
        self.name, self.summary, self.Params = extractor.name, extractor.summary, extractor.Params
        self.layout = extractor.layout
        if isinstance(extractor, SignedExtractor):
            self.signed_codes = extractor.signed_codes

    def frames_needed(self) -> int:
        return self._params.frames_needed(self._extractor.frames_needed())

    def output(self, clip: ArraySpec) -> ArraySpec:
        return self._extractor.output(self._params.of(clip))

    def setup(self) -> None:
        self._cv2 = load_opencv()
        self._extractor.setup()

    def extract(self, clip: Frames) -> NDArray[Any]:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> NDArray[Any]:
        seen = shared.get(self._params, lambda: _Seen(shared, self._params, self._scaled))
        return extract_with(self._extractor, seen)

    def _scaled(self, frames: Frames, height: int, width: int) -> Frames:
        """`(T, H, W)` or `(T, H, W, 3)` uint8: each pixel of the result is the mean of the pixels that it covers."""
        made = [self._cv2.resize(frame, (width, height), interpolation=self._cv2.INTER_AREA) for frame in frames]
        return np.stack(made)


class _Seen(Intermediates):
    """The reduced clip of a feature, shared by all features with the same reduction, and computed on first access."""

    def __init__(
        self, whole: Intermediates, params: ReducedParams, scaled: Callable[[Frames, int, int], Frames]
    ) -> None:
        super().__init__(np.empty(0, np.uint8))
        self._whole = whole
        self._chosen = centred_steps(whole.frames, params.every)
        self._size = params.size(*whole.size)
        self._scaled = scaled

    @property
    def frames(self) -> int:
        return len(self._chosen)

    @property
    def size(self) -> tuple[int, int]:
        return self._size

    @property
    def clip(self) -> Frames:
        return self.get("rgb", lambda: self._of(self._whole.clip))

    @property
    def luma(self) -> Frames | None:
        luma = self._whole.luma
        return None if luma is None else self.get("luma", lambda: self._of(luma))

    @property
    def motion(self) -> NDArray[np.int16] | None:
        """In pixels of the reduced frames, over as many frames of the clip as one step has."""
        motion = self._whole.motion
        if motion is None:
            return None
        chosen = motion[self._chosen.start : self._chosen.stop : self._chosen.step]
        (height, width), (own_height, own_width) = self._whole.size, self._size
        scale = np.array([own_width / width, own_height / height]) * self._chosen.step
        limits = np.iinfo(np.int16)
        scaled: NDArray[np.int16] = np.rint((chosen * scale).clip(limits.min, limits.max)).astype(np.int16)
        return scaled

    def _of(self, frames: Frames) -> Frames:
        chosen = frames[self._chosen.start : self._chosen.stop : self._chosen.step]
        return chosen if self._size == self._whole.size else self._scaled(chosen, *self._size)
