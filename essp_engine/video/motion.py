"""Motion vectors: how far the blocks of each frame moved, as the encoder has stored it.

An encoder predicts most blocks of a frame from other frames, and stores how far each block has moved. Reading these
vectors costs a small part of computing flow, and they are noisier: an encoder chooses what is cheap to store, not what
has moved (Zhang et al., "Real-time Action Recognition with Enhanced Motion Vector CNNs", CVPR 2016; Wu et al.,
"Compressed Video Action Recognition", CVPR 2018).

The motion of a clip's frame is a grid `(ceil(H / 8), ceil(W / 8), 2) int16`: for each cell of 8 x 8 pixels of the
*output* frame, how far its content has moved since the frame before it in the clip, dx to the right and dy down, in
units of 1/16 pixel. A block without a vector has not moved.

**From vectors to motion.** A vector points to another frame, which may be several frames away. FFmpeg does not say
which one it is, only whether it is shown earlier or later. So this is an approximation: it is taken to be the nearest I
or P frame on that side, and the motion to be even in between. Where an encoder chose another reference (a B frame, or an
older frame), the motion of that block is off by the ratio of the distances, mostly a factor of two. A block with vectors to both sides counts by the one to
the earlier frame. An I frame has no vectors, and FFmpeg gives none for B frames of MPEG-4: they repeat the motion of
the frame before them in the clip (the first frame: of the one after it).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
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

_SAMPLES = 4
"""Points in each direction at which a cell's motion is read."""
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
    sums, counts = np.zeros((2, rows * columns)), np.zeros(rows * columns)
    scale = np.maximum(blocks["motion_scale"], 1).astype(np.float32)
    moved = -blocks["motion_x"] / scale, -blocks["motion_y"] / scale
    for width, height in {(int(w), int(h)) for w, h in zip(blocks["w"], blocks["h"], strict=True)}:
        of_size = (blocks["w"] == width) & (blocks["h"] == height)
        left, top = (blocks[f"dst_{axis}"][of_size] - side // 2 for axis, side in (("x", width), ("y", height)))
        for down in range(0, max(height, 1), CELL):
            for right in range(0, max(width, 1), CELL):
                row, column = (top + down) // CELL, (left + right) // CELL
                inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
                cell = (row * columns + column)[inside]
                counts += np.bincount(cell, minlength=counts.size)
                for axis in (0, 1):
                    sums[axis] += np.bincount(cell, moved[axis][of_size][inside], minlength=counts.size)
    means = (sums / np.maximum(counts, 1)).astype(np.float32)
    return means.T.reshape(rows, columns, 2), (counts > 0).reshape(rows, columns)


def _projected(moved: NDArray[np.float32], wanted: _Wanted) -> NDArray[np.float32]:
    """The motion on the grid of the output frame, in its units."""
    rows, columns, scale = _places(
        wanted.coded, wanted.turns, wanted.flipped, wanted.output, wanted.resize.mode, wanted.resize.pixels
    )
    grid = motion_shape(*wanted.output)
    dx, dy = moved[rows, columns].reshape(grid[0], _SAMPLES, grid[1], _SAMPLES, 2).mean((1, 3)).transpose(2, 0, 1)
    if wanted.flipped:
        dy = -dy
    for _ in range(wanted.turns):
        dx, dy = dy, -dx
    seen = np.stack([dx * scale[1], dy * scale[0]], axis=-1) * np.float32(UNIT * wanted.gap)
    return np.rint(np.clip(seen, -_LIMIT, _LIMIT))


@lru_cache(maxsize=64)
def _places(
    coded: tuple[int, int], turns: int, flipped: bool, output: tuple[int, int], mode: int, pixels: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[float, float]]:
    """Where in the coded frame's grid the samples of each output cell lie, row by row, and the scale from coded to
    output pixels, down and across as displayed."""
    shown = coded[::-1] if turns % 2 else coded
    whole = output
    if mode == Resize.CROP:
        whole = covering_size(*shown, *output, even=pixels in (YUV420, GRAY))
    scale = whole[0] / shown[0], whole[1] / shown[1]
    rows, columns, _ = motion_shape(*output)
    y, x = (
        ((np.arange(count * _SAMPLES) + 0.5) * (CELL / _SAMPLES)).clip(0, length - 1) + (side - length) // 2
        for count, length, side in zip((rows, columns), output, whole, strict=True)
    )
    y, x = np.meshgrid(y / scale[0], x / scale[1], indexing="ij")
    height, width = coded
    row, column = ((y, x), (x, width - 1 - y), (height - 1 - y, width - 1 - x), (height - 1 - x, y))[turns]
    if flipped:
        row = height - 1 - row
    return _cell(row, height), _cell(column, width), scale


def _cell(place: NDArray[np.float64], length: int) -> NDArray[np.int64]:
    """The cell of the coded frame in which a pixel lies."""
    return (place.clip(0, length - 1) // CELL).astype(np.int64)
