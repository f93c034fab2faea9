"""What the frames of a video show, as pure functions over arrays.

A frame is reduced to a picture of 32 x 32 luma cells. That is enough for what a person would call a cut, black or
frozen, and hides the noise of a camera.

- A **cut** is a change from one frame to the next that is large and several times larger than the changes around it,
  which excludes fast motion (as in PySceneDetect's AdaptiveDetector). The frames on its two sides must stay different,
  which excludes flashes. Dissolves are not found.
- A **black** frame has 98 % of its cells darker than a tenth of the range (as in FFmpeg's blackdetect).
- In a **frozen** frame no cell differs from the frame before by more than rounding. A keyframe amid frozen frames is
  encoded from scratch and differs, and so may the frame after it; that does not end the stretch.
- A **hash** of a picture has a bit for each low frequency of its cosine transform (Zauner, "Implementation and
  benchmarking of perceptual image hash functions", 2010). A video has hashes of some frames and of the differences
  between these frames and their mean: videos with the same background have similar pictures but different motion.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

SIDE = 32
"""Cells along each side of a picture."""
T = TypeVar("T")
Picture = NDArray[np.uint8]
"""(SIDE, SIDE) luma."""

CUT_LEVELS = 15.0
"""The smallest mean difference, of 255 levels, between the frames on both sides of a cut."""
_CUT_RATIO = 3.0
_CUT_STAYS = 0.75
_AROUND = 2
"""The number of changes on each side that a cut is compared with."""
_BLACK_LEVELS = 26
_BLACK_SHARE = 0.98
STILL_LEVELS = 1
_KEYFRAME_STEP = 3.0
_KEYFRAME_FRAMES = 2
_STILL_AROUND = 4
"""Limits for the changes that a keyframe causes in frozen frames: their mean, their number, and the still frames on
each side."""

HASHED = 8
"""Frames of a video that are hashed."""
_LOW = 8
_FLAT_LEVELS = 4.0
_MOVING_LEVELS = 1.5


def cuts(step: NDArray[np.float64], leap: NDArray[np.float64]) -> list[int]:
    """The frames before which the scene changes.

    step: (T,) mean absolute difference of each frame from the one before; 0 for the first.
    leap: (T,) the same from two frames before; 0 for the first two.
    """
    found = []
    for frame in np.flatnonzero(step >= CUT_LEVELS).tolist():
        around = [*step[max(1, frame - _AROUND) : frame], *step[frame + 1 : frame + 1 + _AROUND]]
        stays = [*leap[max(2, frame) : frame + 2]]
        if step[frame] >= _CUT_RATIO * (np.mean(around) if around else 0.0) and all(
            change >= _CUT_STAYS * CUT_LEVELS for change in stays
        ):
            found.append(frame)
    return found


def is_black(picture: Picture) -> bool:
    """Whether nothing is visible."""
    return bool(np.count_nonzero(picture < _BLACK_LEVELS) >= _BLACK_SHARE * picture.size)


def stretches(flags: NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    """First and last frame of each run of at least `least` flagged frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [
        (begin, end - 1)
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        if end - begin >= least
    ]


def frozen(step: NDArray[np.float64], peak: NDArray[np.int64], least: int) -> list[tuple[int, int]]:
    """First and last frame of each stretch of at least `least` identical frames.

    step: (T,) as for `cuts`. peak: (T,) largest difference of a cell from the frame before; 255 for the first.
    """
    still = peak <= STILL_LEVELS
    slight = (step <= _KEYFRAME_STEP) & ~still
    amid = np.zeros_like(still)
    for first, last in stretches(slight, 1):
        before, after = still[max(0, first - _STILL_AROUND) : first], still[last + 1 : last + 1 + _STILL_AROUND]
        if last - first < _KEYFRAME_FRAMES and before.sum() == _STILL_AROUND and after.any() and after.all():
            amid[first : last + 1] = True
    return [(first - 1, last) for first, last in stretches(still | amid, least - 1) if first]


def hashes(pictures: NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """The hashes of `HASHED` of these pictures at even distances, and the hashes of their motion.

    pictures: (K, SIDE, SIDE), at even distances over the video. A list is empty if the pictures are flat or do not
    move.
    """
    if not len(pictures):
        return [], []
    places = [(2 * number + 1) * len(pictures) // (2 * HASHED) for number in range(HASHED)]
    levels = pictures.astype(np.float64)
    flat = sum(levels[place].std() < _FLAT_LEVELS for place in places)
    shown = [] if flat > HASHED // 2 else [_hash(levels[place], around_median=True) for place in places]
    moved = levels - levels.mean(axis=0)
    still = moved.std() < _MOVING_LEVELS
    return shown, [] if still else [_hash(moved[place], around_median=False) for place in places]


def _hash(levels: NDArray[np.float64], around_median: bool) -> int:
    """64 bits: which of the low frequencies are above the median, or above 0."""
    low = (_COSINES @ levels @ _COSINES.T).ravel()
    low[0] = 0.0  # brightness
    bits = low > (np.median(low) if around_median else 0.0)
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def _cosines() -> NDArray[np.float64]:
    """The first rows of the matrix of the discrete cosine transform (DCT-II)."""
    frequency, cell = np.mgrid[0:_LOW, 0:SIDE]
    found: NDArray[np.float64] = np.cos(np.pi * frequency * (2 * cell + 1) / (2 * SIDE))
    return found


_COSINES = _cosines()


class Samples(Generic[T]):
    """Results for some frames at even distances, while the length of the video is not known yet.

    At most `most` results are kept. Once that number was reached, at least half of it is kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._every = 1
        self._kept: dict[int, T] = {}

    def due(self, frame: int) -> bool:
        """Whether this frame is one of them. Frames must arrive in order."""
        return frame % self._every == 0

    def keep(self, frame: int, thing: T) -> None:
        """Keep the result for a frame that is due."""
        self._kept[frame] = thing
        if len(self._kept) > self._most:
            self._every *= 2
            self._kept = {number: kept for number, kept in self._kept.items() if number % self._every == 0}

    def spread(self, count: int, frames: int) -> list[T]:
        """At most `count` of the results, nearest to even distances over a video of `frames` frames."""
        if not self._kept:
            return []
        numbers = np.array(list(self._kept))
        wanted = (2 * np.arange(count) + 1) * frames / (2 * count)
        chosen = np.abs(numbers[None, :] - wanted[:, None]).argmin(axis=1)
        return [self._kept[number] for number in dict.fromkeys(numbers[chosen].tolist())]

    @property
    def all(self) -> list[T]:
        """All results, in the order of frames."""
        return list(self._kept.values())
