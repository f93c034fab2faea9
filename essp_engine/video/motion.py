"""Motion vectors: how far the blocks of each frame moved, as the encoder has stored it.

An encoder predicts most blocks of a frame from other frames, and stores how far each block has moved. Reading these
vectors costs less than computing flow, and they are noisier: an encoder chooses what is cheap to store, not what
has moved (Zhang et al., "Real-time Action Recognition with Enhanced Motion Vector CNNs", CVPR 2016; Wu et al.,
"Compressed Video Action Recognition", CVPR 2018).

The motion of a clip's frame is a grid `(ceil(H / 8), ceil(W / 8), 2) int16`: for each cell of 8 x 8 pixels of the
*output* frame, how far its content has moved since the frame before it in the clip, dx to the right and dy down, in
units of 1/16 pixel. A block without a vector has not moved.

**From vectors to motion.** A vector points to another frame, which may be several frames away. FFmpeg does not say
which one it is, only whether it is shown earlier or later. So this is an approximation: it is taken to be the nearest I
or P frame on that side, and the motion to be even in between. Where an encoder chose another reference, such as a B
frame, the motion of that block is off by the ratio of the distances, mostly a factor of two. A block with vectors to
both sides counts by the one to the earlier frame. An I frame has no vectors, and FFmpeg gives none for B frames of
MPEG-4: they repeat the motion of the frame before them in the clip (the first frame: of the one after it).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from av.video.frame import PictureType, VideoFrame
from numpy.typing import NDArray

from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.conversion import mirrored, quarter_turns
from essp_engine.video.geometry import GRAY, YUV420, covering_size
from essp_engine.video.motion_layout import CELL, UNIT, motion_shape

EXPORT = {"flags2": "+export_mvs"}
"""The option of a decoder that has it export vectors."""

_SAMPLES = 2
"""Points in each direction at which a cell's motion is read."""
_LARGEST = 256
"""More than the side of any block."""
_LIMIT = 2**15 - 1
UNKNOWN = -(2**15)
"""Stands for the motion of a frame without vectors, until `repeated` has replaced it."""
_ANCHORS = (PictureType.I, PictureType.P, PictureType.S)
"""Types of frames that others refer to."""

Motion = NDArray[np.int16]
"""`(rows, columns, 2)`."""


class _Wanted(NamedTuple):
    """A frame whose motion a clip wants."""

    number: int
    blocks: NDArray[Any] | None
    """FFmpeg's vectors; None if it has none, as for an I frame."""
    coded: tuple[int, int]
    """Height and width of the frame as coded."""
    turns: int
    flipped: bool
    resize: Resize
    output: tuple[int, int]
    """Height and width of the clip's frames."""
    gap: int
    """Frames of the video since the frame before it in the clip."""
    target: Motion


@dataclass(slots=True)
class MotionOfRun:
    """The motion of the wanted frames of one forward decode, known when it has ended."""

    _anchors: list[int] = field(default_factory=list)
    """Indices of the I and P frames that were shown."""
    _wanted: list[_Wanted] = field(default_factory=list)

    def shown(self, number: int, frame: VideoFrame) -> None:
        """Note a decoded frame, wanted or not. They come in display order."""
        if frame.pict_type in _ANCHORS and (not self._anchors or number > self._anchors[-1]):
            self._anchors.append(number)

    def want(
        self, number: int, frame: VideoFrame, resize: Resize, output: tuple[int, int], gap: int, target: Motion
    ) -> None:
        """Fill `target` with the motion of this frame when the run ends. `output`: height and width of the clip's
        frames. `gap`: frames of the video since the frame before it in the clip."""
        found = None if frame.pict_type == PictureType.I else frame.side_data.get("MOTION_VECTORS")
        blocks = None if found is None else found.to_ndarray()
        if blocks is not None and frame.pict_type == PictureType.B and not _moves(blocks):
            blocks = None
        place = (frame.height, frame.width), quarter_turns(frame), mirrored(frame)
        self._wanted.append(_Wanted(number, blocks, *place, resize, output, gap, target))

    def end(self) -> None:
        """Fill all targets. The motion of a frame without vectors is `UNKNOWN` everywhere; `repeated` replaces it."""
        for wanted in self._wanted:
            if wanted.blocks is None:
                wanted.target[...] = UNKNOWN
            else:
                wanted.target[...] = _projected(self._moved(wanted.number, wanted.blocks, wanted.coded), wanted)
        self._wanted.clear()
        self._anchors.clear()

    def _moved(self, number: int, blocks: NDArray[Any], coded: tuple[int, int]) -> NDArray[np.float32]:
        """The motion in pixels of the coded frame per frame, on a grid of the coded frame."""
        before, after = bisect_left(self._anchors, number), bisect_right(self._anchors, number)
        since = number - self._anchors[before - 1] if before else 1
        until = self._anchors[after] - number if after < len(self._anchors) else 1
        earlier = blocks["source"] < 0
        past, has_past = _collected(blocks[earlier], coded)
        if earlier.all() or has_past.all():
            return past / np.float32(since)
        future, _ = _collected(blocks[~earlier], coded)
        return np.where(has_past[..., None], past / np.float32(since), -future / np.float32(until))


