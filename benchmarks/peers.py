"""What a user would write instead: a bare PyAV loop, and a torch DataLoader around it.

Both are given the same clips as ESSP, and make the same frames of them: same size, same interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

Clip = tuple[str, int, int]
"""Path, first frame, frame count."""


def read_clip(clip: Clip, size: int) -> NDArray[np.uint8]:
    """Open, seek to the keyframe before, decode up to the clip, convert and scale: (T, size, size, 3) uint8, RGB."""
    path, first, count = clip
    frames = np.empty((count, size, size, 3), np.uint8)
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        interval = 1 / (stream.average_rate * stream.time_base)
        wanted = int((stream.start_time or 0) + first * interval)
        container.seek(wanted, stream=stream, backward=True)
        filled = 0
        for frame in container.decode(stream):
            if frame.pts is not None and frame.pts + interval / 2 < wanted:
                continue
            frames[filled] = frame.reformat(size, size, "rgb24", interpolation="BILINEAR").to_ndarray()
            filled += 1
            if filled == count:
                break
    frames[filled:] = frames[filled - 1]
    return frames


def bare_loop(clips: Sequence[Clip], size: int, count: int) -> None:
    """Read so many clips, one after the other."""
    for i in range(count):
        read_clip(clips[i % len(clips)], size)


def data_loader(clips: Sequence[Clip], size: int, features: Sequence[str], workers: int, count: int) -> None:
    """A training's DataLoader for each feature, all at once, as separate trainings would have them."""
    from torch.utils.data import DataLoader

    loaders = [
        DataLoader(_ClipDataset(clips, size, feature, count), batch_size=8, num_workers=workers) for feature in features
    ]
    for batches in zip(*loaders, strict=True):
        del batches


class _ClipDataset:
    """One feature of each clip; every training decodes for itself."""

    def __init__(self, clips: Sequence[Clip], size: int, feature: str, count: int) -> None:
        self._clips, self._size, self._feature, self._count = clips, size, feature, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> NDArray[Any]:
        from essp_common.features import registry

        frames = read_clip(self._clips[index % len(self._clips)], self._size)
        extractor = registry.create(self._feature, {})
        extractor.setup()
        return extractor.extract(frames)