def repeated(motion: Motion) -> None:
    """Replace the unknown motion of frames in a clip's motion, `(T, rows, columns, 2)`: by the motion of the frame
    before it, or at the beginning of the one after it. If nothing is known, nothing has moved."""
    unknown = motion[:, 0, 0, 0] == UNKNOWN
    known = np.flatnonzero(~unknown)
    for frame in np.flatnonzero(unknown):
        before = known[known < frame]
        motion[frame] = motion[before[-1] if len(before) else known[0]] if len(known) else 0


def _moves(blocks: NDArray[Any]) -> bool:
    """Whether any vector is not zero. FFmpeg exports zeros for all B frames of MPEG-4."""
    return bool(blocks["motion_x"].any() or blocks["motion_y"].any())


def _collected(blocks: NDArray[Any], size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The mean movement of the blocks in each cell of the coded frame, from where a block was to where it is."""
    rows, columns = -(-size[0] // CELL), -(-size[1] // CELL)
    cells, owners = _cells(blocks, rows, columns)
    scale = np.maximum(blocks["motion_scale"], 1).astype(np.float32)
    counts = np.bincount(cells, minlength=rows * columns)
    sums = [
        np.bincount(cells, (blocks[axis] / scale)[owners], minlength=rows * columns)
        for axis in ("motion_x", "motion_y")
    ]
    means = np.stack(sums, axis=-1) / -np.maximum(counts, 1)[:, None]
    return means.astype(np.float32).reshape(rows, columns, 2), (counts > 0).reshape(rows, columns)


def _cells(blocks: NDArray[Any], rows: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of a cell and a block that covers it."""
    widths, heights = blocks["w"].astype(np.int64), blocks["h"].astype(np.int64)
    left, top = blocks["dst_x"] - widths // 2, blocks["dst_y"] - heights // 2
    cells, owners = [], []
    for code in np.flatnonzero(np.bincount(widths * _LARGEST + heights)).tolist():
        width, height = divmod(code, _LARGEST)
        of_size = np.flatnonzero((widths == width) & (heights == height))
        down, right = np.arange(0, max(height, 1), CELL), np.arange(0, max(width, 1), CELL)
        row = (top[of_size, None] + down) // CELL
        column = (left[of_size, None] + right) // CELL
        inside = ((row >= 0) & (row < rows))[:, :, None] & ((column >= 0) & (column < columns))[:, None, :]
        covered = row[:, :, None] * columns + column[:, None, :]
        cells.append(covered[inside])
        owners.append(np.broadcast_to(of_size[:, None, None], inside.shape)[inside])
    return np.concatenate([np.empty(0, np.int64), *cells]), np.concatenate([np.empty(0, np.int64), *owners])


def _projected(moved: NDArray[np.float32], wanted: _Wanted) -> NDArray[np.float32]:
    """The motion on the grid of the output frame, in its units."""
    places, scale = _places(
        wanted.coded, wanted.turns, wanted.flipped, wanted.output, wanted.resize.mode, wanted.resize.pixels
    )
    seen = moved.reshape(-1, 2)[places[0]]
    for place in places[1:]:
        seen += moved.reshape(-1, 2)[place]
    dx, dy = seen[..., 0], seen[..., 1]
    if wanted.flipped:
        dy = -dy
    for _ in range(wanted.turns):
        dx, dy = dy, -dx
    unit = UNIT * wanted.gap / len(places)
    seen = np.stack([dx * np.float32(scale[1] * unit), dy * np.float32(scale[0] * unit)], axis=-1)
    return np.rint(np.clip(seen, -_LIMIT, _LIMIT))


@lru_cache(maxsize=64)
def _places(
    coded: tuple[int, int], turns: int, flipped: bool, output: tuple[int, int], mode: int, pixels: str
) -> tuple[list[NDArray[np.int64]], tuple[float, float]]:
    """For each sample of an output cell, where in the coded frame's grid it lies, `(rows, columns)`; and the scale from
    coded to output pixels, down and across as displayed."""
    shown = coded[::-1] if turns % 2 else coded
    whole = output
    if mode == Resize.CROP:
        whole = covering_size(*shown, *output, even=pixels in (YUV420, GRAY))
    scale = whole[0] / shown[0], whole[1] / shown[1]
    rows, columns, _ = motion_shape(*output)
    margins = [(side - length) // 2 for side, length in zip(whole, output, strict=True)]
    height, width = coded
    places = []
    for down, right in product(range(_SAMPLES), repeat=2):
        y, x = (
            ((np.arange(count) + (step + 0.5) / _SAMPLES) * CELL).clip(0, length - 1) + margin
            for count, step, length, margin in zip((rows, columns), (down, right), output, margins, strict=True)
        )
        y, x = np.meshgrid(y / scale[0], x / scale[1], indexing="ij")
        row, column = ((y, x), (x, width - 1 - y), (height - 1 - y, width - 1 - x), (height - 1 - x, y))[turns]
        if flipped:
            row = height - 1 - row
        places.append(_cell(row, height) * -(-width // CELL) + _cell(column, width))
    return places, scale


def _cell(place: NDArray[np.float64], length: int) -> NDArray[np.int64]:
    """The row or column of the coded frame's grid in which a pixel lies."""
    return (place.clip(0, length - 1) // CELL).astype(np.int64)
